"""Fixed, profile and launch runs: knobs apply from the first iteration; everything is recorded."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiers import slow
from tiny_tuner import CNN, Tuner, run_bare

from autotune.verdict.alike import counted_alike
from autotune.verdict.timing import cost_of_counted
from autotune_trials.agent.core.knob_applier import Knobs
from autotune_trials.agent.loop.metrics import Metrics
from autotune_trials.agent.loop.sample_count import SampleCount
from autotune_trials.protocol.messages import Extent, Hello, KnobChoice, Record, SessionConfig, dump

LOOP = (
    CNN
    + """
count = 0
for epoch in range(10):
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad(); loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        count += 1
        print(count, out.dtype, len(x), len(loader), torch.get_num_threads(), float(loss).hex(), float(norm).hex(), flush=True)
"""
)


def record(tuner: Tuner, source: str = LOOP, mode: str = "fixed", **config: object) -> Record:
    tuner.start(source, mode, **config)  # type: ignore[arg-type]
    hello = tuner.receive()
    assert type(hello).__name__ == "Hello", hello
    message = tuner.receive()
    assert isinstance(message, Record), message
    return message


def rows(tuner: Tuner) -> list[list[str]]:
    assert tuner.process is not None
    tuner.process.kill()  # first, because a job goes on without its tuner
    tuner.close_connection()
    return [line.split() for line in tuner.process.communicate()[0].split("\n")[:-1]]


@pytest.mark.slow
def test_every_iteration_is_recorded_from_the_first(tuner: Tuner) -> None:
    found = record(tuner, steps=24, probe_steps=5)
    lines = rows(tuner)
    assert len(found.window.times_s) == len(found.losses) == len(found.samples_before) == 24
    # the job pauses inside the 24th step
    assert [float(x).hex() for x in found.losses[:23]] == [r[5] for r in lines]
    assert list(found.samples_before) == [16.0 * i for i in range(24)]
    assert len(found.gradient_norms) == len(found.update_norms) == 5
    # norms before clipping
    assert found.gradient_norms == pytest.approx([float.fromhex(r[6]) for r in lines[:5]], rel=1e-5)
    assert all(u > 0 for u in found.update_norms)
    assert sum(found.window.phases_s.values()) == pytest.approx(sum(found.window.times_s))
    each = found.window.phase_times_s
    assert [sum(column) for column in zip(*each.values())] == pytest.approx(found.window.times_s)
    # the first iteration excludes importing torch and building the model
    assert found.window.times_s[0] < 1.0
    assert len(found.window.turnovers_s) == 1 and not found.ended_early
    assert found.window.turnovers_at == (16,) and found.window.epoch_iterations == 16
    assert found.window.away_s == pytest.approx(sum(found.window.turnovers_s), abs=0.05)
    assert found.fingerprint["optimizers"][0]["groups"][0]["lr"] == 1e-3
    assert found.fingerprint["loss_modules"] == ["CrossEntropyLoss(mean)"]


# 8 workers make a batch in 12 ms, the model takes less; 32 are ready after the first iteration
SLOWER_LOADER = """
import time, torch
from torch.utils.data import DataLoader
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, i):
        time.sleep(8 * 0.012)
        return torch.zeros(4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Slow(), batch_size=1, num_workers=8, prefetch_factor=4)
for number, x in enumerate(loader):
    time.sleep(0.008 if number else 0.5)
    model(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_what_the_workers_made_while_the_run_started_is_no_speed(tuner: Tuner) -> None:
    whole = record(tuner, source=SLOWER_LOADER, steps=500).window
    window = replace(whole, times_s=whole.times_s[:240], unmade=whole.unmade[:240])
    later_s = sum(whole.times_s[400:]) / 100  # the queue is used up by then
    assert sum(window.times_s[40:]) / 200 < 0.96 * later_s, "as seen"
    ((_, counted),) = counted_alike([window], later_epochs=True)
    assert 0.97 * later_s < cost_of_counted(counted) * window.samples[0] < 1.1 * later_s


@pytest.mark.parametrize(
    ("fetch_s", "step_s", "behind"), [(0.02, 0.0, (12, 16)), (0.0, 0.01, (0, 4))]
)
def test_workers_do_not_catch_up_because_an_epoch_has_no_more_batches(
    tuner: Tuner, fetch_s: float, step_s: float, behind: tuple[int, int]
) -> None:
    """The last of 60 batches are drawn 16 before the end; only slow workers are still behind."""
    source = (
        SLOWER_LOADER.replace("8 * 0.012", str(fetch_s))
        .replace("0.008 if number else 0.5", str(step_s))
        .replace("100_000", "60")
        .replace("num_workers=8, prefetch_factor=4", "num_workers=2, prefetch_factor=8")
    )
    last = record(tuner, source=source, steps=60).window.unmade[-5:] or (0.0,)
    low, high = behind
    assert low <= min(last) <= max(last) <= high


def test_an_epoch_has_as_many_iterations_as_it_has_steps(tuner: Tuner) -> None:
    accumulated = LOOP.replace("optimizer.step()", "if count % 2: optimizer.step()")
    assert record(tuner, source=accumulated, steps=12).window.epoch_iterations == 8


def test_knobs_hold_from_the_very_first_iteration(tuner: Tuner) -> None:
    knobs = {
        "amp_dtype": "bfloat16",
        "num_workers": 1,
        "batch_size": 32,
        "optimizer_impl": "fused",
        "channels_last": True,
    }
    found = record(tuner, knobs=knobs, steps=10, loader_key="train.py:8#0")
    lines = rows(tuner)
    assert {tuple(r[1:4]) for r in lines} == {("torch.bfloat16", "32", "8")}
    assert found.no_effect == {} and "knob_failures" not in found.notes
    assert set(found.window.samples) == {32.0}
    assert "fused" not in str(found.fingerprint)


KILLS_A_WORKER = """
        if count == 5:
            [worker] = multiprocessing.active_children(); worker.kill(); worker.join()
"""


@pytest.mark.parametrize(
    ("loader", "change", "why"),
    [
        ("", KILLS_A_WORKER, "a DataLoader worker is killed by signal: Killed"),
        (", worker_init_fn=lambda _: torch.manual_seed(0)", "", "the same seeds"),
    ],
    ids=["a worker is killed", "workers would draw alike"],
)
def test_workers_that_the_job_does_not_get_count_as_without_effect(
    tuner: Tuner, loader: str, change: str, why: str
) -> None:
    source = "import multiprocessing\n" + LOOP.replace("shuffle=True", f"shuffle=True{loader}", 1)
    source = source.rstrip("\n") + change
    assert not loader or loader in source
    found = record(
        tuner, source=source, knobs={"num_workers": 1}, steps=16, loader_key="train.py:9#0"
    )
    assert found.no_effect.keys() == {"num_workers"} and why in found.no_effect["num_workers"]
    assert len(found.losses) == 16


def test_fused_kernels_count_steps_in_float32_which_changes_no_training(tuner: Tuner) -> None:
    double = "import torch; torch.set_default_dtype(torch.float64)\n" + LOOP
    own = record(tuner, source=double, steps=5).fingerprint
    rows(tuner)
    fused = record(tuner, source=double, steps=5, knobs={"optimizer_impl": "fused"}).fingerprint
    assert "exp_avg:float64" in own["optimizer_state_dtypes"]
    assert fused == own


def test_a_knob_that_cannot_be_set_is_told(tuner: Tuner) -> None:
    found = record(tuner, knobs={"num_workers": "many"}, steps=5)
    assert "many" in found.no_effect["num_workers"] and not found.idle


def test_a_knob_that_never_acted_is_told_from_one_that_the_job_set_back(tuner: Tuner) -> None:
    source = LOOP.replace("optimizer.step()", "optimizer.step(); torch.set_num_threads(2)")
    knobs = {"intra_op_threads": 1, "non_blocking": True}
    found = record(tuner, source=source, knobs=knobs, steps=8)
    assert set(found.no_effect) == set(knobs) and found.idle == ("non_blocking",)


def test_each_of_several_knobs_that_fail_is_told(tmp_path: Path) -> None:
    choices = (KnobChoice("no_such", 1), KnobChoice("nor_this", 1))
    live: Any = SimpleNamespace(state=SimpleNamespace(stopped=False))
    knobs = Knobs(live, SessionConfig("fixed", str(tmp_path), knobs=choices))
    knobs.hold(final=True)
    assert [f.split(":")[0] for f in knobs.take_failures()] == ["no_such", "nor_this"]
    assert not knobs.failures


def test_a_metric_that_is_no_number_is_left_out() -> None:
    metrics = Metrics(torch, SampleCount())
    for value in (1, torch.tensor([2.0]), [0.1], None, torch.ones(2), torch.tensor(1j), "0.5 m"):
        metrics.metric_reported("lr", value)
    assert [float(value) for _, value in metrics.reported["lr"]] == [1.0, 2.0]


def test_a_window_that_is_to_go_on_is_sent_whole_where_the_job_ends_before(tuner: Tuner) -> None:
    first = record(tuner, source=LOOP.replace("range(10)", "range(1)"), steps=8)
    assert len(first.losses) == len(first.window.times_s) == 8
    assert tuner._connection is not None
    tuner._connection.sendall(dump(Extent(100)))
    second = tuner.receive()
    lengths = {len(second.losses), len(second.window.times_s), len(second.samples_before)}
    assert second.ended_early and lengths == {16}


@pytest.mark.slow
def test_a_job_that_ends_early_is_recorded_all_the_same(tuner: Tuner) -> None:
    found = record(tuner, source=LOOP.replace("range(10)", "range(1)"), steps=100)
    assert found.ended_early and len(found.losses) == 16
    assert tuner.finish()[0] == 0


IN_THREADS = (
    CNN
    + """
import os, threading
def epoch():
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
for _ in range(2):
    thread = threading.Thread(target=epoch)
    thread.start(); thread.join()
os._exit(1)
"""
)


def test_training_in_a_thread_is_recorded_though_its_process_is_killed(tuner: Tuner) -> None:
    first = record(tuner, IN_THREADS, steps=100)
    assert first.so_far and first.ended_early and len(first.losses) == 16
    both = tuner.receive()
    assert isinstance(both, Record) and both.so_far and len(both.losses) == 32
    assert both.losses[:16] == first.losses
    assert both.window.times_s[:16] == first.window.times_s


COUNTS_FIRST = (
    CNN
    + """
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
def count():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    net(torch.zeros(2, 4)).mean().backward()
with torch.device("meta"), FlopCounterMode(display=False):
    count()
with FakeTensorMode():
    count()
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(float(loss).hex(), flush=True)
"""
)


def test_a_backward_that_only_counts_operators_is_no_training(tuner: Tuner) -> None:
    tuner.start(COUNTS_FIRST, "fixed", steps=8)
    hello = tuner.receive()
    assert isinstance(hello, Hello), hello
    assert len(hello.job.models) == 1 and hello.job.backwards_per_step == 1.0
    found = tuner.receive()
    assert isinstance(found, Record)
    assert [float(x).hex() for x in found.losses[:7]] == [row[0] for row in rows(tuner)]


SKIPS_IN_CLOSURE = (
    CNN
    + """
for n in range(40):
    def closure():
        optimizer.zero_grad()
        loss = criterion(model(data.tensors[0][:16]), data.tensors[1][:16])
        if n % 5 == 2: raise ValueError
        loss.backward()
        if n % 5 == 3: raise ValueError
        return loss
    try:
        loss = optimizer.step(closure)
    except ValueError:
        continue
    print(float(loss).hex(), flush=True)
"""
)


def test_after_a_closure_that_raised_the_next_step_has_its_own_loss(tuner: Tuner) -> None:
    found = record(tuner, source=SKIPS_IN_CLOSURE, steps=8)
    seen = [row[0] for row in rows(tuner)][:7]
    assert [float(loss or 0.0).hex() for loss in found.losses[:7]] == seen


LEAVES_OUT_STEPS = (
    CNN
    + """
micro = MICRO
count = attempt = 0
total, fed = 0.0, 0
for epoch in range(10):
    for x, y in loader:
        loss = criterion(model(x), y) / micro
        loss.backward()
        total, fed, count = total + float(loss), fed + len(x), count + 1
        if count % micro:
            continue
        attempt += 1
        if attempt > 3 and attempt % 3 == 0:  # the norm of the gradients was too large
            optimizer.zero_grad()
        else:
            optimizer.step(); optimizer.zero_grad()
            print(total.hex(), fed, flush=True)
        total, fed = 0.0, 0
"""
)


@pytest.mark.parametrize("micro", [1, 2])
def test_what_a_step_that_the_job_leaves_out_was_for_counts_in_no_other(
    tuner: Tuner, micro: int
) -> None:
    found = record(tuner, source=LEAVES_OUT_STEPS.replace("MICRO", str(micro)), steps=12)
    lines = rows(tuner)[:11]
    assert [loss.hex() for loss in found.losses[:11]] == [row[0] for row in lines]
    assert list(found.window.samples[:11]) == [float(row[1]) for row in lines]


SURGERY = (
    CNN
    + """
for epoch in range(10):
    for x, y in loader:
        parts, kept = [criterion(model(x), y), model(x).square().mean()], []
        for part in parts:
            optimizer.zero_grad(); part.backward()
            kept.append([p.grad for p in model.parameters()])
        for p, one, other in zip(model.parameters(), *kept):
            p.grad = one + other
        optimizer.step()
        print((float(parts[0]) + float(parts[1])).hex(), flush=True)
"""
)


def test_gradients_that_are_put_together_later_are_not_taken_for_dropped(tuner: Tuner) -> None:
    """As those of several tasks are in gradient surgery."""
    found = record(tuner, source=SURGERY, steps=8)
    assert [loss.hex() for loss in found.losses[1:7]] == [row[0] for row in rows(tuner)[1:7]]
    assert set(found.window.samples) == {16.0}


def test_each_step_of_an_optimizer_built_for_it_ends_an_iteration(tuner: Tuner) -> None:
    source = LOOP.replace(
        "out = model(x)",
        "optimizer = torch.optim.SGD(model.parameters(), 0.1 / (1 + count)); out = model(x)",
    )
    found = record(tuner, source=source, steps=12, knobs={"optimizer_impl": "foreach"})
    lines = rows(tuner)[:11]
    assert [loss.hex() for loss in found.losses[:11]] == [row[5] for row in lines]
    assert found.notes["in_force"]["optimizers"] == ["foreach"] and not found.no_effect


@pytest.mark.slow
def test_a_job_that_dies_leaves_no_record(tuner: Tuner) -> None:
    tuner.start(
        LOOP.replace("count += 1", "count += 1\n        if count == 8: raise ValueError('mine')"),
        "fixed",
        steps=100,
    )
    assert type(tuner.receive()).__name__ == "Hello"
    assert tuner.receive() is None
    code, _, err = tuner.finish()
    assert code == 1 and "mine" in err


@pytest.mark.slow
def test_the_window_goes_on_until_min_seconds(tuner: Tuner) -> None:
    source = LOOP.replace("range(10)", "range(1000)").replace(
        "count += 1", "count += 1; __import__('time').sleep(0.005)"
    )
    found = record(tuner, source=source, steps=10, min_seconds=0.5, max_steps=10_000)
    assert sum(found.window.times_s) > 0.45 and len(found.losses) > 20


def test_iterations_so_slow_that_time_is_up_first_are_announced_all_the_same(tuner: Tuner) -> None:
    source = LOOP.replace("count += 1", "count += 1; __import__('time').sleep(0.3)")
    tuner.start(source, "fixed", steps=20, max_seconds=0.2)
    assert [type(tuner.receive(30)).__name__ for _ in range(2)] == ["Hello", "Record"]


@pytest.mark.slow
def test_a_slow_job_shows_signs_of_life(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune_trials.protocol.messages import Progress

    often = "__import__('sys').modules['autotune_trials.agent.core.mode'].PROGRESS_S = 0.5"
    source = LOOP.replace("count = 0", f"count = 0; {often}").replace(
        "count += 1", "count += 1; __import__('time').sleep(0.1)"
    )
    tuner.start(source, "fixed", steps=100)
    kinds = []
    monkeypatch.setattr("tiny_tuner.Progress", type("Nothing", (), {}))
    while not kinds or not isinstance(kinds[-1], Progress):
        kinds.append(tuner.receive(30))
    assert [type(k).__name__ for k in kinds] == ["Hello", "Progress"]


@pytest.mark.slow
def test_manual_marks_and_metrics(tuner: Tuner) -> None:
    source = (
        CNN
        + """
import autotune
for i in range(100):
    x, y = data.tensors[0][:8], data.tensors[1][:8]
    for _ in range(3):
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    autotune.metric("accuracy", torch.tensor(i / 100))
    autotune.step(loss=float(i), samples=24)
"""
    )
    found = record(tuner, source=source, steps=10, env={"PYTHONPATH": tuner.python_path()})
    assert list(found.losses) == [float(i) for i in range(10)]
    assert set(found.window.samples) == {24.0}
    assert found.metrics["accuracy"] == pytest.approx([i / 100 for i in range(10)])
    assert len(found.metrics_at["accuracy"]) == 10 and found.metrics_at["accuracy"][3:] == tuple(
        24.0 * i for i in range(3, 10)
    )


SCALED = """
import os
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randn(32, 1)
own = "AUTOTUNE_SESSION" not in os.environ
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=own)
for step in range(20):
    for half in (slice(0, 16), slice(16, 32)):  # accumulation
        with torch.autocast("cpu", dtype=torch.float16, enabled=own):
            loss = (model(x[half]).float() - y[half]).pow(2).mean() / 2
        if step == 5: loss = loss * 1e37
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer); scaler.update()
    optimizer.zero_grad()
    print(float(loss).hex(), float(norm).hex(), int(optimizer.state[model[0].weight]["step"]),
          sum(float(p.double().sum()) for p in model.parameters()).hex(), flush=True)
"""


@pytest.mark.slow
def test_float16_scaling_is_that_of_grad_scaler_to_the_bit(tuner: Tuner) -> None:
    """Accumulation, clipping of unscaled gradients, and an overflowing step that is skipped."""
    expected = run_bare(tuner.directory, SCALED).splitlines()
    found = record(tuner, source=SCALED, knobs={"amp_dtype": "float16"}, steps=20, probe_steps=5)
    lines = [" ".join(r) for r in rows(tuner)]
    assert lines == expected[: len(lines)] and len(lines) >= 19
    norms = [float.fromhex(line.split()[1]) for line in lines[:5]]
    assert list(found.gradient_norms[:5]) == pytest.approx(norms, rel=1e-5), "unscaled"
    assert found.skipped == (5,)
    # the loss is recorded unscaled
    assert math.isfinite(found.losses[4]) and found.losses[5] > 1e30
    assert found.notes["loss_scale"] == 2.0**15 and len(found.gradient_sketch) == 1024


@pytest.mark.slow
def test_the_loss_of_a_job_with_a_scaler_of_its_own_is_recorded_unscaled(tuner: Tuner) -> None:
    source = SCALED.replace('own = "AUTOTUNE_SESSION" not in os.environ', "own, total = True, 0.0")
    source = source.replace(
        "scaler.scale(loss)", "total += loss.item(); scaler.scale(loss)"
    ).replace("print(float(loss)", "print(total")
    totals = [0.0] + [
        float.fromhex(line.split()[0]) for line in run_bare(tuner.directory, source).splitlines()
    ]
    expected = [b - a for a, b in zip(totals[:5], totals[1:6], strict=True)]
    found = record(tuner, source=source, steps=10)
    assert found.fingerprint["scaler"] is True
    assert found.losses[:5] == pytest.approx(expected, rel=1e-6)
    assert found.skipped == (5,), "an iteration that its own scaler skips is one all the same"
    assert all(loss < 100 for i, loss in enumerate(found.losses) if i != 5)


OWN_SCALER = """
import torch
from torch import nn
torch.manual_seed(0)
model, x = nn.Linear(8, 4), torch.randn(16, 8)
optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-3), torch.amp.GradScaler("cpu")
for step in range(30):
    a, b = model(x).square().mean(), model(x).sum().square() * (1e37 if step == 3 else 1e-3)
    optimizer.zero_grad()
    {backward}
    scaler.step(optimizer)
    scaler.update()
    print(float(a + b), flush=True)
"""


@pytest.mark.parametrize("implementation", ["default", slow("fused")])
def test_a_step_that_the_jobs_own_scaler_skips_ends_its_iteration(
    tuner: Tuner, implementation: str
) -> None:
    """Without fused it does not call ``step``, with it it does."""
    source = OWN_SCALER.format(backward="scaler.scale(a + b).backward()")
    knobs = {} if implementation == "default" else {"optimizer_impl": implementation}
    found = record(tuner, source=source, knobs=knobs, steps=10)
    expected = [float(line) for line in run_bare(tuner.directory, source).splitlines()]
    assert found.losses == pytest.approx(expected[:10], rel=1e-4) and found.skipped == (3,)


@pytest.mark.parametrize(
    "backward",
    [
        "(scaler.scale(a) + scaler.scale(b)).backward()",
        slow("p, q = scaler.scale(a), scaler.scale(b); p.backward(); q.backward()"),
        slow("scaler.scale(2 * (a + b)).div(2).backward()"),
        slow("p, q = scaler.scale([a, b]); (p + q).backward()"),
        slow("scaler.scale(a).backward(); b.backward()"),
        "b.backward(); scaler.scale(a).backward()",
    ],
)
def test_losses_are_recorded_unscaled_whichever_of_them_are_scaled(
    tuner: Tuner, backward: str
) -> None:
    source = OWN_SCALER.format(backward=backward).replace("step == 3", "False")
    found = record(tuner, source=source, steps=10)
    expected = [float(line) for line in run_bare(tuner.directory, source).splitlines()]
    assert found.losses == pytest.approx(expected[:10], rel=1e-4)


@pytest.mark.slow
def test_a_loss_scale_that_is_given_is_started_with(tuner: Tuner) -> None:
    found = record(
        tuner,
        source=SCALED.replace('["step"]', '.get("step", 0)'),
        knobs={"amp_dtype": "float16"},
        steps=4,
        loss_scale=2.0**100,
    )
    assert found.skipped[0] == 0 and found.gradient_sketch == ()  # its first step overflows
    assert found.notes["loss_scale"] == 2.0 ** (100 - len(found.skipped))


SEVERAL = (
    CNN
    + """
for i in range(20):
    x, y = data.tensors[0][:8], data.tensors[1][:8]
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    each = nn.functional.cross_entropy(model(x), y, reduction="none")
    each.backward(torch.full((8,), 0.25))
    torch.autograd.backward([criterion(model(x), y), each.detach().requires_grad_()], [None, torch.zeros(8)])
    optimizer.step()
    print((float(loss) + float(each.sum()) / 4 + float(loss)), flush=False)
"""
)


@pytest.mark.slow
def test_several_backward_calls_a_step_are_summed_whatever_they_are_called_on(tuner: Tuner) -> None:
    found = record(tuner, source=SEVERAL, steps=10)
    assert tuner.process is not None
    # flushed before the record was sent
    printed = [float(tuner.process.stdout.readline()) for _ in range(9)]
    assert found.losses[:9] == pytest.approx(printed, rel=1e-5)


DROPPED = (
    CNN
    + """
while True:
    for x, y in loader:
        out = nn.functional.dropout(model(x), 0.3)
        loss = criterion(out + nn.functional.dropout(model(x), 0.1), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
""".replace("model(x)", "both(x)").replace(
        "while True",
        """class Both(nn.Module):
    def __init__(self): super().__init__(); self.inner = model
    def forward(self, x): return nn.functional.dropout(self.inner(x), 0.3)
both = Both()
while True""",
    )
)


@pytest.mark.slow
def test_compiled_dropout_draws_what_eager_draws(
    tuner: Tuner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    eager = record(tuner, source=DROPPED, steps=30, seed=0)
    other = Tuner(tmp_path_factory.mktemp("compiled"))
    try:
        compiled = record(
            other, source=DROPPED, steps=30, seed=0, knobs={"compile_mode": "default"}
        )
    finally:
        other.end()
    assert compiled.notes["unique_graphs"] >= 1 and not compiled.no_effect
    assert compiled.losses == pytest.approx(eager.losses, rel=1e-4)


def test_profile_writes_a_trace_with_phases_and_operators(tuner: Tuner) -> None:
    found = record(tuner, mode="profile", steps=6, profile_steps=3)
    with gzip.open(found.trace) as file:
        trace = json.load(file)
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {
        "autotune::forward",
        "autotune::backward",
        "autotune::optimizer",
        "ProfilerStep#0",
    } <= names
    convolutions = [e["args"] for e in trace["traceEvents"] if e["name"] == "aten::convolution"]
    assert (
        convolutions[0]["Input Dims"][:2] == [[16, 3, 8, 8], [8, 3, 3, 3]]
        and convolutions[0]["Input type"][0] == "float"
    )
    assert not any(event.get("cat") == "python_function" for event in trace["traceEvents"])
    assert len(found.losses) == 6  # the profiled iterations are not timed


@pytest.mark.slow
def test_python_frames_have_a_run_of_their_own(tuner: Tuner) -> None:
    found = record(tuner, mode="profile", steps=6, profile_steps=3, watch_steps=0, stacks=True)
    with gzip.open(found.trace) as file:
        stacks = json.load(file)
    assert {e["name"] for e in stacks["traceEvents"] if e["name"].startswith("ProfilerStep")} >= {
        "ProfilerStep#0",
        "ProfilerStep#2",
    }
    assert any(
        e.get("cat") == "python_function" and "train.py" in e["name"] for e in stacks["traceEvents"]
    )
    # torch's frame tracer may leave a damaged process behind: nothing runs after it
    assert found.evidence is None


@pytest.mark.slow
def test_launch_holds_the_knobs_and_says_nothing(tuner: Tuner) -> None:
    tuner.start(
        LOOP.replace("range(10)", "range(2)"), "launch", {"amp_dtype": "bfloat16", "num_workers": 1}
    )
    code, out, err = tuner.finish()
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert len(lines) == 32 and {r[1] for r in lines} == {"torch.bfloat16"}


SEEDED = """
import random, torch
%s
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward(); optimizer.step()
    print(float(loss).hex(), random.random())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sets", "seed", "same"),
    [("torch.manual_seed(3); random.seed(3)", 0, True), ("torch.manual_seed(3)", 1, False)],
)
def test_seed_zero_is_the_jobs_own_and_others_are_not(
    tuner: Tuner, sets: str, seed: int, same: bool
) -> None:
    bare = run_bare(tuner.directory, SEEDED % sets)
    tuner.start(SEEDED % sets, "launch", seed=seed)
    assert (tuner.finish()[1] == bare) == same


@pytest.mark.slow
def test_a_job_without_seeds_is_repeatable(tuner: Tuner) -> None:
    outputs = []
    for _ in range(2):
        tuner.start(SEEDED % "", "launch", seed=2)
        outputs.append(tuner.finish()[1])
    assert outputs[0] == outputs[1] != ""
