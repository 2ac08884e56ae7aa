"""Unit tests of settling, the phase clock and the loss meter."""

from __future__ import annotations

import math
import platform
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune_trials.agent.core.iteration import Iteration
from autotune_trials.agent.core.settling import AFTER_DRAIN, LockstepSettling, Settling
from autotune_trials.agent.core.window_recorder import WindowRecorder
from autotune_trials.agent.dataloader.reader_meter import Spent
from autotune_trials.measure import clock as phases
from autotune_trials.measure.clock import PhaseClock
from autotune_trials.measure.machine_load import Snapshot, between, snapshot
from autotune_trials.measure.memory import forget_peak, peak_gib
from autotune_trials.protocol.messages import Block


def settle_at(
    times: list[float], queue: int = 0, seconds: float = 0.0, paused_s: float = 0.0, **limits: float
) -> tuple[int, bool]:
    """(iterations until settled, whether on evidence) if iterations take ``times``."""
    settling = Settling(Block("b", (), 10, **limits), queue, paused_s)  # type: ignore[arg-type]
    drains.clear()
    for count, time_s in enumerate(times, 1):
        settling.add(time_s)
        if settling.drain_due():
            drains.append(count)
            settling.drained()
        elif settling.done(seconds):
            return count, settling.settled
    return len(times), False


drains: list[int] = []  # iterations after which settle_at saw the queue drained


def test_steady_times_settle_as_soon_as_two_groups_are_there() -> None:
    assert settle_at([1.0] * 50) == (8, True)
    assert settle_at([1.0] * 50, min_settle=20) == (20, True)


def test_falling_times_are_waited_for() -> None:
    falling = [8.0 * 0.9**i + 1 for i in range(100)]
    count, settled = settle_at(falling)
    assert settled and count > 20


def test_a_stall_starts_the_wait_anew_and_the_queue_is_emptied_first() -> None:
    times = [1.0] * 4 + [60.0] + [0.5] * 10 + [1.0] * 40
    assert settle_at(times)[0] == 5 + 8 and drains == []
    times = [1.0] * 4 + [60.0] + [1.0] * 40
    assert settle_at(times, queue=20) == (5 + 4 + 1 + AFTER_DRAIN + 8, True) and drains == [9]


def test_every_stall_is_followed_by_a_drain() -> None:
    times = [1.0] * 4 + [60.0] + [1.0] * 10 + [60.0] + [1.0] * 40
    count, settled = settle_at(times, queue=20)
    assert settled and drains == [9, 20] and count == 20 + 1 + AFTER_DRAIN + 8


def test_a_pause_before_the_block_fills_the_queue_as_well() -> None:
    assert settle_at([1.0] * 50, queue=4, paused_s=3.0)[
        0
    ] == 4 + 1 + AFTER_DRAIN + 8 and drains == [4]
    # a pause shorter than one batch
    assert settle_at([1.0] * 50, queue=4, paused_s=0.5)[0] == 8 and drains == []
    assert settle_at([1.0] * 50, queue=0, paused_s=3.0)[0] == 8 and drains == []


def test_evaluations_are_followed_by_a_drain_and_do_not_keep_a_block_from_settling() -> None:
    settling = Settling(Block("b", (), 10), 8)
    for count in range(1, 100):
        if count % 10 == 0:
            settling.pause()
            assert settling.drain_due()  # at once: there is nothing to wait for
            settling.drained()
        else:
            settling.add(1.0)
            assert not settling.drain_due()
            if count > 10 and settling.done(0.0):
                break
    # 10 before the first pause, 4 left out, 5 that count, 20 the second, 4 left out, 3 that count
    assert settling.settled and count == 27

    queueless = Settling(Block("b", (), 10), 0)
    queueless.pause()
    assert not queueless.drain_due()


def test_times_that_never_level_end_unsettled() -> None:
    zigzag = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0] * 10
    wild = [t for i, t in enumerate(zigzag) if i % 8 in (0, 4)] * 10
    assert settle_at([2.0**i for i in range(60)], max_settle=30) == (30, False)
    assert settle_at(wild, max_settle=6) == (6, False)


def test_a_block_out_of_time_stops_settling() -> None:
    assert settle_at([2.0**i for i in range(60)], seconds=100.0, max_seconds=60.0) == (2, False)


def test_ranks_settle_for_the_same_count_whatever_their_times() -> None:
    for queue in (0, 16):
        settling = LockstepSettling(Block("b", (), 10, min_settle=5), queue)
        seen = []
        for i in range(5 + 1 + AFTER_DRAIN + 4):
            settling.add(float(i * i))
            seen.append("drain" if settling.drain_due() else settling.done(1e9))
            if seen[-1] == "drain":
                settling.drained()
        assert seen == [False] * 4 + ["drain"] + [False] * 7 + [True]


def test_phases_add_up_to_the_iteration() -> None:
    start = time.perf_counter()
    clock = PhaseClock()
    for phase in (phases.DATA, phases.FORWARD, phases.BACKWARD, phases.OPTIMIZER):
        clock.switch(phase)
        time.sleep(0.01)
    spent, _ = clock.cut()
    assert sum(spent) <= time.perf_counter() - start
    assert all(spent[p] >= 0.0099 for p in range(5) if p != phases.TO_DEVICE)
    clock.switch(phases.DATA)
    time.sleep(0.01)
    clock.relabel(phases.AWAY)  # it was the wait for the end of an epoch
    spent, _ = clock.cut()
    assert spent[phases.DATA] == 0.0 and spent[phases.AWAY] >= 0.01


def test_a_stretch_is_taken_back_when_it_turns_out_to_be_none_of_training() -> None:
    clock = PhaseClock()
    clock.switch(phases.DATA)
    time.sleep(0.01)
    clock.switch(phases.FORWARD)
    mark = clock.mark()
    for phase in (phases.DATA, phases.FORWARD, phases.BACKWARD):
        time.sleep(0.01)
        clock.switch(phase)
    clock.take_back(mark)
    time.sleep(0.01)
    spent, _ = clock.cut()
    assert spent[phases.FORWARD] == 0.0 and all(
        spent[p] >= 0.01 for p in (phases.DATA, phases.BACKWARD)
    )
    assert spent[phases.AWAY] >= 0.03
    clock.switch(phases.DATA)
    time.sleep(0.01)
    clock.switch(phases.FORWARD)
    clock.take_back(mark)  # the mark belongs to the iteration before
    again, _ = clock.cut()
    assert again[phases.DATA] == 0.0 and again[phases.AWAY] >= 0.01
    assert spent[phases.DATA] >= 0.01


def test_own_work_is_not_foreign_load() -> None:
    start = snapshot()
    begun = time.process_time()
    while time.process_time() - begun < 0.4:
        pass
    end = snapshot()
    assert end.session_s - start.session_s > 0.2
    assert between((start, end)).foreign_load <= (end.busy_s - start.busy_s - 0.2) / (
        end.at_s - start.at_s
    )


def test_what_happens_between_two_stretches_is_no_load_of_the_window() -> None:
    def at(at_s: float, pressure_s: float, busy_s: float, session_s: float) -> Snapshot:
        return Snapshot(at_s, pressure_s, busy_s, session_s)

    first = at(0, 0, 10, 1), at(2, 0.5, 12, 3)
    second = at(7, 5.0, 20, 3), at(9, 5.5, 23, 5)
    load = between(first, second)
    assert (load.cpu_pressure, load.foreign_load, load.session_load) == (0.25, 0.25, 1.0)


def test_loss_meter_sums_scalars_and_knows_what_is_none() -> None:
    import torch

    from autotune_trials.agent.loop.loss_meter import LossMeter

    meter = LossMeter(torch)
    meter.add(torch.tensor(1.5))
    meter.add([torch.tensor(0.25), torch.ones(3)])
    meter.end_step()
    meter.add(torch.ones(2))
    meter.end_step()
    meter.add(torch.tensor(math.inf))
    meter.add(torch.tensor(-math.inf))
    meter.end_step()
    first, second, third = meter.values()
    assert first == 1.75 and second is None and third is not None and math.isnan(third)


def test_the_loss_of_a_tensor_with_a_gradient_is_what_backward_differentiates() -> None:
    import torch

    from autotune_trials.agent.loop.loss_meter import LossMeter

    meter, x = LossMeter(torch), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    meter.add(x * 2, torch.tensor([1.0, 0.5, 0.0]))
    meter.end_step()
    meter.add([x.sum(), x * 2], [None, torch.ones(3)])
    meter.end_step()
    meter.add(x.sum(), torch.tensor(0.5))
    meter.end_step()
    meter.add(torch.complex(x, x), torch.complex(x, x))
    meter.end_step()
    assert meter.values() == [4.0, 6.0 + 12.0, 3.0, None]


def parameters(shapes: list[tuple[int, ...]], scale: float = 1.0, seed: int = 0) -> list:
    import torch

    generator, made = torch.Generator().manual_seed(seed), []
    for shape in shapes:
        parameter = torch.nn.Parameter(torch.zeros(shape))
        parameter.grad = scale * torch.randn(shape, generator=generator)
        made.append(parameter)
    return made


def sketch_of(found: list) -> list[float]:
    import torch

    from autotune_trials.agent.facts.gradient_probe import GradientSketch

    sketch = GradientSketch(torch, True)
    sketch.take(found)
    return list(sketch.values())


def distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


@pytest.mark.parametrize(
    "shapes", [[(300, 1024), (1024,)], [(2200, 2048)]], ids=["whole", "sampled"]
)
def test_a_sketch_tells_how_far_two_gradients_lie_apart(shapes: list[tuple[int, ...]]) -> None:
    import torch

    one, other = parameters(shapes), parameters(shapes)
    state = torch.get_rng_state()
    norm = math.sqrt(sum(float(p.grad.pow(2).sum()) for p in one))
    share = min(1.0, 2**22 / sum(p.numel() for p in one))
    for p, noise in zip(other, parameters(shapes, scale=0.01, seed=1), strict=True):
        p.grad += noise.grad
    a, b = sketch_of(one), sketch_of(other)
    assert len(a) == 1024 and torch.equal(torch.get_rng_state(), state)
    whole = math.sqrt(sum(x * x for x in a))
    assert whole == pytest.approx(norm * math.sqrt(share if share == 1 else 1 / 3), rel=0.1)
    assert distance(a, b) / whole == pytest.approx(0.01, rel=0.1)


def test_a_hot_column_does_not_hide_the_rest_of_the_gradient() -> None:
    """Buckets are drawn again for every row: one feature must not fall into the same bucket in all
    rows.
    """
    (p,) = parameters([(400, 1024)])
    p.grad[:, 7] = 100.0
    a = sketch_of([p])
    p.grad[:, 7] = -100.0
    b = sketch_of([p])
    assert distance(a, b) == pytest.approx(200.0 * math.sqrt(400), rel=0.1)


def test_a_gradient_in_channels_last_is_sketched_like_any_other() -> None:
    import torch

    (p,) = parameters([(8, 4, 3, 3)])
    plain = sketch_of([p])
    p.grad = p.grad.to(memory_format=torch.channels_last)
    assert plain and sketch_of([p]) == pytest.approx(plain)


def test_sparse_and_unusual_gradients_are_left_out() -> None:
    import torch

    table = torch.nn.Embedding(2000, 16, sparse=True)
    (table(torch.tensor([3, 1999, 3])) * torch.arange(16)).sum().backward()

    class Odd(torch.Tensor):
        pass

    strange, plain = torch.nn.Parameter(torch.zeros(4)), parameters([(4,)])[0]
    strange.grad = torch.ones(4).as_subclass(Odd)
    alone = sketch_of([torch.nn.Parameter(torch.zeros(4)), plain])
    assert sketch_of([strange, plain]) == alone != []
    assert sketch_of([table.weight, plain]) == alone
    plain.grad[0] = math.inf
    assert sketch_of([plain]) == [] and sketch_of([torch.nn.Parameter(torch.zeros(4))]) == []


def test_a_probe_that_cannot_measure_gives_up_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from autotune_trials.agent.facts.gradient_probe import NormProbe

    probe, (parameter,) = NormProbe(torch, 8), parameters([(4,)])
    monkeypatch.setattr(probe, "_norm", lambda tensors: 1 / 0)
    probe.after_backward([parameter])
    assert probe.left == 0 and "ZeroDivisionError" in probe.failure and probe.norms() == ((), ())


def test_a_failed_sketch_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from autotune_trials.agent.facts.gradient_probe import GradientSketch

    sketch, found = GradientSketch(torch, True), parameters([(4,)])
    with monkeypatch.context() as patched:
        patched.setattr(sketch, "_add", lambda *_: 1 / 0)
        sketch.take(found)
    assert sketch.values() == () and "ZeroDivisionError" in sketch.failure
    sketch.take(found)
    assert sketch.values() and not sketch.failure


@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_of_a_large_model_the_probe_keeps_a_sample(layout: str) -> None:
    import torch

    from autotune_trials.agent.facts.gradient_probe import SKETCHED, NormProbe

    model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.Conv2d(256, 512, 3))
    model.to(memory_format=getattr(torch, layout))
    before = [p.detach().clone() for p in model.parameters()]
    probe, optimizer = NormProbe(torch, 1), torch.optim.SGD(model.parameters(), lr=1.0)
    torch.manual_seed(0)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    probe.before_step(optimizer)
    assert sum(copied.numel() for _, copied in probe._before) < 1.1 * SKETCHED
    optimizer.step()
    probe.after_step()
    probe.end_step()
    _, (update,) = probe.norms()
    true = (
        sum(
            float((p.detach() - b).square().sum())
            for p, b in zip(model.parameters(), before, strict=True)
        )
        ** 0.5
    )
    assert update == pytest.approx(true, rel=2e-3)


LEAVES_THE_HEAP = """\
import ctypes, torch
from autotune_trials.agent.facts.gradient_probe import GradientSketch, NormProbe

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

def is_mapped(block):  # bit 1 of the size before it: the block came from mmap
    return bool(ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 2)

float32, bfloat16, last = torch.float32, torch.bfloat16, torch.channels_last
made = [((1024, 1024), float32, torch.contiguous_format), ((256, 64, 8, 8), float32, last), ((1024, 1024), bfloat16, torch.contiguous_format)]
parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape, dtype, _ in made]
for p, (_, _, layout) in zip(parameters, made):
    p.grad = torch.empty_like(p, memory_format=layout).fill_(1.0)
optimizer = torch.optim.SGD(parameters, lr=1.0)
probe, sketch = NormProbe(torch, 2), GradientSketch(torch, True)
probe.after_backward(parameters)
sketch.take(parameters)
probe.before_step(optimizer)
with torch.no_grad():
    for p in parameters:
        p -= p.grad
probe.after_step()
probe.end_step()
(gradient,), (update,) = probe.norms()
expected = sum(p.numel() for p in parameters) ** 0.5
assert abs(gradient / expected - 1) < 1e-3 and abs(update / expected - 1) < 1e-3, (gradient, update, expected)
assert sketch.values()
assert is_mapped(libc.malloc(1 << 20)), "a megabyte still gets a mapping of its own"
torch.zeros(1 << 21).clone()
assert not is_mapped(libc.malloc(1 << 20)), "as after any large block that was freed"
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's thresholds")
def test_the_probes_leave_the_jobs_heap_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES_THE_HEAP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_memory_under_an_allocator_that_keeps_no_count_is_what_the_device_has_in_use() -> None:
    def no_count(device: Any) -> int:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    cuda = SimpleNamespace(
        reset_peak_memory_stats=no_count,
        max_memory_reserved=no_count,
        mem_get_info=lambda device: (6 * 2**30, 8 * 2**30),
    )
    torch: Any = SimpleNamespace(cuda=cuda)
    forget_peak(torch, "cuda:0")
    assert peak_gib(torch, "cuda:0") == 2.0


def test_memory_that_was_given_back_before_a_window_does_not_count() -> None:
    reserved = {"now": 30 * 2**30, "peak": 75 * 2**30}  # cuDNN has benchmarked its algorithms
    cuda = SimpleNamespace(
        reset_peak_memory_stats=lambda device: reserved.update(peak=reserved["now"]),
        max_memory_reserved=lambda device: reserved["peak"],
    )
    loaders: Any = SimpleNamespace(
        reader_spent=Spent, settings_in_force=lambda: None, epoch_iterations=lambda: None
    )
    window = WindowRecorder(
        SimpleNamespace(cuda=cuda), "cuda:0", loaders, lambda: None, keep_interrupted=True
    )
    window.open()
    assert window.close().peak_memory_gib == 30.0


@pytest.mark.parametrize(
    ("drawn", "epoch"),
    [
        ([min(4 * n + 128, 240) for n in range(1, 61)], 60),  # 4 an iteration, a queue of 128
        ([10 * (n // 10 + 1) for n in range(60)], 240),  # one an iteration, ten at a time
        ([240] * 60, 240),
    ],
    ids=["gradients are accumulated", "batches are drawn in advance", "all at once"],
)
def test_batches_of_an_iteration_are_told_from_batches_drawn_in_advance(
    drawn: list[int], epoch: int
) -> None:
    left = iter(drawn)
    source: Any = SimpleNamespace(
        reader_spent=Spent,
        settings_in_force=lambda: None,
        epoch_iterations=lambda: 240,
        batches_drawn=lambda: (next(left), None),
    )
    recorder = WindowRecorder(torch, None, source, lambda: None, keep_interrupted=True)
    recorder.open()
    for _ in drawn:
        iteration = Iteration()
        iteration.spent = [0.0] * len(phases.NAMES)
        recorder.add(iteration)
    assert recorder.close().epoch_iterations == epoch
