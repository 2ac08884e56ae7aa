"""``launch`` measures nothing: iterations accumulate no state, and the settings hold."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bare_runs import run_bare
from safetensors import torch as safetensors
from tiny_tuner import Tuner
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import autotune
from autotune_spaces.knobs import get
from autotune_trials.agent.core.agent import Agent
from autotune_trials.agent.loop.lead_optimizer import SILENT
from autotune_trials.agent.loop.module_discovery import LAUNCH_PATIENCE
from autotune_trials.agent.loop.own_updates import PATIENCE
from autotune_trials.protocol.messages import KnobChoice, SessionConfig


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Agent]:
    """The agent of ``autotune launch`` in this process; it holds autocast and a batch size."""
    knobs = (KnobChoice("amp_dtype", "bfloat16"), KnobChoice("batch_size", 4))
    agent = Agent(torch, SessionConfig("launch", str(tmp_path), "", knobs=knobs))
    agent.install()
    yield agent
    agent.stop()


def train(steps: int) -> list[tuple[torch.dtype, int]]:
    """(dtype of the model's output, samples) of each step; evaluates after every seventh."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(20, 8)), batch_size=2, drop_last=True)
    other = DataLoader(TensorDataset(torch.ones(6, 8)), batch_size=2)
    seen = []
    for (x,) in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
        out = model(x)
        seen.append((out.dtype, len(x)))
        out.float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if len(seen) % 7 == 0:
            with torch.no_grad():
                for (y,) in other:
                    model(y)
            autotune.metric("accuracy", torch.ones(()))
    return seen


def test_settings_hold_and_nothing_piles_up(launched: Agent) -> None:
    seen = train(60)
    assert not launched.state.stopped
    assert seen[1:] == [(torch.bfloat16, 4)] * 59  # the first step shows which loader trains
    left = (
        launched.loss._current,
        launched.loss._steps,
        launched.consumption.batches,
        launched.metrics.reported,
    )
    assert [len(kept) for kept in left] == [0, 0, 0, 0]


def test_what_holds_no_setting_is_taken_back_once_all_are_applied(tmp_path: Path) -> None:
    """A job only pays for hooks that hold a setting. An optimizer built later is picked up, and
    then its hooks are removed as well.
    """
    optimizers = sys.modules["torch.optim.optimizer"]
    backward, hooks = torch.autograd.backward, dict(optimizers._global_optimizer_pre_hooks)
    agent = Agent(
        torch,
        SessionConfig(
            "launch", str(tmp_path), "", knobs=(KnobChoice("optimizer_impl", "foreach"),)
        ),
    )
    agent.install()
    try:
        assert torch.autograd.backward is not backward
        model = torch.nn.Linear(8, 8)

        def train_with(optimizer: torch.optim.Optimizer, watching: bool) -> None:
            assert agent.modules.discovering == watching
            for (x,) in DataLoader(TensorDataset(torch.ones(20, 8)), batch_size=2):
                model(x).mean().backward()
                optimizer.step()
            assert optimizer.param_groups[0]["foreach"] is True

        for watching in (True, False):  # the second time, the model is known
            train_with(torch.optim.SGD(model.parameters(), lr=0.01), watching)
            assert torch.autograd.backward is backward and "_compiled_call_impl" not in vars(model)
            assert optimizers._global_optimizer_pre_hooks == hooks
            assert type(iter(DataLoader(range(4)))).__module__.startswith("torch.")
    finally:
        agent.stop()


def test_an_optimizer_that_never_steps_is_not_waited_for_forever(tmp_path: Path) -> None:
    backward = torch.autograd.backward
    agent = launch(tmp_path, optimizer_impl="foreach")
    try:
        model, unused = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (model, unused)]
        for _ in range(2):
            for _ in range(LAUNCH_PATIENCE):
                assert torch.autograd.backward is not backward
                model(torch.ones(2, 8)).mean().backward()
                optimizers[0].step()
            model(torch.ones(2, 8)).mean().backward()
            assert torch.autograd.backward is backward and "_compiled_call_impl" not in vars(model)
            optimizers.append(torch.optim.SGD(unused.parameters(), lr=0.01))  # another one
    finally:
        agent.stop()


def launch(directory: Path, **knobs: Any) -> Agent:
    choices = tuple(KnobChoice(name, value) for name, value in knobs.items())
    agent = Agent(torch, SessionConfig("launch", str(directory), "", knobs=choices))
    agent.install()
    return agent


@pytest.mark.parametrize("together", [False, True])
def test_a_model_that_comes_later_gets_the_settings_too(tmp_path: Path, together: bool) -> None:
    """Folds, or two stages. ``together``: the second optimizer is built before the first stage."""
    agent = launch(tmp_path, amp_dtype="bfloat16", channels_last=True)
    try:

        def built() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
            model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten())
            return model, torch.optim.SGD(model.parameters(), lr=0.01)

        stages = [built(), built()] if together else [built()]
        for stage in range(2):
            model, optimizer = stages[stage] if stage < len(stages) else built()
            dtypes = []
            for _ in range(SILENT + 10):  # long enough for another optimizer to take the lead
                out = model(torch.ones(2, 3, 8, 8))
                dtypes.append(out.dtype)
                out.float().mean().backward()
                optimizer.step()
            assert set(dtypes) == {torch.bfloat16}
            assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
        assert not agent.modules.discovering and not agent.state.stopped
    finally:
        agent.stop()


def test_a_loader_that_comes_later_is_known_to_those_who_ask(tmp_path: Path) -> None:
    """A job that calls no module is under autocast from its first batch on."""
    agent = launch(tmp_path, amp_dtype="bfloat16")
    try:
        weight = torch.nn.Parameter(torch.ones(8, 8))
        optimizer = torch.optim.SGD([weight], lr=0.01)
        for rows in (40, 60):
            dtypes = []
            for (x,) in DataLoader(TensorDataset(torch.ones(rows, 8)), batch_size=2):
                out = x @ weight
                dtypes.append(out.dtype)
                out.float().mean().backward()
                optimizer.step()
            assert dtypes[3:] == [torch.bfloat16] * (rows // 2 - 3)
    finally:
        agent.stop()


def test_settings_that_are_lost_are_told(
    launched: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    train(20)
    for _ in range(2):  # once settled, no iteration ends
        launched.loop.fail_knob("compile_mode: no compiler here")
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "compile_mode: no compiler here" in told[0]
    assert told[0].startswith("autotune: a setting could not be applied")

    def broken(frame: Any) -> None:
        raise ZeroDivisionError("planted")

    launched.live.optimizer_built = broken  # type: ignore[method-assign,assignment]
    launched.events._renew()
    assert train(5)[-1] == (torch.float32, 2) and launched.state.stopped
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "without its tuned settings" in told[0]


def test_a_job_whose_updates_are_not_seen_keeps_its_settings(tmp_path: Path) -> None:
    agent = launch(tmp_path, amp_dtype="bfloat16")
    try:
        model = torch.nn.Linear(8, 8)
        for _ in range(PATIENCE + 5):
            out = model(torch.ones(2, 8))
            out.float().mean().backward()
        assert out.dtype is torch.bfloat16 and not agent.state.stopped
    finally:
        agent.stop()


@pytest.mark.slow
def test_a_setting_that_fails_at_import_does_not_cost_the_others(tuner: Tuner) -> None:
    source = """
import autotune_spaces.knobs.cudnn_benchmark as module
def broken(self, torch, environ): raise RuntimeError("planted")
module.CudnnBenchmark.at_import = broken
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    out = model(torch.ones(2, 8))
    out.float().sum().backward(); optimizer.step()
print(out.dtype)
"""
    variables = get("cudnn_benchmark").environment(True)
    tuner.start(source, "launch", {"amp_dtype": "bfloat16"}, env=variables)
    code, out, err = tuner.finish()
    assert (code, out.split()) == (0, ["torch.bfloat16"]), err
    assert err.startswith("autotune: a setting could not be applied") and "planted" in err


def test_an_agent_that_cannot_start_says_so(tuner: Tuner) -> None:
    source = "import sys; sys.modules['autotune_trials.agent.core.agent'] = None; import torch"
    tuner.start(source, "launch", {"amp_dtype": "bfloat16"})
    code, _, err = tuner.finish()
    assert code == 0 and err.startswith("autotune: the job runs without its tuned settings (")


class Stream(IterableDataset):
    """Every worker would deliver all items."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.ones(20, 8))


def train_over(loader: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
    """The number of samples of each step of an epoch."""
    sizes = []
    for batch in loader:
        x = batch[0] if isinstance(batch, (list, tuple)) else batch
        sizes.append(len(x))
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    return sizes


def test_a_stream_that_does_not_share_its_data_out_gets_no_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The knob was proven on the first stage's dataset; in the second, each worker would read
    everything.
    """
    agent = launch(tmp_path, num_workers=2)
    try:
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        first = iter(DataLoader(TensorDataset(torch.ones(20, 8)), batch_size=2))
        train_over(first, model, optimizer)
        assert first.settings.num_workers == 2
        stream = DataLoader(Stream(), batch_size=2)
        for _ in range(2):
            assert train_over(stream, model, optimizer) == [2] * 10
        told = capsys.readouterr().err
        assert told.count("every worker would read every sample") == 1 and "num_workers=2" in told
    finally:
        agent.stop()


class Shared(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        return iter(torch.ones(20 if worker is None else 20 // worker.num_workers, 8))


def test_a_stream_that_is_not_recognized_is_switched_at_its_next_epoch_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script was edited above its DataLoader since it was tuned."""
    agent = launch(tmp_path, num_workers=2)
    try:
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        stream = DataLoader(Shared(), batch_size=2)
        used = []
        for _ in range(2):
            running = iter(stream)
            assert train_over(running, model, optimizer) == [2] * 10
            used.append(running.settings.num_workers)
        assert used == [0, 2]
        told = capsys.readouterr().err
        assert told.count("until its next epoch") == 1 and "num_workers=2" in told
    finally:
        agent.stop()


def first_stage(rows: int) -> Any:
    return DataLoader(TensorDataset(torch.ones(rows, 8)), batch_size=2)


def test_a_batch_size_is_for_the_loader_it_was_found_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loader it was found for has the new length from the start; a later stage with another
    batch size keeps its batches and its learning rate.
    """
    key = f"test_agent_launched.py:{first_stage.__code__.co_firstlineno + 1}#0"
    options = {"lr_scaling": "linear", "own_batch_size": 2}
    knobs = (KnobChoice("batch_size", 4, options),)
    agent = Agent(torch, SessionConfig("launch", str(tmp_path), "", knobs=knobs, loader_key=key))
    agent.install()
    rates = []
    try:
        loader = first_stage(40)
        assert len(loader) == 10, "a schedule asks before the first epoch"
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer.register_step_pre_hook(
            lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
        )
        assert train_over(loader, model, optimizer) == [4] * 10
        assert rates == pytest.approx([0.02] * 10)
        rates.clear()
        other = DataLoader(TensorDataset(torch.ones(10, 8)), batch_size=1)
        assert train_over(other, model, optimizer) == [1] * 10
        assert rates[3:] == pytest.approx([0.01] * 7)
        assert "tuned for a loader with batch_size=2" in capsys.readouterr().err
    finally:
        agent.stop()


def test_a_setting_that_did_nothing_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings made in the job, and settings that its process was started with."""
    threads = torch.get_num_threads()
    config = SessionConfig(
        "launch",
        str(tmp_path),
        "",
        knobs=(KnobChoice("intra_op_threads", 1), KnobChoice("amp_dtype", "bfloat16")),
        process_knobs=(KnobChoice("cuda_alloc_conf", "expandable_segments:True"),),
    )
    agent = Agent(torch, config)
    agent.install()
    try:
        model = torch.nn.Linear(8, 8)
        torch.set_num_threads(2)  # the job's own setting
        for _ in range(2):
            loader = DataLoader(TensorDataset(torch.ones(20, 8)), batch_size=2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for (x,) in loader:
                torch.set_num_threads(2)
                model(x).float().mean().backward()
                optimizer.step()
        told = capsys.readouterr().err.splitlines()
        assert [line.partition("(")[2].partition(":")[0] for line in told] == [
            "intra_op_threads",
            "cuda_alloc_conf",
        ], told
        assert "set the number of threads back to 2" in told[0]
    finally:
        agent.stop()
        torch.set_num_threads(threads)


def test_a_process_that_does_not_train_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune_trials.agent.loop.module_discovery.LAUNCH_PATIENCE", 20)
    agent = launch(tmp_path, amp_dtype="bfloat16")
    try:
        model = torch.nn.Linear(8, 8).eval()
        with torch.no_grad():
            for _ in range(30):
                model(torch.ones(2, 8))
        assert not agent.modules.discovering
        optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01)  # now it does train
        out = model(torch.ones(2, 8))
        out.float().mean().backward()
        optimizer.step()
        assert out.dtype == torch.bfloat16
    finally:
        agent.stop()


class Scriptable(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x)


def test_a_model_is_scripted_as_without_us(launched: Agent) -> None:
    model = Scriptable()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        model(torch.ones(2, 8)).float().mean().backward()
        optimizer.step()
    assert "_compiled_call_impl" in vars(model), "or this test shows nothing"
    scripted = torch.jit.script(model)
    assert torch.equal(scripted(torch.ones(2, 8)), model.forward(torch.ones(2, 8)))
    assert "_compiled_call_impl" in vars(model)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return factor(x)

    @torch.jit.script
    def factor(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    # the names that a function uses are those where it is scripted
    assert torch.jit.script(twice)(torch.ones(1)) == 2


def test_weights_that_an_inner_loop_writes_by_data_are_cast_anew(launched: Agent) -> None:
    """First-order MAML: ``p.data`` counts no version, the gradients are taken by autograd.grad."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(2, 8)
    for _ in range(4):
        kept = [p.detach().clone() for p in model.parameters()]
        losses = []
        for _ in range(3):
            loss = model(x).float().square().mean()
            losses.append(loss.item())
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for p, g in zip(model.parameters(), gradients, strict=True):
                p.data -= 0.5 * g
        model(x).float().square().mean().backward()
        for p, own in zip(model.parameters(), kept, strict=True):
            p.data.copy_(own)
        optimizer.step()
        optimizer.zero_grad()
    assert launched.state.iterations == 4
    assert losses[0] > 1.05 * losses[1] > 1.05 * losses[2]


def test_a_function_that_the_job_compiles_is_traced_as_without_us(tuner: Tuner) -> None:
    """``fullgraph`` raises an error if dynamo meets code of ours."""
    source = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
@torch.compile(fullgraph=True, backend="eager")
def loss_of(model, x):
    return model(x).square().mean()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    loss_of(model, torch.randn(4, 8)).backward()
    optimizer.step()
print("trained")
"""
    tuner.start(source, "launch", {"optimizer_impl": "foreach"})
    code, out, err = tuner.finish()
    assert (code, out.split()) == (0, ["trained"]), err


COMPILED_STEP = """
import torch
import torch._dynamo.utils as dynamo
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
@torch.compile(backend="eager")
def train_step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(80, 8)), 4):
    train_step(x)
print(dynamo.counters["stats"]["unique_graphs"])
"""


@pytest.mark.parametrize("mode", ["launch", "fixed"])
def test_a_compiled_training_step_is_compiled_as_without_us(
    mode: str, tuner: Tuner, tmp_path: Path
) -> None:
    """Dynamo calls our hooks while it compiles the step's frames, and would compile ours, too."""
    (tmp_path / "train.py").write_text(COMPILED_STEP)
    without_us = run_bare(tmp_path)
    tuner.start(COMPILED_STEP, mode, {"gc": "freeze"})
    code, out, err = tuner.finish()
    assert (code, out) == (0, without_us), err
    assert "does not know how to trace" not in err


class Probing(torch.nn.Module):
    """Calls a part of itself to learn a size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())
        self.head = torch.nn.Linear(self.body(torch.zeros(1, 1, 8, 8)).shape[1], 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def test_autocast_holds_in_the_training_loop_only(launched: Agent) -> None:
    model = Probing()
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32, "in a constructor"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(20, 1, 8, 8)), batch_size=2)
    seen = []

    def epoch(stop_after: int) -> None:
        for (x,) in loader:
            out = model(x)
            seen.append(out.dtype)
            if len(seen) == stop_after:
                return  # as on a loss that is not finite
            out.float().mean().backward()
            optimizer.step()

    epoch(stop_after=4)
    assert seen[1:] == [torch.bfloat16] * 3
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32, "after an early stop"


def test_channels_last_leaves_what_the_job_keeps_of_its_weights_and_evaluates(
    tmp_path: Path,
) -> None:
    """A state dict that is made once, safetensors, and ``view`` in a metric."""
    config = SessionConfig("launch", str(tmp_path), "", knobs=(KnobChoice("channels_last", True),))
    agent = Agent(torch, config)
    agent.install()
    try:
        kept, free = (torch.nn.Conv2d(3, 8, 3, padding=1) for _ in range(2))
        alias = kept.state_dict()
        for model in (kept, free):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            for _ in range(6):
                optimizer.zero_grad()
                model(torch.randn(2, 3, 8, 8)).square().mean().backward()
                optimizer.step()
        assert torch.equal(alias["weight"], kept.weight), "its checkpoints follow the training"
        assert not free.weight.is_contiguous(), "the setting holds"
        safetensors.save_file(free.state_dict(), tmp_path / "weights")
        assert torch.equal(safetensors.load_file(tmp_path / "weights")["weight"], free.weight)
        free.eval()
        free(torch.randn(2, 3, 8, 8)).view(-1)
    finally:
        agent.stop()
    assert free.weight.is_contiguous()
