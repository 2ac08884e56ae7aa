"""EXPLAIN: where the time went, before and after.

A dozen profiled iterations of the baseline and of the winner (``traces: finalists``), or of every configuration that was
measured (``all``), each in its own process, never while anything is timed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.executors.base import FixedRun, SessionFailed
from autotune.job.configs import key_of
from autotune.results import Trial
from autotune.stages.bench import Bench
from autotune.tracking.records import record_trace
from autotune_spaces.base import Config

SETTLE_STEPS = 30  # iterations before the profiled ones: past warm-up, in mid-epoch for most jobs


@dataclass(frozen=True)
class Explanation:
    traces: Mapping[str, str] = field(default_factory=dict)  # "baseline", "winner" -> path within the run directory
    operators: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)


def explain(bench: Bench, winner: Config) -> Explanation:
    """Traces and operator tables; an empty winner (keep-baseline) is profiled once, as the baseline."""
    if bench.spec.traces == "none":
        return Explanation()
    bench.progress.stage("explain", "profiled iterations")
    sides: dict[str, Config] = {"baseline": {}, **({"winner": winner} if winner else {})}
    traces, operators = {}, {}
    for side, config in sides.items():
        stored = bench.journal.find("profile", key_of(config))
        if stored is None:
            stored = _profile(bench, side, config)
            if stored is None:
                continue
            bench.journal.append("profile", key_of(config), stored)
        traces[side], operators[side] = stored["trace"], tuple(stored["operators"])
        bench.stop.check()
    return Explanation(traces, operators)


def trace_trials(bench: Bench, trials: Sequence[Trial]) -> None:
    """With ``traces: all``: a trace of every finished trial, put on record with it."""
    if bench.spec.traces != "all":
        return
    for trial in trials:
        if trial.state != "complete":
            continue
        name = f"trial-{trial.number:03d}"
        if bench.journal.find("profile", name) is None:
            stored = _profile(bench, name, trial.config)
            if stored is None:
                continue
            bench.journal.append("profile", name, stored)
            record_trace(bench.tracker, trial, bench.run_dir / stored["trace"])
        bench.stop.check()


def _profile(bench: Bench, side: str, config: Config) -> dict[str, Any] | None:
    bench.progress.fixed_run(f"profile of the {side}", 1, 1, config)
    try:
        record = bench.executor.run_fixed(
            FixedRun(config, seed=0, steps=SETTLE_STEPS, profile=True, label=f"profile-{side}")
        )
    except SessionFailed as failure:
        bench.progress.warning(f"no trace of the {side}: {failure}")
        return None
    if not record.trace:
        bench.progress.warning(f"no trace of the {side}: {record.notes.get('profile', 'the job ended before it')}")
        return None
    target = bench.run_dir / "traces" / f"{side}.json.gz"
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(record.trace, target)
    return {"trace": str(Path("traces") / target.name), "operators": [dict(row) for row in record.operators]}
