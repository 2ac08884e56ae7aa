"""OBSERVE: the job as it is.

One live session of the baseline gives its own knob values, where an iteration's time goes, how
noisy this machine is, how fetching batches spends its time, and the ceiling: how fast the job would
run if batches cost nothing. The bottleneck and the knobs worth searching follow from these.

    ██████████                       a fresh process of the bare job, which ends when the job ends
    B │ B │ ceiling │ B │ B ···      then five blocks, one process, which the search continues with
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import fmean

from autotune.errors import BaselineError, HookError, InputError
from autotune.executors.base import SessionFailed
from autotune.results import Anatomy, Observation
from autotune.secrets import mask_command
from autotune.stages.context import OVER, RunContext
from autotune.stages.measuring.fresh import FEWEST_PAIRS, FIRST_RUN, FreshRuns, later_run_s, wall_s
from autotune.stages.measuring.kept_session import BlockFailed, not_measurable
from autotune.stages.measuring.lanes import MOST_LOST
from autotune.stages.measuring.own_blocks import OwnBlocks, window_of
from autotune.tracking.records import record_baseline
from autotune.verdict.bottleneck import name_bottleneck, outdoes_waiting
from autotune.verdict.iterations import drop_start, first_counted, mean_samples
from autotune.verdict.runs import loss_run
from autotune.verdict.speedup import noise_of
from autotune.verdict.timing import anatomy, cost_without_data, reader_of, restarts_with
from autotune.words import duration_words
from autotune_spaces.base import Config, NotApplicable
from autotune_spaces.codec import encode
from autotune_spaces.facts import JobFacts, Machine
from autotune_trials.protocol.messages import Hello, Record, Window

FIRST_SEED = 0  # seed of the first run and of the first pair
# share of the budget that a live session may spend on the job's first epoch before measuring
EPOCH_SHARE = 0.05
# of the first run; after a shorter one, what the whole run needs is soon told (tuner.py)
LONG_RUN_S = 60.0


def observe(context: RunContext) -> Observation:
    """Measure the baseline, or take it from the journal of a resumed run.

    Raises:
        BaselineError: the job fails by itself, or is too short to be timed.
        HookError: the agent cannot get in, or sees no optimizer step.
        InputError: the objective is energy, and this machine counts none that can be read; or the
            job takes more memory than its file allows.
    """
    context.progress.stage("observe", "the job as it is")
    others = context.executor.gpu_load()
    first = first_run(context)
    if context.spec.reads_energy and math.fsum(first.window.joules) <= 0:
        raise InputError(
            "the objective is energy, but this machine has no readable energy counter (NVML,"
            " /sys/class/powercap)",
            where=str(context.spec.source or "objective"),
            expected="a whole GPU (not a MIG slice), Volta or later, or a CPU with readable RAPL counters",
            remedy="on a CPU, run as root; or set objective: throughput",
        )
    _warn_if_runs_are_long(context, first)
    context.executor.first_epoch_s = first_epoch_s(context, first)
    observation = context.observation
    if observation is None:
        observation = _measure(context, first)
        context.journal.append("observation", "", encode(observation))
    _check_memory(context, observation)
    if others and observation.job.device == "cuda":
        context.progress.warning(
            f"other programs use GPUs ({'; '.join(others)}): if the job trains on one of them,"
            " expect noisier times and less free memory"
        )
    if observation.energy_counters:
        counters = ", ".join(observation.energy_counters)
        context.progress.note(f"energy is the sum of these counters: {counters}")
    if observation.job.loader is not None:
        context.executor.loader_key = observation.job.loader.key
    record_baseline(context.tracker, observation)
    context.progress.observed(observation)
    return observation


def _warn_if_runs_are_long(context: RunContext, first: Record) -> None:
    """Warn before anything else is measured if the proof alone will exceed the budget."""
    if context.observation is not None or context.executor.lanes() is not None:
        return  # a resumed run, or several pairs at the same time
    run_s, minutes = wall_s(first), context.spec.budget.minutes
    proof_s = 2 * FEWEST_PAIRS * run_s
    if run_s > LONG_RUN_S and proof_s > OVER * minutes * 60:
        context.progress.note(
            f"one run of this job takes {duration_words(run_s)}; proving an answer takes at least"
            f" {duration_words(proof_s)}, more than budget.minutes ({minutes:g}). Press Ctrl-C now if"
            " that is too long"
        )


def _check_memory(context: RunContext, observation: Observation) -> None:
    own_gib = observation.anatomy.peak_memory_gib
    limit_gib = context.spec.constraints.host_memory_gib
    if observation.job.device == "cpu" and limit_gib is not None and own_gib > limit_gib:
        raise InputError(
            f"the unchanged job takes {own_gib:.2f} GiB, more than constraints.host_memory_gib",
            where=str(context.spec.source or "constraints"),
            expected=f"more than {own_gib:.2f}",
            remedy="raise it, or leave it out to allow all memory; then start over with --fresh",
        )


def first_run(context: RunContext) -> Record:
    """Run the unchanged job in a fresh process, as the confirmation will run it.

    A live session stretches epochs and so cannot tell how long the job is. A job that is too short
    for the proof is refused here, not after the search.

    This run is not part of a pair: its partner would run minutes later, and the training DataLoader
    is not known yet, so random streams are not matched as they are in pairs.

    Raises:
        BaselineError: the job fails, or has too few iterations to be timed.
        HookError: the agent cannot get in.
    """
    runs = FreshRuns(context, context.spec.convergence.steps, FIRST_RUN)

    def measure() -> Record:
        for attempt in itertools.count(1):
            context.progress.fixed_run("the job as it is", 1, 1, {})
            try:
                return runs.run(context.executor, {}, FIRST_SEED, FIRST_RUN, calm=None)
            except SessionFailed as failure:
                if failure.kind != "lost" or not context.executor.fails_over or attempt > MOST_LOST:
                    raise explain_failure(context, failure) from failure
                context.note_lost(failure)
        raise AssertionError("the loop above returns or raises")

    record = context.recorded(FIRST_RUN, FIRST_RUN, measure)
    step = loss_run(record).first_non_finite()
    if step is not None and step < context.spec.convergence.steps:
        context.progress.warning(
            f"the job's own loss is NaN or infinite at step {step + 1}: only settings that leave"
            " every bit the same can be proven to train the same way. Correct the job first"
        )
    return record


def first_epoch_s(context: RunContext, record: Record) -> float:
    """How long a live session may wait for the job's first epoch to end; 0.0: it does not wait.

    The wait includes the evaluation. What that leaves behind (glibc keeps freed memory from then
    on, say) is present in all epochs of the job but the first, and a live session never gets there
    by itself. It waits only if the first run went past the end of an epoch, which shows that the
    job has a second one.
    """
    window = record.window
    if not window.turnovers_s or window.epoch_iterations is None:
        return 0.0
    epoch_s = window.epoch_iterations * fmean(window.times_s)
    epoch_s += window.away_s / len(window.turnovers_s)
    limit_s = EPOCH_SHARE * context.spec.budget.minutes * 60
    return 3 * epoch_s + limit_s if epoch_s <= limit_s else 0.0


def _measure(context: RunContext, first: Record) -> Observation:
    try:
        with OwnBlocks(context) as live:
            hello = live.session.hello
            live.size()
            blocks = [live.block(), live.block()]
            free = _cost_without_data(live) if hello.job.loader is not None else None
            blocks += [live.block(), live.block()]
            measured = [live.cost(b) for b in blocks]
            times_s = [live.time_cost(b) for b in blocks]
            windows = [window_of(b) for b in blocks]
            parts = anatomy(windows[1], blocks[1].settle_iterations, turnover_s=live.turnover_s())
            mean_cost = fmean(times_s)
            if free is not None and outdoes_waiting(parts, mean_cost / free):
                # other programs may have paused during that one block
                free = max(free, _cost_without_data(live) or free)
            live.leave_running()  # for the search: starting the job may take minutes
    except BlockFailed as failure:
        raise not_measurable(context, failure) from failure
    except SessionFailed as failure:
        raise explain_failure(context, failure) from failure
    # a live session's heap may keep memory that a bare job gives back after every step
    parts = replace(parts, minor_faults=max(parts.minor_faults, page_faults(first)))
    ceiling = mean_cost / free if free else None
    compute_s = (
        free * mean_samples(windows[1]) / max(1.0, hello.job.backwards_per_step) if free else None
    )
    if any(window.power_capped for window in windows):
        context.progress.note("the GPU runs at its power cap; the figures hold for this cap")
    observation = conclude(
        context,
        hello,
        parts,
        windows,
        noise=noise_of(measured),
        ceiling=ceiling,
        compute_s=compute_s,
    )
    return replace(
        observation, run_s=later_run_s(context, first), energy_counters=first.window.energy_counters
    )


def conclude(
    context: RunContext,
    hello: Hello,
    parts: Anatomy,
    windows: Sequence[Window],
    *,
    noise: float = 0.0,
    ceiling: float | None = None,
    compute_s: float | None = None,
) -> Observation:
    """What follows from the measured windows: facts about the job, its knobs, its bottleneck.

    Args:
        compute_s: seconds of a backward pass when batches cost nothing; None: unknown.
    """
    job = replace(
        hello.job,
        reader=reader_of(windows, compute_s),
        copy_share=copy_share(windows),
        device_memory_share=memory_share(hello, windows),
    )
    domains, defaults, withdrawn = choose_knobs(context, hello.machine, job)
    restarts = restarts_with(job.loader, {})
    bottleneck, why = name_bottleneck(parts, ceiling, noise, restarts_workers=restarts)
    return Observation(
        machine=hello.machine,
        job=job,
        anatomy=parts,
        noise=noise,
        ceiling=ceiling,
        bottleneck=bottleneck,
        bottleneck_why=why,
        domains=domains,
        defaults=defaults,
        withdrawn=withdrawn,
        fingerprint=hello.fingerprint,
        startup_s=hello.startup_s,
    )


def page_faults(record: Record) -> float:
    """Minor page faults of a steady iteration."""
    steady = drop_start(record.window, first_counted(record.window))
    return steady.minor_faults / len(steady.times_s)


def memory_share(hello: Hello, windows: Sequence[Window]) -> float:
    """Share of the device's memory that the job reserves at its peak, 0..1; 0.0: no GPU."""
    if hello.job.device != "cuda" or not hello.machine.device_memory_gib:
        return 0.0
    return max(window.peak_memory_gib for window in windows) / hello.machine.device_memory_gib


def copy_share(windows: Sequence[Window]) -> float:
    """Share of an iteration on the device that is spent copying to it, 0..1. Its wait for batches
    does not count: the search may end that.
    """
    phases = [window.phases_s for window in windows]
    return sum(p.get("to_device", 0.0) for p in phases) / (
        math.fsum(s for p in phases for name, s in p.items() if name != "data") or 1.0
    )


def _cost_without_data(live: OwnBlocks) -> float | None:
    """Seconds per sample when batches come from memory; None if the job cannot run that way."""
    try:
        return cost_without_data(window_of(live.block_from_memory()))
    except BlockFailed:
        return None


def choose_knobs(context: RunContext, machine: Machine, job: JobFacts) -> tuple[dict, dict, dict]:
    """(knob -> values, knob -> the job's own value, knob -> why it is withdrawn)."""
    domains, defaults, withdrawn = {}, {}, {}
    job = replace(job, surveys={**job.surveys, **context.executor.survey()})
    for knob in context.spec.search_space.knobs:
        try:
            domain = knob.domain(machine, job)
        except NotApplicable as reason:
            withdrawn[knob.name] = str(reason)
        else:
            domains[knob.name], defaults[knob.name] = domain.values, domain.default
    for name, why in _idle(context, job, domains).items():
        del domains[name], defaults[name]
        withdrawn[name] = why
    return domains, defaults, withdrawn


def _idle(context: RunContext, job: JobFacts, domains: Collection[str]) -> dict[str, str]:
    """Knobs that mean nothing with the job's own workers, where their number is not searched: why."""
    if job.loader is None or "num_workers" in domains:
        return {}
    own: Config = {"num_workers": job.loader.num_workers}
    return {
        name: f"it has no effect with num_workers={job.loader.num_workers}, which is not searched"
        for name in domains
        if not context.spec.search_space[name].active({}, own)
    }


def explain_failure(
    context: RunContext, failure: SessionFailed, job: str = "the unchanged job"
) -> BaselineError | HookError:
    """Turn a failed session of the unchanged job into an error for its owner.

    ``job``: what the owner knows it as.
    """
    command = " ".join(mask_command(context.spec.command))
    if failure.kind == "unhooked":
        return HookError(failure.detail, where=command)
    if failure.kind == "agent":
        return HookError(
            f"autotune's agent failed inside the job: {failure.detail}",
            where=command,
            remedy=(
                "please report it with the session's agent.log; the job itself was not disturbed"
            ),
        )
    if failure.kind == "lost":
        return BaselineError(
            failure.detail,
            where=command,
            expected="machines that stay available during the run",
            remedy="run the same command again, without --fresh, to resume",
        )
    # a job that exits with a message has often printed nothing else
    told = failure.detail.endswith(failure.log_tail)
    tail = "" if told else f"\n{failure.log_tail}"
    what = {
        "oom": "runs out of memory",
        "crash": "fails",
        "killed": "is killed",
        "hang": "makes no progress",
        "ended": "ends too early",
    }[failure.kind]
    remedy = "check that the command runs by itself"
    if failure.kind == "crash":
        remedy += ", also without a terminal (`< /dev/null`): here it has none"
    if failure.kind == "hang":
        remedy += (
            "; if pauses this long are normal, raise hang_timeout_s in job.yaml"
            " (startup_timeout_s for its first iterations)"
        )
    return BaselineError(
        f"{job} {what}: {failure.detail}{tail}", where=failure.where or command, remedy=remedy
    )
