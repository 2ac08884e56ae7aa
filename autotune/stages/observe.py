"""OBSERVE: the job as it is.

One live session of the baseline gives its own knob values, where an iteration's time goes, how noisy this machine is, and
the ceiling: how fast the job would run if batches cost nothing. From that follow the bottleneck and the knobs worth searching.

    B │ B │ ceiling │ B │ B          five blocks, one process
    ██████████                       and one fresh process of the bare job, which ends where the job ends
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from autotune.errors import BaselineError, HookError
from autotune.executors.base import SessionFailed
from autotune.results import NO_FASTER, Anatomy, Observation
from autotune.secrets import mask_command
from autotune.stages.bench import Bench
from autotune.stages.fresh import FreshRuns
from autotune.stages.lanes import MOST_LOST
from autotune.stages.live import BlockFailed, LiveComparison
from autotune.tracking.records import record_baseline
from autotune.verdict.speedup import noise_of
from autotune.verdict.timing import anatomy, cost_without_data
from autotune_spaces.base import Withdrawn
from autotune_spaces.codec import decode, encode
from autotune_spaces.facts import JobFacts, Machine
from autotune_trials.protocol import Record

# Shares of the iteration above which a phase is named as the bottleneck. A fifth of the time is what a perfect cure of
# that phase would give as a 1.25x speed-up: worth a headline; below it no single phase is "the" bottleneck.
LOADER_SHARE, OPTIMIZER_SHARE, OTHER_SHARE = 0.20, 0.25, 0.40
FIRST_RUN, FIRST_SEED = "first-run", 0  # its key in the journal; the seed of the first pair
QUIET = 0.02  # noise below which a ceiling with two decimals needs no more said


def observe(bench: Bench) -> Observation:
    """Measure the baseline, or take it from the journal of a resumed run.

    Raises:
        BaselineError: the job fails by itself, or is too short to be timed.
        HookError: the agent cannot get in, or sees no optimizer step.
    """
    bench.progress.stage("observe", "the job as it is")
    stored = bench.journal.find("observation")
    if stored is not None:
        observation = decode(Observation, stored)
    else:
        observation = _measure(bench)
        bench.journal.append("observation", "", encode(observation))
    if observation.job.loader is not None:
        bench.executor.loader_key = observation.job.loader.key
    first_run(bench)
    record_baseline(bench.tracker, observation)
    bench.progress.observed(observation)
    return observation


def first_run(bench: Bench) -> Record:
    """The unchanged job in a fresh process, as the confirmation will run it. A live session stretches epochs and so does not see how
    long the job is: one that is too short for the proof is refused here, and not after the search.

    No run of a pair: its neighbour in time would be minutes away. The loss check takes it for its repeated run (:meth:`Pairs.repeat_reference`).

    Raises:
        BaselineError: the job fails, or has too few iterations to be timed.
        HookError: the agent cannot get in.
    """
    runs = FreshRuns(bench, bench.spec.convergence.steps, FIRST_RUN)

    def measure() -> Record:
        for attempt in itertools.count(1):
            bench.progress.fixed_run("the job as it is", 1, 1, {})
            try:
                return runs.run(bench.executor, {}, FIRST_SEED, FIRST_RUN, ())
            except SessionFailed as failure:
                if failure.kind != "lost" or not bench.executor.fails_over or attempt > MOST_LOST:
                    raise explain_failure(bench, failure) from failure
                bench.progress.warning(f"{failure.detail}: what was being measured there is measured again")
        raise AssertionError("the loop above returns or raises")

    return bench.recorded(FIRST_RUN, FIRST_RUN, measure)


def _measure(bench: Bench) -> Observation:
    try:
        with LiveComparison(bench) as live:
            hello = live.session.hello
            live.reference({})  # sizes the blocks; not counted
            blocks = [live.block({}), live.block({})]
            ceiling = _ceiling(live) if hello.job.loader is not None else None
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
    window = blocks[1].window
    assert window is not None
    parts = anatomy(window, blocks[1].settle_iterations)
    domains, defaults, withdrawn = choose_knobs(bench, hello.machine, hello.job)
    noise = noise_of(measured)
    bottleneck, why = name_bottleneck(parts, mean_cost / ceiling if ceiling else None, noise)
    return Observation(
        machine=hello.machine, job=hello.job, anatomy=parts, noise=noise,
        ceiling=mean_cost / ceiling if ceiling else None, bottleneck=bottleneck, bottleneck_why=why,
        domains=domains, defaults=defaults, withdrawn=withdrawn, fingerprint=hello.fingerprint, startup_s=hello.startup_s,
    )


def _ceiling(live: LiveComparison) -> float | None:
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


def name_bottleneck(parts: Anatomy, ceiling: float | None, noise: float = 0.0) -> tuple[str, str]:
    """(class, one sentence with the figures). ``noise``: as a share, of one block; the ceiling is one block's, and no surer than that."""
    total = sum(parts.phases_s.values()) or parts.batch_cost_s
    share = {phase: seconds / total for phase, seconds in parts.phases_s.items()}
    compute = share.get("forward", 0.0) + share.get("backward", 0.0)
    bound = f"; with batches for nothing it would run {_bound(ceiling, noise)}" if ceiling else ""
    if parts.reader_ratio >= LOADER_SHARE:
        return "loader", f"{parts.reader_ratio:.0%} of the time is spent waiting for the next batch{bound}"
    if share.get("optimizer", 0.0) >= OPTIMIZER_SHARE:
        return "optimizer", f"{share['optimizer']:.0%} of the time is spent in the optimizer step"
    if share.get("other", 0.0) >= OTHER_SHARE:
        return "overhead", f"{share['other']:.0%} of the time is spent outside loading, forward, backward and optimizer"
    return "compute", f"{compute:.0%} of the time is spent in forward and backward{bound}"


def _bound(ceiling: float, noise: float) -> str:
    if ceiling < NO_FASTER:
        return "no faster"
    return f"{ceiling:.2f}x as fast" + (f" (± {noise:.0%})".replace("%", " %") if noise >= QUIET else "")


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
    remedy = "make the command run by itself first, then tune it"
    if failure.kind == "hang":
        remedy += "; if it does pause for so long, say how long with hang_timeout_s in job.yaml"
    return BaselineError(f"the unchanged job {what}: {failure.detail}{tail}", where=failure.where or command, remedy=remedy)
