"""EXPLAIN: where the time went, before and after, and why.

    baseline │ warm-up │ profiled │ watched │      winner │ warm-up │ profiled │ watched │     one process each
                          └──────────┴── operators, roofline, timeline, findings ──┘

Never while anything is timed. ``traces: finalists`` explains baseline and winner, ``all`` keeps a trace of every
configuration that was measured as well, ``none`` leaves the stage out.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from autotune.executors.base import FixedRun, SessionFailed
from autotune.explain.records import Explanation, Side
from autotune.explain.table import operators
from autotune.findings import Case, judge
from autotune.job.configs import key_of
from autotune.results import Observation, Trial
from autotune.stages.bench import Bench
from autotune.tracking.records import record_trace
from autotune_spaces.base import Config
from autotune_trials.evidence import Evidence
from autotune_trials.protocol import Record, SessionConfig

SETTLE_STEPS = 30  # iterations before the profiled ones: past warm-up, in mid-epoch for most jobs


def explain(bench: Bench, observation: Observation, winner: Config, trials: Sequence[Trial]) -> Explanation:
    """Why baseline and winner take the time they take; an empty winner (keep-baseline) leaves the baseline alone."""
    if bench.spec.traces == "none":
        return Explanation()
    bench.progress.stage("explain", "profiled iterations")
    began = time.monotonic()
    configs: dict[str, Config] = {"baseline": {}, **({"winner": winner} if winner else {})}
    records = {name: record for name, config in configs.items() if (record := profile(bench, name, config)) is not None}
    sides = {name: describe(bench, name, configs[name], record) for name, record in records.items()}
    judgement = judge({name: case(observation, name, side, records[name]) for name, side in sides.items()})
    return Explanation(
        sides=sides, findings=judgement.findings, not_judged=judgement.not_judged, rules=judgement.rules,
        wall_s=round(time.monotonic() - began, 1),
    )  # fmt: skip


def case(observation: Observation, name: str, side: Side, record: Record) -> Case:
    """What the rules look at."""
    evidence = record.evidence or Evidence(blind={"everything": "the job ended before its iterations could be watched"})
    return Case(name, side, evidence, observation.machine, observation.job, observation.defaults, observation.withdrawn)


def describe(bench: Bench, name: str, config: Config, record: Record) -> Side:
    """What one profiled record shows."""
    return Side(config=config, trace=keep(bench, record.trace, f"{name}.json.gz"), operators=operators(record),
                profiled_steps=SessionConfig.profile_steps)  # fmt: skip


def trace_trials(bench: Bench, trials: Sequence[Trial]) -> None:
    """With ``traces: all``: a trace of every finished trial, put on record with it."""
    if bench.spec.traces != "all":
        return
    for trial in trials:
        if trial.state != "complete":
            continue
        name = f"trial-{trial.number:03d}"
        record = profile(bench, name, trial.config)
        if record is not None:
            record_trace(bench.tracker, trial, bench.run_dir / keep(bench, record.trace, f"{name}.json.gz"))


def profile(bench: Bench, name: str, config: Config) -> Record | None:
    """A profiled run of ``config``, made once and remembered; None, said so, if there is none to be had."""
    label = f"profile-{name}"

    def measure() -> Record:
        bench.progress.fixed_run(f"profile of the {name}", 1, 1, config)
        return bench.executor.run_fixed(FixedRun(config, seed=0, steps=SETTLE_STEPS, profile=True, label=label))

    try:
        record = bench.recorded("|".join([label, key_of(config)]), label, measure)
    except SessionFailed as failure:
        bench.progress.warning(f"no trace of the {name}: {failure}")
        return None
    if not record.trace:
        bench.progress.warning(f"no trace of the {name}: {record.notes.get('profile', 'the job ended before it')}")
        return None
    return record


def keep(bench: Bench, source: str, name: str) -> str:
    """Copy a session's file to the run's traces; returns its path within the run directory, "" if there is none."""
    target = bench.run_dir / "traces" / name
    if source and not target.exists() and Path(source).exists():
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
    return str(Path("traces") / name) if target.exists() else ""
