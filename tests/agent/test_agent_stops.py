"""An agent that has stopped leaves torch and the process as it found them."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_runs import run_bare
from tiers import slow

PROGRAM = """
import os, random, sys, threading
import torch, torch._dynamo, torch.utils.data.dataloader, torch.optim.lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
from autotune_trials import api
from autotune_trials.agent.core.agent import Agent
from autotune_trials.agent.patches import patch_set
from autotune_trials.protocol.messages import KnobChoice, SessionConfig

dataloader, worker = torch.utils.data.dataloader, torch.utils.data._utils.worker
OWNERS = (
    torch, torch.Tensor, torch.autograd, torch.random, torch.cuda, torch.cuda.CUDAGraph,
    torch.nn.Module, torch.nn.utils, torch.nn.parallel.DistributedDataParallel,
    torch.amp.GradScaler, torch.amp.autocast_mode.autocast, torch.optim.Optimizer, torch.optim.SGD,
    torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.StepLR,
    torch.utils.data, dataloader, DataLoader, dataloader._DatasetKind, worker, random, api, sys,
)
optimizers = sys.modules["torch.optim.optimizer"]
STEPS = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
PASSING = {"last_exc", "last_type", "last_value", "last_traceback"}


def found():
    "What every attribute of the owners is, and all that is registered."
    attributes = {
        (owner, name): id(value)
        for owner in OWNERS for name, value in list(vars(owner).items()) if name not in PASSING
    }
    torchs = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torchs += (tuple(torch._dynamo.trace_rules.SKIP_DIRS),)
    hooks = [list(hooks) for hooks in STEPS]
    return attributes, hooks, list(patch_set.after_fork), sys.excepthook, torchs


def train(steps, stop=lambda: None):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)

    def state():
        group = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        return [p.stride() for p in model.parameters()], group, "_compiled_call_impl" in vars(model)

    before = state()
    loader = DataLoader(TensorDataset(torch.ones(2 * steps, 1, 8, 8)), batch_size=2)
    for number, (x,) in enumerate(loader):
        if number == steps // 2:
            stop()
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert state() == before


train(4)  # torch imports and fills in some of its own the first time
torch.manual_seed(0)
before = found()
mode, directory, socket = (os.environ[name] for name in ("MODE", "DIRECTORY", "SOCKET"))
values = {"optimizer_impl": "foreach", "channels_last": True, "amp_dtype": "bfloat16", "num_workers": 1}
values |= {"matmul_precision": "medium", "intra_op_threads": 2}
config = SessionConfig(
    mode, directory, socket, seed=1, steps=10**6, warmup_steps=3 if socket else 10**9,
    knobs=() if mode == "live" else tuple(KnobChoice(*each) for each in values.items()),
)
agent = Agent(torch, config)
agent.install()
assert found() != before and sys.excepthook is not before[3] and len(patch_set.after_fork) == 1
if socket:  # nobody listens there: the agent steps aside when it greets, inside a step
    train(20)
else:
    train(20, agent.stop)
assert agent.state.stopped
after = found()
assert after[2:] == before[2:], after[2:]
keys = [key for key in before[0] | after[0] if before[0].get(key) != after[0].get(key)]
changed = [f"{owner.__name__}.{name}" for owner, name in keys]
print("changed", changed)
print("hooks", after[1] == before[1])
"""


def told(folder: Path, mode: str, socket: str = "") -> list[str]:
    (folder / "train.py").write_text(PROGRAM)
    return run_bare(folder, MODE=mode, DIRECTORY=str(folder), SOCKET=socket).splitlines()


@pytest.mark.parametrize("mode", ["live", slow("fixed"), "profile", slow("launch")])
def test_torch_and_the_process_are_as_they_were(mode: str, tmp_path: Path) -> None:
    assert told(tmp_path, mode) == ["changed []", "hooks True"]


def test_inside_an_optimizers_step_only_torchs_own_walk_over_its_hooks_goes_on(
    tmp_path: Path,
) -> None:
    """torch iterates over the step hooks while it calls them, so they stay, and do nothing."""
    assert told(tmp_path, "live", str(tmp_path / "nobody"))[0] == "changed []"
