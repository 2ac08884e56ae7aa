"""What the agent asks a GPU, and when: only the device trained on, and nothing while the job
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
from tiers import slow
from tiny_tuner import CNN, Tuner, block

from autotune_trials.agent.controls.out_of_memory import is_out_of_memory
from autotune_trials.measure.clock import (
    AWAY,
    BACKWARD,
    DATA,
    FORWARD,
    TO_DEVICE,
    TURNOVER,
    DeviceClock,
)
from autotune_trials.protocol.messages import Fault, Hello, Record

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


@pytest.mark.slow
def test_only_the_device_trained_on_is_asked_and_a_blocks_peak_is_its_own(tuner: Tuner) -> None:
    start(tuner, ON_A_DEVICE)
    assert isinstance(tuner.receive(), Hello)
    reports = tuner.measure(block("b", 8), block("c", 8, optimizer_impl="for-loop"), block("b2", 8))
    assert [r.error for r in reports] == [""] * 3
    assert sum(reports[1].window.phases_s.values()) == pytest.approx(
        sum(reports[1].window.times_s), rel=1e-3
    )
    # a copy from CPU to CPU is no transfer to the device
    assert reports[0].window.phases_s["to_device"] == 0.0
    calls = json.loads((tuner.directory / "calls.json").read_text())
    assert {index for _, index, _ in calls} == {1}
    for name in ("empty", "reset"):  # under the block's own settings
        assert [flag for n, _, flag in calls if n == name][:3] == ["None", "False", "None"]


def test_copies_on_a_stream_of_their_own_leave_the_time_line_alone() -> None:
    """A prefetcher copies while another stream computes; its stream's clock may be far behind."""
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


def test_the_end_of_an_epoch_and_what_the_agent_does_are_taken_out_of_the_devices_time() -> None:
    now = [0.0]
    cuda = Cuda()
    cuda.streams[1] = Stream(1, lambda: now[0])
    clock = DeviceClock(SimpleNamespace(cuda=cuda), torch.device("cuda", 1))

    def passes(seconds: float) -> None:
        now[0] += seconds

    clock.switch(DATA)
    passes(1.0)  # wait for the end of the epoch
    clock.note_epoch_end()
    passes(5.0)  # such as an evaluation
    clock.note_epoch_start()
    passes(2.0)  # workers start
    clock.switch(DATA)
    passes(4.0)
    clock.note_first_batch()
    clock.switch(FORWARD)
    passes(8.0)
    clock.switch(DATA)
    passes(0.5)
    clock.leave_out(0.25)
    clock.switch(FORWARD)
    clock.switch(DATA)
    clock.leave_out(0.25)  # the device was still busy
    clock.switch(FORWARD)
    _, spent = clock.cut()
    clock.finish()
    assert (spent[TURNOVER], spent[AWAY], spent[DATA], spent[FORWARD]) == (7.0, 5.0, 0.25, 8.0)


# Each epoch begins with 50 ms on the host. They count on the device's clock unless the device was
# still busy.
EPOCHS = (
    CNN
    + STEP
    + """
import pretend_cuda
from time import perf_counter, sleep
hidden = 0.0
class Order:
    def __len__(self): return 256
    def __iter__(self):
        global hidden
        began = perf_counter(); sleep(0.05); hidden += AT_WORK * (perf_counter() - began)
        return iter(range(256))
loader = DataLoader(data, batch_size=16, sampler=Order())
if PRETENDED:
    cuda = pretend_cuda.install()
    cuda.streams[1].now = lambda: perf_counter() - hidden
while True:
    for x, y in loader: step()
"""
)


@pytest.mark.parametrize(
    ("mode", "pretended", "at_work"),
    [("fixed", 1, 1), ("live", 1, 1), slow("fixed", 1, 0), slow("fixed", 0, 1)],
)
def test_the_end_of_an_epoch_costs_what_the_device_waits(
    tuner: Tuner, mode: str, pretended: int, at_work: int
) -> None:
    source = EPOCHS.replace("AT_WORK", str(at_work)).replace("PRETENDED", str(pretended))
    start(tuner, source, mode=mode, steps=40)
    assert isinstance(tuner.receive(), Hello)
    if mode == "fixed":
        record = tuner.receive()
        assert isinstance(record, Record)
        window = record.window
    else:
        window = tuner.measure(block("b", 40))[0].window
    assert len(window.turnovers_s) >= 2
    # the shortest: a busy machine may delay single ones
    lost_s = min(window.turnovers_s)
    assert lost_s < 0.02 if pretended and at_work else lost_s >= 0.05


STAGED = (
    CNN
    + """
import pretend_cuda
cuda = pretend_cuda.install()
buffer = torch.empty(16, 3, 8, 8)  # pinned, as all is there, and filled anew for every batch
while True:
    for x, y in loader:
        buffer.copy_(x)
        out = model(buffer.to("cuda:1"))
        loss = criterion(out, y.to("cuda:1"))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        assert x.to("cuda:1").equal(buffer)
        print(cuda.not_waited_for[-3:], flush=True)
"""
)


def test_only_batches_of_a_loader_are_copied_without_waiting(tuner: Tuner) -> None:
    start(tuner, STAGED, mode="fixed", knobs={"non_blocking": True}, steps=8)
    assert isinstance(tuner.receive(), Hello)
    record = tuner.receive()
    assert isinstance(record, Record) and dict(record.no_effect) == {}
    assert tuner.process is not None
    tuner.process.kill()
    printed = tuner.process.communicate()[0].splitlines()
    assert set(printed) == {"[False, True, True]"}


@pytest.mark.parametrize("labels", ['y.to("cuda:1", non_blocking=True)', slow("y")])
def test_a_job_without_a_batch_to_copy_that_it_waits_for_is_told(tuner: Tuner, labels: str) -> None:
    source = STAGED.replace('y.to("cuda:1")', labels).replace("assert x", "x = buffer")
    start(tuner, source, mode="fixed", knobs={"non_blocking": True}, steps=8)
    tuner.receive()
    assert "never moves a pinned DataLoader batch" in tuner.receive().no_effect["non_blocking"]


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
    captured = """
out = model(x)
x.to("cpu")
scaled = torch.amp.GradScaler("cpu").scale(criterion(out, y))
assert not scaled.grad_fn.metadata, "nothing is copied"
"""
    source = CAPTURE.format(captured=captured, after="while True: step()")
    start(tuner, source, warmup_steps=10)
    hello = tuner.receive()
    assert isinstance(hello, Hello) and hello.job.own_graphs
    assert [r.error for r in tuner.measure(block("b", 8))] == [""]


def test_a_library_that_finds_no_memory_is_out_of_memory() -> None:
    for text in (
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ):
        assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED"))


def test_a_long_evaluation_holds_two_events() -> None:
    now = [0.0]
    cuda = Cuda()
    cuda.streams[1] = Stream(1, lambda: now[0])
    clock = DeviceClock(SimpleNamespace(cuda=cuda), torch.device("cuda", 1))
    clock.switch(FORWARD)
    clock.switch(AWAY)
    for _ in range(1000):
        now[0] += 1.0
        clock.switch(AWAY)
    assert len(clock._pending) < 5
    now[0] += 2.0
    clock.relabel(DATA)  # the last of them was the next iteration's batch
    clock.switch(FORWARD)
    _, spent = clock.cut()
    clock.finish()
    assert (spent[AWAY], spent[DATA]) == (1000.0, 2.0)
