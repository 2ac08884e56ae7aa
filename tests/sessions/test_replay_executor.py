"""The replay executor answers according to its table, always the same for the same seed."""

from __future__ import annotations

import math
import statistics

import pytest
from replay import ReplayExecutor, ReplayTable

from autotune.executors.base import FixedRun, SessionFailed
from autotune_spaces.codec import decode
from autotune_trials.protocol.messages import PHASES, Block, KnobChoice

TABLE = {
    "cost_s": 0.002,
    "samples": 32,
    "noise": 0.05,
    "block_noise": 0.01,
    "factors": {
        "num_workers": {"2": 0.5},
        "amp_dtype": {"bfloat16": 0.8},
        "batch_size": {"64": 0.9},
    },
    "entries": [
        {"config": {"batch_size": 512}, "fails": "oom: CUDA out of memory"},
        {"config": {"num_workers": 2, "amp_dtype": "bfloat16"}, "cost_s": 0.0007},
        {"config": {"num_workers": 9}, "fails": "hang: no sign of progress"},
    ],
    "loss": {"changed_by": {"amp_dtype": {"float16": 0.1}}},
    "machine": {"cores": 4},
    "otherwise": 1.0,
}


@pytest.fixture
def table() -> ReplayTable:
    return decode(ReplayTable, TABLE)


def block(n: int = 200, **config) -> Block:
    return Block("b", tuple(KnobChoice(k, v) for k, v in config.items()), n)


def cost(report) -> float:
    return sum(report.window.times_s) / sum(report.window.samples)


def test_costs_are_those_of_the_table(table):
    executor = ReplayExecutor(table)
    with executor.open_live() as session:
        found = [
            cost(session.measure([block(**c)])[0])
            for c in (
                {},
                {"num_workers": 2},
                {"num_workers": 2, "amp_dtype": "bfloat16"},
                {"batch_size": 64},
                {"unheard": 3},
            )
        ]
    assert found == pytest.approx([0.002, 0.001, 0.0007, 0.0018, 0.002], rel=0.04)
    assert executor.elapsed_s > sum(found) * 200 * 32


def test_noise_is_log_normal_and_follows_from_the_seed(table):
    def times(seed: int) -> tuple[float, ...]:
        return ReplayExecutor(table, seed).open_live().measure([block(2000)])[0].window.times_s

    assert times(1) == times(1) != times(2)
    assert statistics.stdev(map(math.log, times(1))) == pytest.approx(0.05, rel=0.1)


def test_failures(table):
    session = ReplayExecutor(table).open_live()
    good, bad, again = session.measure([block(), block(batch_size=512), block()])
    assert good.window and again.window and bad.window is None and bad.error.startswith("oom")
    with pytest.raises(SessionFailed) as caught:
        session.measure([block(), block(num_workers=9), block()])
    assert caught.value.kind == "hang" and len(caught.value.partial) == 1
    with pytest.raises(SessionFailed) as caught:
        ReplayExecutor(table).run_fixed(FixedRun({"batch_size": 512}, 0, 10))
    assert caught.value.kind == "oom"


def test_hello_and_windows_are_whole(table):
    session = ReplayExecutor(table).open_live()
    assert (
        session.machine.cores == 4
        and session.job.loader.batch_size == 32
        and session.job.optimizers
    )
    window = session.measure([block()])[0].window
    assert set(window.phases_s) == set(PHASES)
    assert sum(window.phases_s.values()) == pytest.approx(sum(window.times_s))
    cached = session.measure([Block("c", (), 200, cached_batches=True)])[0]
    assert cost(cached) == pytest.approx(0.0014, rel=0.05)


def test_losses_are_paired_by_seed(table):
    executor = ReplayExecutor(table)
    runs = {
        key: executor.run_fixed(FixedRun(c, s, 240))
        for key, c, s in (
            ("base", {}, 0),
            ("again", {}, 0),
            ("seed", {}, 1),
            ("bf16", {"amp_dtype": "bfloat16"}, 0),
            ("fp16", {"amp_dtype": "float16"}, 0),
        )
    }
    base = runs["base"].losses
    assert base == runs["again"].losses != runs["seed"].losses
    assert runs["bf16"].losses == pytest.approx(base, rel=1e-4) and runs["bf16"].losses != base
    assert runs["fp16"].losses[0] > base[0] * 1.05
    assert base[0] > 2 * base[-1] and len(base) == 240
    assert runs["base"].samples_before[2] == 64


def test_a_run_lasts_as_long_as_asked(table):
    executor = ReplayExecutor(table)
    assert len(executor.run_fixed(FixedRun({}, 0, 10, min_seconds=10.0)).losses) > 100
    assert sum(executor.run_fixed(FixedRun({}, 0, 500, max_seconds=5.0)).window.times_s) < 5.5


def test_what_the_table_does_not_know_is_an_error(table):
    strict = ReplayTable(cost_s=0.001)
    with pytest.raises(LookupError, match="num_workers=3"):
        strict.entry({"num_workers": 3})
    assert strict.entry({}).cost_s == 0.001
