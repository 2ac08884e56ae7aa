"""OBSERVE: the job as it is.

One live session of the baseline gives its own knob values, where an iteration's time goes, how noisy this machine is, and
the ceiling: how fast the job would run if batches cost nothing; and how fetching batches spends its time. From that follow the
bottleneck and the knobs worth searching.

    B │ B │ ceiling │ B │ B          five blocks, one process
"""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import BaselineError, HookError
from autotune.executors.base import SessionFailed
from autotune.results import Observation
from autotune.secrets import mask_command
from autotune.stages.bench import Bench
from autotune.stages.kept_session import BlockFailed
from autotune.stages.live import LiveComparison
from autotune.tracking.records import record_baseline
from autotune.verdict.bottleneck import name_bottleneck
from autotune.verdict.speedup import noise_of
from autotune.verdict.timing import anatomy, cost_without_data, mean_samples, mean_turnover_s, reader_of
from autotune_spaces.base import Withdrawn
from autotune_spaces.codec import decode, encode
from autotune_spaces.facts import JobFacts, Machine


def observe(bench: Bench) -> Observation:
    """Measure the baseline, or take it from the journal of a resumed run.

    Raises:
        BaselineError: the job fails by itself.
        HookError: the agent cannot get in, or sees no optimizer step.
    """
    bench.progress.stage("observe", "the job as it is")
    stored = bench.journal.find("observation")
    if stored is not None:
        observation = decode(Observation, stored)
    else:
        observation = _measure(bench)
        bench.journal.append("observation", "", encode(observation))
    record_baseline(bench.tracker, observation)
    if observation.job.loader is not None:
        bench.executor.loader_key = observation.job.loader.key
    bench.progress.observed(observation)
    return observation


def _measure(bench: Bench) -> Observation:
    try:
        with LiveComparison(bench) as live:
            hello = live.session.hello
            live.reference({})  # sizes the blocks; not counted
            blocks = [live.block({}), live.block({})]
            free = _cost_without_data(live) if hello.job.loader is not None else None
            blocks += [live.block({}), live.block({})]
            measured = [live.cost({}, b) for b in blocks]
    except BlockFailed as failure:
        raise BaselineError(
            f"the unchanged job could not be measured: {failure.reason}", where=" ".join(mask_command(bench.spec.command)),
            remedy="see the session's logs in the run directory",
        ) from failure
    except SessionFailed as failure:
        raise explain_failure(bench, failure) from failure
    mean_cost = sum(measured) / len(measured)
    windows = [b.window for b in blocks if b.window is not None]
    parts = anatomy(windows[1], blocks[1].settle_iterations, turnover_s=mean_turnover_s(*windows))
    ceiling = mean_cost / free if free else None
    compute_s = free * mean_samples(windows[1]) / max(1.0, hello.job.backwards_per_step) if free else None
    job = replace(hello.job, reader=reader_of(windows, compute_s))
    domains, defaults, withdrawn = choose_knobs(bench, hello.machine, job)
    noise = noise_of(measured)
    bottleneck, why = name_bottleneck(parts, ceiling, noise, restarts_workers=restarts_workers(job))
    return Observation(
        machine=hello.machine, job=job, anatomy=parts, noise=noise, ceiling=ceiling, bottleneck=bottleneck, bottleneck_why=why,
        domains=domains, defaults=defaults, withdrawn=withdrawn, fingerprint=hello.fingerprint, startup_s=hello.startup_s,
    )


def restarts_workers(job: JobFacts) -> bool:
    """Whether the job starts its DataLoader workers anew for every epoch."""
    return job.loader is not None and job.loader.num_workers > 0 and not job.loader.persistent_workers


def _cost_without_data(live: LiveComparison) -> float | None:
    """Seconds a sample when batches come from memory, or None if the job does not stand it."""
    try:
        window = live.block({}, cached_batches=True).window
    except BlockFailed:
        return None
    return cost_without_data(window) if window is not None else None


def choose_knobs(bench: Bench, machine: Machine, job: JobFacts) -> tuple[dict, dict, dict]:
    """(knob -> values, knob -> the job's own value, knob -> why it is out)."""
    domains, defaults, withdrawn = {}, {}, {}
    job = replace(job, surveys={**job.surveys, **bench.executor.survey()})
    for knob in bench.spec.search_space.knobs:
        try:
            domain = knob.domain(machine, job)
        except Withdrawn as reason:
            withdrawn[knob.name] = str(reason)
        else:
            domains[knob.name], defaults[knob.name] = domain.values, domain.default
    return domains, defaults, withdrawn


def explain_failure(bench: Bench, failure: SessionFailed) -> BaselineError | HookError:
    """What a failed session of the unchanged job means to its owner."""
    command = " ".join(mask_command(bench.spec.command))
    if failure.kind == "unhooked":
        return HookError(failure.detail, where=command)
    if failure.kind == "agent":
        return HookError(f"autotune's agent failed inside the job: {failure.detail}", where=command,
                         remedy="please report it with the session's agent.log; the job itself was not disturbed")
    if failure.kind == "lost":
        return BaselineError(failure.detail, where=command, expected="machines that stay", remedy="the same command again carries on from here")
    tail = f"\n{failure.log_tail}" if failure.log_tail else ""
    what = {"oom": "runs out of memory", "crash": "fails", "killed": "is killed", "hang": "makes no progress", "ended": "ends too early"}[failure.kind]
    return BaselineError(f"the unchanged job {what}: {failure.detail}{tail}", where=failure.where or command,
                         remedy="make the command run by itself first, then tune it")
