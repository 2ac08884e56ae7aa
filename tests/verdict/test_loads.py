"""The "faster" rule on real processes: a small version of benchmarks/verdicts/loads.py.

The assertions hold on a busy machine, too: intervals may be wide, but they contain the truth, with
5% to spare for the one in twenty that does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "verdicts"
SPARE = 1.05


def on_a_core(load: str, work: str) -> dict:
    """Evaluate ``work``, a dict of ``core`` (loads.Core), ``loads`` and ``disturbed``, in its own
    process.
    """
    code = f"""
import json, os, time, loads
from autotune.verdict.disturbed import disturbed
core = loads.Core(max(os.sched_getaffinity(0)), {load!r}, 1, time.monotonic(), window_s=0.3)
try:
    print(json.dumps({work}))
finally:
    core.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def confirmed(load: str, baseline: int, candidate: int) -> dict:
    work = f"""(lambda c: dict(low=c.decision.interval.low, high=c.decision.interval.high, reason=c.decision.reason,
        pairs=c.pairs, runs=c.runs, again=c.again))(core.confirm({baseline}, {candidate}))"""
    return on_a_core(load, work)


@pytest.mark.slow
def test_the_interval_of_a_job_against_itself_holds_no_gain():
    found = confirmed("quiet", 12, 12)
    assert found["low"] < SPARE
    assert found["high"] > 1 / SPARE
    assert found["runs"] == 2 * found["pairs"] + found["again"]


@pytest.mark.slow
def test_a_planted_gain_is_in_its_interval_and_never_called_slower():
    found = confirmed("quiet", 39, 30)
    assert not found["reason"].startswith(("slower", "no gain of 2% or more:"))
    assert found["low"] < 1.3 * SPARE
    assert found["high"] > 1.3 / SPARE


def test_a_process_on_the_same_core_is_seen():
    found = on_a_core("always", "dict(load=(w := core.run(12, 0)).foreign_load, why=disturbed(w))")
    assert found["load"] > 0.25, "half the core is the burner's"
    assert "other processes" in found["why"]


@pytest.mark.slow
def test_seen_bursts_are_measured_again_and_counted():
    # an endless burst: the first run of each side has no calm run to compare with
    found = confirmed("always", 12, 12)
    assert found["again"] >= 2
    assert found["runs"] == 2 * found["pairs"] + found["again"]
    assert found["low"] < SPARE, "both sides paid for the load"
