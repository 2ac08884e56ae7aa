"""NVTX ranges in real jobs: nested, balanced, and consistent with the phase clock.

A stand-in for the ``nvtx`` package on the job's path records every call; one test uses the real
package.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_tuner import CNN, Tuner, block

STAND_IN = '''
"""Takes the place of the nvtx package and writes down what is called."""
import atexit, json, os, threading
calls = []
class Domain:
    def __init__(self, name): self.name = name
    def get_event_attributes(self, message=None, **more): return message
    def push_range(self, attributes): calls.append(["push", attributes, threading.get_ident(), self.name])
    def pop_range(self): calls.append(["pop", "", threading.get_ident(), self.name])
def get_domain(name=None): return Domain(name)
atexit.register(lambda: json.dump(calls, open(os.environ["NVTX_CALLS"] + f".{os.getpid()}", "w")))
'''
# Ends by itself once the tuner is gone: the calls are written when the interpreter exits.
LOOP = (
    CNN
    + """
count = 0
for epoch in range(3):
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        count += 1
"""
)


def calls_of(tuner: Tuner, folder: Path) -> list[list[Any]]:
    tuner.close_connection()
    assert tuner.finish()[0] == 0, tuner.log
    assert not tuner.log, tuner.log
    (file,) = folder.glob("calls.*")
    return json.loads(file.read_text())


@pytest.fixture
def recorded(tmp_path: Path) -> dict[str, str]:
    """Environment that puts the stand-in before the real package."""
    path = tmp_path / "packages"
    path.mkdir()
    (path / "nvtx.py").write_text(STAND_IN)
    return {
        "PYTHONPATH": f"{Tuner.python_path()}{os.pathsep}{path}",
        "NVTX_CALLS": str(tmp_path / "calls"),
    }


def stacks(calls: list[list[Any]]) -> list[tuple[str, ...]]:
    """The open ranges after every push, outermost first. Fails if a pop closes nothing."""
    opened: list[str] = []
    seen = []
    for kind, name, thread, domain in calls:
        assert domain == "autotune" and thread == calls[0][2]
        if kind == "push":
            opened.append(name)
            seen.append(tuple(opened))
        else:
            assert opened, "a pop too many"
            opened.pop()
    assert not opened, f"left open: {opened}"
    return seen


def test_every_recorded_iteration_is_a_range_with_its_phases_inside(
    tuner: Tuner, tmp_path: Path, recorded: dict[str, str]
) -> None:
    tuner.start(LOOP, "fixed", env=recorded, steps=20)
    tuner.receive()
    assert len(tuner.receive().window.times_s) == 20
    found = stacks(calls_of(tuner, tmp_path))
    assert found.count(("iteration",)) == 20
    for phase in ("data", "forward", "backward", "optimizer"):
        assert found.count(("iteration", phase)) >= 20, phase
    assert {len(s) for s in found} == {1, 2}
    first = found.index(("iteration",))
    within = [s[1] for s in found[first + 1 :][: found[first + 1 :].index(("iteration",))]]
    assert within == ["data", "forward", "backward", "optimizer"]


@pytest.mark.slow
def test_live_blocks_have_them_too(tuner: Tuner, tmp_path: Path, recorded: dict[str, str]) -> None:
    tuner.start(LOOP, "live", env=recorded)
    tuner.receive()
    reports = tuner.measure(block("b", 8))
    assert len(reports[0].window.times_s) == 8
    found = stacks(calls_of(tuner, tmp_path))
    assert found.count(("iteration", "backward")) >= 8


@pytest.mark.slow
def test_launch_draws_nothing(tuner: Tuner, tmp_path: Path, recorded: dict[str, str]) -> None:
    tuner.start(LOOP, "launch", env=recorded)
    assert tuner.finish()[0] == 0
    assert not list(tmp_path.glob("calls.*"))  # the package was not imported


NESTED = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.fails = False
    def forward(self, x):
        y = self.inner(x)
        if self.fails: raise ValueError("mine")
        return y
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = Block(), nn.Linear(8, 2)
        self.again = self.head  # one module under two names
    def forward(self, x):
        return self.head(self.body(x))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(60):
    model.body.fails = i == 14
    try: loss = model(torch.ones(4, 8)).sum()
    except ValueError: loss = model.head(torch.ones(4, 8)).sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()), "hooks left behind"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "names"), [(1, {"body", "head"}), (2, {"body", "head", "body.inner"})]
)
def test_modules_on_request_and_only_while_profiled(
    tuner: Tuner, tmp_path: Path, recorded: dict[str, str], depth: int, names: set[str]
) -> None:
    tuner.start(
        NESTED, "profile", env=recorded, steps=8, watch_steps=2, profile_steps=8, nvtx_modules=depth
    )
    tuner.receive()
    record = tuner.receive()
    # balanced although the 15th iteration's forward raised
    found = stacks(calls_of(tuner, tmp_path))
    modules = [s for s in found if len(s) > 2]
    assert {s[-1] for s in modules} == names and all(
        s[:2] == ("iteration", "forward") for s in modules
    )
    if depth == 2:
        assert ("iteration", "forward", "body", "body.inner") in modules
    assert 8 <= sum(s[-1] == "body" for s in modules) <= 12  # not in timed iterations
    events = json.loads(gzip.decompress(Path(record.trace).read_bytes()))["traceEvents"]
    drawn = {e["name"] for e in events if str(e.get("name", "")).startswith("module::")}
    assert drawn == {f"module::{name}" for name in names}


def test_without_a_tool_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package then returns a dummy, which the agent does not even call."""
    import torch

    from autotune_trials.measure.nvtx import nvtx_ranges

    for name in list(os.environ):
        if name.startswith(("NVTX_INJECTION", "NSYS_")):
            monkeypatch.delenv(name)
    assert nvtx_ranges(torch) is None


def test_without_the_package_torch_draws_what_a_tool_listens_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for torch's extension records its calls: without CUDA there is none."""
    import torch

    from autotune_trials.measure.nvtx import nvtx_ranges

    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert nvtx_ranges(torch) is None
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so")
    if not torch.cuda.is_available():
        assert nvtx_ranges(torch) is None  # torch's functions raise
    extension = SimpleNamespace(
        markA=lambda name: None, rangePushA=calls.append, rangePop=lambda: calls.append("end")
    )
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", extension)
    ranges = nvtx_ranges(torch)
    assert ranges is not None
    ranges.begin_iteration()
    ranges.switch("to_device")
    ranges.enter("layer1")
    ranges.end_iteration()
    assert calls == ["autotune::iteration", "autotune::to-device", "layer1", "end", "end", "end"]


def test_the_real_package_takes_what_the_agent_calls() -> None:
    import nvtx

    from autotune_trials.measure.nvtx import NvtxRanges

    ranges = NvtxRanges(nvtx.get_domain("autotune"))
    for _ in range(3):
        ranges.begin_iteration()
        ranges.switch("forward")
        ranges.enter("layer1")
        ranges.switch("to_device")
        ranges.leave()
        ranges.end_iteration()


def test_a_phase_that_ends_inside_a_module_keeps_the_stack_in_order() -> None:
    from autotune_trials.measure.nvtx import NvtxRanges

    stack: list[str] = []
    shown: list[tuple[str, ...]] = []

    class Domain:
        def get_event_attributes(self, message: str) -> str:
            return message

        def push_range(self, name: str) -> None:
            stack.append(name)
            shown.append(tuple(stack))

        def pop_range(self) -> None:
            stack.pop()

    ranges = NvtxRanges(Domain())
    ranges.begin_iteration()
    ranges.switch("forward")
    ranges.enter("layer1")
    ranges.switch("to_device")
    ranges.switch("forward")
    ranges.leave()
    ranges.switch("other")
    assert stack == ["iteration"]
    assert shown[-4:] == [
        ("iteration", "to-device"),
        ("iteration", "to-device", "layer1"),
        ("iteration", "forward"),
        ("iteration", "forward", "layer1"),
    ]
    ranges.end_iteration()
    assert not stack


@pytest.mark.slow
def test_a_capture_range_that_cannot_be_opened_is_told_and_the_job_goes_on(tuner: Tuner) -> None:
    """cudaProfilerStart raises on a build without CUDA; the record arrives all the same."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    tuner.start(LOOP, "profile", steps=8, watch_steps=0, profile_steps=4, capture=True)
    tuner.receive()
    record = tuner.receive()
    assert len(record.window.times_s) == 8 and record.trace == "" and record.notes["profile"]
    tuner.close_connection()
    assert tuner.finish()[0] == 0
