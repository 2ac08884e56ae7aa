"""A training program in which the agent's own LiveJob switches every live knob on and off; prints
what it observes.

test_in_the_agent.py runs it in a separate process because the agent patches torch.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch
from knob_settings import SETTINGS, shown
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from autotune_spaces.base import NotApplicable, Scope
from autotune_spaces.knobs import create, get, names
from autotune_spaces.machine import probe
from autotune_trials.agent.controls.cuda_prefetch import CudaPrefetch
from autotune_trials.agent.controls.malloc_retain import MallocRetain
from autotune_trials.agent.controls.non_blocking import NonBlocking
from autotune_trials.agent.core.agent import Agent
from autotune_trials.agent.facts.job_facts import job_facts
from autotune_trials.protocol.messages import SessionConfig

FROZEN = gc.get_freeze_count()  # not 0 from Python 3.12 on
torch.set_num_threads(2)
agent = Agent(torch, SessionConfig(mode="live", directory=sys.argv[1], warmup_steps=10**9))
agent.install()


seen: dict[str, Any] = {}


class Noise(Dataset):
    """Each sample contains its worker's number (-1: none)."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        info = get_worker_info()
        return torch.full((3, 8, 8), float(index % 7)), -1 if info is None else info.id


model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = iter(DataLoader(Noise(), batch_size=8))


def train(steps: int) -> None:
    for _ in range(steps):
        images, workers = next(batches)
        output = model(images)
        seen.update(batch=len(images), workers=bool((workers >= 0).any()), output=str(output.dtype))
        optimizer.zero_grad()
        output.float().square().mean().backward()
        optimizer.step()


optimizer.register_step_pre_hook(lambda o, *_: seen.update(lr=o.param_groups[0]["lr"]))


def state() -> dict[str, Any]:
    """What the program itself can see after a step."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return {
        **seen,
        "overrides": {
            k: v for k, v in agent.loaders.overrides.values.items() if v != own_loader.get(k)
        },
        "strides": [p.stride() for p in model.parameters()],
        "groups": groups,
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "attention": (torch.backends.cuda.flash_sdp_enabled(), torch._C._get_sdp_priority_order()),
        "non_blocking": agent.live.get(NonBlocking).wanted,
        "prefetch": agent.live.get(CudaPrefetch).prefetch is not None,
        "gc": (gc.get_threshold(), gc.get_freeze_count() > FROZEN),
        "retaining": agent.live.get(MallocRetain).heap.retaining,
        **shown(),
        "mode": agent.live.entries[0].forward.mode,
    }


own_loader: dict[str, Any] = {}
train(4)
facts, machine, report = job_facts(agent), probe(), {}
own_loader = {**vars(facts.loader), "prefetch_factor": 2}
for name in names():
    if (get(name).scope is not Scope.LIVE and not get(name).live_values) or name == "compile_mode":
        continue
    options = {"lr_scaling": "linear"} if name == "batch_size" else {}
    knob, other = create(name, options), (*get(name).live_values, SETTINGS[name].other)[0]
    own, before = knob.current(machine, facts), state()
    try:
        values = list(knob.domain(machine, facts).values)
    except NotApplicable as reason:
        values = str(reason)  # type: ignore[assignment]
    agent.knobs.apply(knob, other)
    train(3)
    changed = state()
    effect = knob.effect(agent.live, other)
    agent.knobs.apply(knob, other)
    train(1)
    again = state()
    agent.knobs.apply(knob, own)
    train(3)
    report[name] = {
        "own": own,
        "values": values,
        "before": before,
        "changed": changed,
        "again": again,
        "after": state(),
        "effect": effect,
    }
print(json.dumps(report))
