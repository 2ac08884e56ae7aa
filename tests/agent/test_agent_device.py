"""What the agent asks of a GPU, and when: the device trained on and no other, nothing while the job
captures a graph.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pretend_cuda import Cuda, Stream
from tiny_tuner import CNN, Tuner, block

from autotune_trials.measure.clock import BACKWARD, FORWARD, TO_DEVICE, DeviceClock
from autotune_trials.protocol.messages import Fault, Hello

STEP = """
def step():
    out = model(x)
    loss = criterion(out, y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
ON_A_DEVICE = (
    CNN
    + STEP
    + """
import json, os, pretend_cuda
cuda = pretend_cuda.install(lambda: str(optimizer.param_groups[0]["foreach"]))
for epoch in range(10_000):
    for x, y in loader:
        x = x.to(torch.float64).to("cpu").to(torch.float32)
        step()
        with open("part.json", "w") as file: json.dump(cuda.calls, file)
        os.replace("part.json", "calls.json")
"""
)


def start(tuner: Tuner, source: str, **config: object) -> None:
    shutil.copy(Path(__file__).parent / "pretend_cuda.py", tuner.directory)
    tuner.start(source, **config)  # type: ignore[arg-type]


def test_only_the_device_trained_on_is_asked_and_a_blocks_peak_is_its_own(tuner: Tuner) -> None:
    start(tuner, ON_A_DEVICE)
    assert isinstance(tuner.receive(), Hello)
    reports = tuner.measure(block("b", 8), block("c", 8, optimizer_impl="for-loop"), block("b2", 8))
    assert [r.error for r in reports] == [""] * 3
    assert sum(reports[1].window.phases_s.values()) == pytest.approx(
        sum(reports[1].window.times_s), rel=1e-3
    )
    # from the CPU to the CPU is no way to the device
    assert reports[0].window.phases_s["to_device"] == 0.0
    calls = json.loads((tuner.directory / "calls.json").read_text())
    assert {index for _, index, _ in calls} == {1}
    assert [flag for name, _, flag in calls if name == "reset"][:3] == ["None", "False", "None"]


def test_copies_on_a_stream_of_their_own_leave_the_time_line_alone() -> None:
    """A prefetcher copies while another stream computes, and its stream may be far behind."""
    cuda, compute_s = Cuda(), iter(range(100))
    compute, side = Stream(1, lambda: float(next(compute_s))), Stream(1, lambda: -50.0)
    cuda.streams[1] = compute
    clock = DeviceClock(SimpleNamespace(cuda=cuda), torch.device("cuda", 1))
    for _ in range(2):
        with cuda.stream(side):
            clock.switch(TO_DEVICE)
            clock.switch(FORWARD)
        clock.switch(BACKWARD)
        _, spent = clock.cut()
        clock.finish()
        assert spent[TO_DEVICE] == spent[FORWARD] == spent[BACKWARD] == 1.0 and sum(spent) == 4.0


def test_a_job_that_trains_on_a_stream_of_its_own_is_timed_there() -> None:
    cuda, times = Cuda(), iter(range(100))
    clock = DeviceClock(SimpleNamespace(cuda=cuda), torch.device("cuda", 1))
    with cuda.stream(Stream(1, lambda: float(next(times)))):
        for _ in range(3):
            clock.switch(FORWARD)
            clock.switch(BACKWARD)
            _, spent = clock.cut()
        clock.finish()
    assert sum(spent) == 3.0


CAPTURE = (
    CNN
    + STEP
    + """
import pretend_cuda
cuda = pretend_cuda.install()
x, y = next(iter(loader))
for _ in range(3): step()
graph = torch.cuda.CUDAGraph()
graph.capture_begin()
{captured}
graph.capture_end()
for _ in range(8): graph.replay()
{after}
print("trained", flush=True)
"""
)


def test_a_training_step_in_a_graph_of_the_jobs_own_is_told_and_the_job_goes_on(
    tuner: Tuner,
) -> None:
    start(tuner, CAPTURE.format(captured="step()", after=""), warmup_steps=10)
    fault = tuner.receive()
    assert isinstance(fault, Fault) and fault.unhooked and "CUDA graph" in fault.text
    tuner.close_connection()
    status, printed, _ = tuner.finish()
    assert status == 0 and printed == "trained\n"


def test_a_forward_in_a_graph_of_the_jobs_own_disturbs_nobody(tuner: Tuner) -> None:
    start(tuner, CAPTURE.format(captured="model(x)\nx.to('cpu')", after="while True: step()"))
    assert isinstance(tuner.receive(), Hello)
    assert [r.error for r in tuner.measure(block("b", 8))] == [""]
