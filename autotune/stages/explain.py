"""EXPLAIN: where the time went, before and after, and why.

    baseline │ warm-up │ profiled │ watched │      winner │ warm-up │ profiled │ watched │     one process each
                          └──────────┴── operators, roofline, timeline, findings ──┘
             │ warm-up │ Python frames │               │ warm-up │ Python frames │              and one more each

Runs only while nothing is timed. ``traces: finalists`` explains baseline and winner, ``all`` also
keeps a trace of every measured configuration, ``none`` skips the stage.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from autotune.executors.base import FixedRun, SessionFailed
from autotune.explain.flops import model_flops
from autotune.explain.peaks import beside_vendor
from autotune.explain.records import Explanation, Peak, Side
from autotune.explain.roofline import judged, raised
from autotune.explain.summary import compute_of, copies_of, summarize
from autotune.explain.table import operators, to_csv
from autotune.explain.timeline import device_busy_s, kernels_per_step, timeline
from autotune.explain.trace import Trace, read_trace
from autotune.findings import Case, judge
from autotune.job.configs import key_of
from autotune.report.plots.roofline import write_roofline_plot
from autotune.results import Bottleneck, Observation, Trial
from autotune.stages.context import RunContext
from autotune.stages.nsight import captured
from autotune.tracking.records import record_trace
from autotune.verdict.bottleneck import OTHER_SHARE, shares
from autotune.verdict.timing import anatomy_after_warm_up
from autotune.words import plural
from autotune_spaces.base import Config
from autotune_trials.paths import publish, publish_copy
from autotune_trials.protocol.evidence import Evidence
from autotune_trials.protocol.messages import Record

SETTLE_STEPS = 30  # iterations before the profiled ones: past warm-up, in mid-epoch for most jobs
# and at least this many seconds: rates and core usage are read from these iterations
SETTLE_SECONDS = 2.0

LONGEST_START_UP_S = 60.0  # beyond it, optional traces are skipped
OPERATORS = 400  # costliest rows, which go into the result; the CSV has all


def explain(context: RunContext, observation: Observation, winner: Config) -> Explanation:
    """Explain where baseline and winner spend their time; with an empty winner, the baseline alone.

    The winner is empty if the baseline is kept.
    """
    if context.spec.traces == "none":
        return Explanation()
    context.progress.stage("explain", "profiled iterations")
    began = time.monotonic()
    configs: dict[str, Config] = {"baseline": {}, **({"winner": winner} if winner else {})}
    records = {
        name: record
        for name, config in configs.items()
        if (record := profile(context, name, config)) is not None
    }
    explanation = examine(context, observation, configs, records, began)
    for note in explanation.notes:
        context.progress.warning(note)
    return explanation


def examine(
    context: RunContext,
    observation: Observation,
    configs: Mapping[str, Config],
    records: Mapping[str, Record],
    began: float,
) -> Explanation:
    """Compare profiled records. ``began``: time.monotonic() when the stage began."""

    def described(peaks: Sequence[Peak]) -> dict[str, Side]:
        return {
            name: describe(context, observation, name, configs[name], record, peaks)
            for name, record in records.items()
        }

    peaks = measured_peaks(context, observation, configs.values()) if records else ()
    sides = described(peaks)
    better = better_peaks(observation, configs, sides, peaks)
    if better != peaks:
        peaks, sides = better, described(better)
    sides, frameless = with_frames(context, observation, sides)
    sides, notes = captured(context, configs, sides, observation.job)
    write_roofline_plot(sides, peaks, context.run_dir / "traces" / "roofline.png")
    judgement = judge(
        {name: case(observation, name, side, records[name], peaks) for name, side in sides.items()}
    )
    return Explanation(
        sides=sides,
        peaks=peaks,
        findings=judgement.findings,
        not_judged=judgement.not_judged,
        rules=judgement.rules,
        wall_s=round(time.monotonic() - began, 1),
        notes=(*frameless, *notes),
    )


def case(
    observation: Observation, name: str, side: Side, record: Record, peaks: Sequence[Peak]
) -> Case:
    """Build the case that the finding rules judge."""
    evidence = record.evidence or Evidence(
        blind={"everything": "the job ended before its iterations could be observed"}
    )
    parts = anatomy_after_warm_up(record.window) if record.window.times_s else None
    return Case(
        name,
        side,
        evidence,
        observation.machine,
        observation.job,
        observation.defaults,
        peaks,
        parts,
    )


def describe(
    context: RunContext,
    observation: Observation,
    name: str,
    config: Config,
    record: Record,
    peaks: Sequence[Peak],
) -> Side:
    """Describe one profiled record.

    Without a readable trace: its files and its times alone, with a warning.
    """
    side = Side(config=config, trace=keep(context, record.trace, trace_name(name)))
    trace = read(context, name, side.trace)
    device, cores = observation.job.device, observation.machine.cores
    if trace is None:
        return replace(side, summary=summarize(record.window, device=device, cores=cores))
    if device == "cuda" and not trace.on_device:
        context.progress.warning(
            f"the profile of the {name} shows no kernels, perhaps because CUPTI does not match the"
            " driver: its operators are not explained"
        )
        return replace(side, summary=summarize(record.window, device=device, cores=cores))
    tf32 = uses_tf32(observation, config)
    training = trace.training()
    rows = judged(operators(training), {peak.name: peak.value for peak in peaks}, tf32)
    steps = len(trace.iterations)
    table = f"traces/{name}-operators.csv"
    publish(context.run_dir / table, to_csv(rows))
    summary = summarize(
        record.window,
        device=device,
        cores=cores,
        busy_s=device_busy_s(trace),
        copies=copies_of(training),
        compute=compute_of(model_flops(rows, steps), rows, peaks, tf32),
    )
    busy = summary.device_utilisation if summary is not None and device == "cuda" else None
    return replace(
        side,
        table=table,
        operators=rows[:OPERATORS],
        timeline=timeline(trace),
        kernels_per_step=kernels_per_step(training),
        idle_share=None if busy is None else 1 - busy,
        summary=summary,
        profiled_steps=steps,
    )


def with_frames(
    context: RunContext, observation: Observation, sides: Mapping[str, Side]
) -> tuple[dict[str, Side], tuple[str, ...]]:
    """Add a short second trace with Python frames to each side, from a process of its own.

    Also returns a sentence for each side without one: its process would mostly start up, the budget
    is used up, or it failed.
    """
    if observation.startup_s > LONGEST_START_UP_S:
        return dict(sides), (
            f"No traces with Python frames: the job takes {observation.startup_s:.0f} s to start.",
        )
    if context.out_of_time_at("frames", len(sides) * observation.startup_s):
        return dict(sides), (f"No traces with Python frames: {context.out_of_time_words()}.",)
    found, notes = dict(sides), []
    for name, side in sides.items():
        label = f"frames-{name}"
        request = FixedRun(
            side.config, seed=0, steps=SETTLE_STEPS, profile=True, stacks=True, label=label
        )
        try:
            record = context.recorded(
                "|".join([label, key_of(side.config)]),
                label,
                partial(context.executor.run_fixed, request),
            )
        except SessionFailed as failure:
            context.stop.check_after(failure.kind)
            notes.append(f"No trace of the {name} with Python frames: {failure}.")
            continue
        found[name] = replace(
            side, stacks=keep(context, record.trace, trace_name(f"{name}-stacks"))
        )
    return found, tuple(notes)


def read(context: RunContext, name: str, trace: str) -> Trace | None:
    """Read a kept trace; None if there is none, or, with a warning, if it cannot be read."""
    try:
        return read_trace(context.run_dir / trace) if trace else None
    except (OSError, ValueError) as error:
        context.progress.warning(f"the trace of the {name} cannot be read: {error}")
        return None


def uses_tf32(observation: Observation, config: Config) -> bool:
    own = observation.job.matmul_precision
    settings = {"matmul_precision": own, **observation.defaults, **config}
    return settings["matmul_precision"] in ("high", "medium", "tf32")


def better_peaks(
    observation: Observation,
    configs: Mapping[str, Config],
    sides: Mapping[str, Side],
    peaks: Sequence[Peak],
) -> tuple[Peak, ...]:
    """Return ``peaks``, none of them below what a matrix product of the job reached."""
    values = {peak.name: peak.value for peak in peaks}
    for name, side in sides.items():
        values = raised(values, side.operators, uses_tf32(observation, configs[name]))
    return beside_vendor(values, _device_name(observation))


def _device_name(observation: Observation) -> str:
    return observation.machine.device_name if observation.job.device == "cuda" else ""


def _device(observation: Observation) -> str:
    index = observation.machine.device_index
    return f"cuda:{index}" if observation.job.device == "cuda" and index else observation.job.device


def measured_peaks(
    context: RunContext, observation: Observation, configs: Iterable[Config]
) -> tuple[Peak, ...]:
    """Measure what the machine reaches with as many threads as any side uses.

    () with a warning if it cannot be measured.
    """
    threads = [
        observation.job.intra_op_threads,
        *(config.get("intra_op_threads", 0) for config in configs),
    ]
    try:
        measured = context.executor.measure_peaks(
            max(t for t in threads if isinstance(t, int)), _device(observation)
        )
    except SessionFailed as failure:
        context.stop.check_after(failure.kind)
        context.progress.warning(f"no roofline: {failure}")
        return ()
    return beside_vendor(measured, _device_name(observation))


def with_idle_device(observation: Observation, side: Side | None) -> Observation:
    """``observation``, whose bottleneck is overhead where the GPU is idle much of the time.

    Its phases alone look like computing: they contain the GPU's waits for the next launch.
    """
    if observation.bottleneck is not Bottleneck.COMPUTE or side is None or side.idle_share is None:
        return observation
    idle = side.idle_share - shares(observation.anatomy).waiting
    if idle < OTHER_SHARE:
        return observation
    why = f"the GPU is idle for {idle:.0%} of an iteration, besides waits for batches"
    return replace(observation, bottleneck=Bottleneck.OVERHEAD, bottleneck_why=why)


def trace_trials(context: RunContext, observation: Observation, trials: Sequence[Trial]) -> None:
    """With ``traces: all``: record a trace of every completed trial, fastest first, while there is
    time.
    """
    if context.spec.traces != "all":
        return
    complete = [t for t in trials if t.state == "complete"]
    for place, trial in enumerate(sorted(complete, key=lambda t: t.log_ratio or 0.0)):
        name = f"trial-{trial.number:03d}"
        if context.out_of_time_at(name, observation.startup_s):
            left = plural(len(complete) - place, "trial")
            context.progress.note(f"no trace of {left}: {context.out_of_time_words()}")
            break
        record = profile(context, name, trial.config)
        if record is not None:
            record_trace(
                context.tracker,
                trial,
                context.run_dir / keep(context, record.trace, trace_name(name)),
            )


def trace_name(name: str) -> str:
    """Name a trace file as TensorBoard needs it.

    Its trace view accepts only ``<worker>.pt.trace.json.gz``; Perfetto and chrome://tracing accept
    any name.
    """
    return f"{name}.pt.trace.json.gz"


def profiled(context: RunContext, name: str, config: Config, anew: bool = False) -> Record:
    """Return a profiled run of ``config``, from the journal if it was made before.

    Its ``trace`` is "" if the job ended before it.

    Args:
        anew: run it again, whatever the journal has.

    Raises:
        SessionFailed
    """
    label = f"profile-{name}"

    def measure() -> Record:
        context.progress.fixed_run(f"profile, {name}", 1, 1, config or None)
        request = FixedRun(
            config,
            seed=0,
            steps=SETTLE_STEPS,
            min_seconds=SETTLE_SECONDS,
            profile=True,
            label=label,
            nvtx_modules=context.nvtx_modules,
        )
        record = context.executor.run_fixed(request)
        if record.ended_early and not record.trace:  # a short job: leave it more steps
            record = context.executor.run_fixed(replace(request, min_seconds=0.0))
        return record

    return context.recorded("|".join([label, key_of(config)]), label, measure, anew)


def profile(context: RunContext, name: str, config: Config) -> Record | None:
    """Return a profiled run of ``config``; None, with a warning, if there is no trace of it."""
    try:
        record = profiled(context, name, config)
    except SessionFailed as failure:
        context.stop.check_after(failure.kind)
        context.progress.warning(f"{name}: no trace, {failure}")
        return None
    if not record.trace:
        why = record.notes.get("profile", "the job ended too early")
        context.progress.warning(f"{name}: no trace, {why}")
        return None
    return record


def keep(context: RunContext, source: str, name: str) -> str:
    """Copy a session's file to the run's traces.

    Returns its path within the run directory, "" if there is none.
    """
    target = context.run_dir / "traces" / name
    if source and not target.exists() and Path(source).exists():
        target.parent.mkdir(exist_ok=True)
        publish_copy(Path(source), target)
    return str(Path("traces") / name) if target.exists() else ""
