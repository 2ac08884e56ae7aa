"""EXPLAIN: where the time went, before and after, and why.

    baseline │ warm-up │ profiled │ watched │      winner │ warm-up │ profiled │ watched │     one process each
                          └──────────┴── operators, roofline, timeline, findings ──┘

Never while anything is timed. ``traces: finalists`` explains baseline and winner, ``all`` keeps a trace of every
configuration that was measured as well, ``none`` leaves the stage out.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from autotune.executors.base import FixedRun, SessionFailed
from autotune.explain.peaks import beside_vendor
from autotune.explain.records import Explanation, Peak, Side
from autotune.explain.roofline import judged
from autotune.explain.table import operators, to_csv
from autotune.explain.timeline import idle_share, kernels_per_step, timeline
from autotune.explain.trace import Trace, read_trace
from autotune.findings import Case, judge
from autotune.job.configs import key_of
from autotune.report.roofline import write_roofline_plot
from autotune.results import Observation, Trial
from autotune.stages.bench import Bench
from autotune.tracking.records import record_trace
from autotune_spaces.base import Config, Value
from autotune_trials.evidence import Evidence
from autotune_trials.paths import publish
from autotune_trials.protocol import Record

SETTLE_STEPS = 30  # iterations before the profiled ones: past warm-up, in mid-epoch for most jobs

OPERATORS = 400  # rows that go into the result, the costliest; the CSV has all


def explain(bench: Bench, observation: Observation, winner: Config, trials: Sequence[Trial]) -> Explanation:
    """Why baseline and winner take the time they take; an empty winner (keep-baseline) leaves the baseline alone."""
    if bench.spec.traces == "none":
        return Explanation()
    bench.progress.stage("explain", "profiled iterations")
    began = time.monotonic()
    configs: dict[str, Config] = {"baseline": {}, **({"winner": winner} if winner else {})}
    records = {name: record for name, config in configs.items() if (record := profile(bench, name, config)) is not None}
    peaks = measured_peaks(bench, observation, winner) if records else ()
    defaults = observation.defaults
    sides = {name: describe(bench, name, configs[name], record, peaks, defaults) for name, record in records.items()}
    write_roofline_plot(sides, peaks, bench.run_dir / "traces" / "roofline.png")
    judgement = judge({name: case(observation, name, side, records[name]) for name, side in sides.items()})
    return Explanation(
        sides=sides, peaks=peaks, findings=judgement.findings, not_judged=judgement.not_judged, rules=judgement.rules,
        wall_s=round(time.monotonic() - began, 1),
    )  # fmt: skip


def case(observation: Observation, name: str, side: Side, record: Record) -> Case:
    """What the rules look at."""
    evidence = record.evidence or Evidence(blind={"everything": "the job ended before its iterations could be watched"})
    return Case(name, side, evidence, observation.machine, observation.job, observation.defaults, observation.withdrawn)


def describe(
    bench: Bench, name: str, config: Config, record: Record, peaks: Sequence[Peak], defaults: Mapping[str, Value] = MappingProxyType({})
) -> Side:
    """What one profiled record shows. Without a readable trace: its files alone, with a warning."""
    side = Side(config=config, trace=keep(bench, record.trace, f"{name}.json.gz"), stacks=keep(bench, record.stacks, f"{name}-stacks.json.gz"))
    trace = read(bench, name, side.trace)
    if trace is None:
        return side
    tf32 = {**defaults, **config}.get("matmul_precision") in ("high", "medium")
    rows = judged(operators(trace), {peak.name: peak.value for peak in peaks}, tf32)
    table = f"traces/{name}-operators.csv"
    publish(bench.run_dir / table, to_csv(rows))
    return replace(
        side, table=table, operators=rows[:OPERATORS], timeline=timeline(trace), kernels_per_step=kernels_per_step(trace),
        idle_share=idle_share(trace), profiled_steps=len(trace.iterations),
    )  # fmt: skip


def read(bench: Bench, name: str, trace: str) -> Trace | None:
    """A kept trace; None, said so, if there is none or it cannot be read."""
    try:
        return read_trace(bench.run_dir / trace) if trace else None
    except (OSError, ValueError) as error:
        bench.progress.warning(f"the trace of the {name} cannot be read: {error}")
        return None


def measured_peaks(bench: Bench, observation: Observation, winner: Config) -> tuple[Peak, ...]:
    """What the machine reaches with as many threads as either side uses; () with a warning if it cannot be measured."""
    threads = [observation.job.intra_op_threads, winner.get("intra_op_threads", 0)]
    try:
        measured = bench.executor.measure_peaks(max(t for t in threads if isinstance(t, int)), observation.machine.device)
    except SessionFailed as failure:
        bench.progress.warning(f"no roofline: {failure}")
        return ()
    return beside_vendor(measured, observation.machine.device_name)


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
