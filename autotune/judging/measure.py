"""Both sides in fresh processes, in turns: comparable? how fast? the same loss? why?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from autotune.errors import InputError
from autotune.executors.base import SessionFailed
from autotune.explain.records import Finding, Place
from autotune.explain.records import Side as Profiled
from autotune.findings import judge as judge_findings
from autotune.job.configs import key_of, numerics_of
from autotune.judging.records import Judgement, SideRecord
from autotune.judging.sides import Side
from autotune.results import Observation
from autotune.stages.context import RunContext
from autotune.stages.converge import Asked, check_loss
from autotune.stages.explain import case, describe, measured_peaks, profile, profiled
from autotune.stages.measuring.pairs import Pairs
from autotune.stages.observe import explain_failure
from autotune.stages.profile import observed
from autotune.tuner import environment
from autotune.verdict.difference import LOOKS, Difference, difference
from autotune_spaces.base import Config, Numerics
from autotune_spaces.codec import decode, encode
from autotune_trials.protocol.messages import Record

EXPLAIN_SHARE = 0.15  # of the budget, kept for the profiled runs
LOSS_OF = {"no-proof": "undecided", "not-needed": "unchanged"}  # anything else as it is
SAME_BATCH = 1e-6  # relative


class SidePairs(Pairs):
    """A and B instead of a baseline and a candidate: each is run by the executor of its own side.

    ``reference`` holds the runs of A, ``candidate`` those of B.
    """

    def __init__(self, contexts: Mapping[str, RunContext], sides: tuple[Side, Side]) -> None:
        a, b = sides
        super().__init__(contexts["A"], b.knobs, a.knobs, "judge")
        self._contexts = {"reference": contexts["A"], "candidate": contexts["B"]}

    def _shown(self, side: str) -> tuple[str, Config]:
        return self.label, {"side": "A" if side == "reference" else "B"}

    def _measured(self, context: RunContext, side: str, seed: int, again: bool = False) -> Record:
        own = self._contexts[side]
        try:
            return super()._measured(own, side, seed, again)
        except SessionFailed as failure:  # of a side with knobs; a failure of either ends it all
            raise explain_failure(own, failure) from failure

    def _first_steps(
        self, name: str, config: Config, seed: int, loss_scale: float | None
    ) -> Record:
        label = f"{self.label}-gradient-{name}"
        own = self._contexts["candidate"]
        return own.recorded(
            "|".join([label, key_of(config), str(seed)]),
            label,
            lambda: self._fresh.first_steps(own.executor, config, seed, label, loss_scale),
        )


def judge_sides(
    contexts: Mapping[str, RunContext], sides: tuple[Side, Side], margin: float, loss: str
) -> Judgement:
    """B against A.

    Args:
        contexts: "A" and "B"; they share the journal.
        margin: share within which two speeds are the same.
        loss: what B has to show: a value of :class:`Numerics`, "" for what its knobs may do.

    Raises:
        BaselineError, HookError: a side does not run.
        InputError: sides that cannot be compared.
        Interrupted: the user asked to stop; the same call resumes.
    """
    context = contexts["A"]
    observations = compare_sides(contexts, sides)
    pairs = SidePairs(contexts, sides)
    found, reason = _speed(context, pairs, margin)
    context.stop.check()
    context.progress.stage("converge", "paired seeded runs")
    asked = _asked(contexts["B"], sides, observations["B"], loss)
    verdict = check_loss(pairs, asked)
    context.progress.loss(verdict, {"side": "B"})
    context.stop.check()
    records = []
    for side, anatomy, runs in zip(
        sides, pairs.anatomies(), (pairs.reference, pairs.candidate), strict=True
    ):
        memory = max(record.window.peak_memory_gib for record in runs.values())
        why = _explained(contexts[side.name], side, observations[side.name])
        records.append(
            SideRecord(
                side.name, side.what, side.command, str(side.spec.workdir), anatomy, memory, *why
            )
        )
    return Judgement(
        speed="undecided" if found.state == "open" else found.state,
        speed_reason=reason,
        speedup=found.interval,
        pairs=found.pairs,
        margin=margin,
        loss=LOSS_OF.get(verdict.verdict, verdict.verdict),
        loss_verdict=verdict,
        sides=tuple(records),
        environment=environment(context, observations["A"]),
        wall_s=round(context.journal.elapsed_s, 1),
        disturbed=len(list(context.journal.all("disturbed"))),
    )


# ------------------------------------------------------------------ can they be compared?


def compare_sides(
    contexts: Mapping[str, RunContext], sides: tuple[Side, Side]
) -> dict[str, Observation]:
    """A short profiled run of each side; refused before time is spent if they are unlike.

    Raises:
        InputError: another device, other data, another batch size, other ranks.
    """
    found: dict[str, _Observed] = {}
    for side in sides:
        context = contexts[side.name]
        stored = context.journal.find("side", side.name)
        if stored is None:
            context.progress.stage("observe", f"{side.name}: {side.what}")
            record = profile_of(context, side)
            hello = context.executor.last_hello
            assert hello is not None
            it = _Observed(observed(context, hello, record), median(record.window.samples))
            context.journal.append("side", side.name, encode(it))
            context.stop.check()
        else:
            it = decode(_Observed, stored)
        found[side.name] = it
    if unlike := _unlike(found["A"], found["B"]):
        raise InputError(
            f"the sides cannot be compared: {unlike}",
            where=f"A: {sides[0].what}; B: {sides[1].what}",
            expected="the same work: data, batch size, device and number of processes",
            remedy="judge one change at a time; `autotune run` tunes the batch size",
        )
    return {name: it.observation for name, it in found.items()}


@dataclass(frozen=True)
class _Observed:
    observation: Observation
    samples: float  # of an iteration


def profile_of(context: RunContext, side: Side) -> Record:
    """The profiled run of a side, made once.

    Raises:
        BaselineError, HookError: it does not run.
    """
    try:
        return profiled(context, side.name, side.knobs)
    except SessionFailed as failure:
        raise explain_failure(context, failure) from failure


def _unlike(a: _Observed, b: _Observed) -> str:
    """What differs in the work itself, in words; "": nothing."""
    jobs = a.observation.job, b.observation.job
    facts: list[tuple[str, object, object]] = [
        ("device", jobs[0].device, jobs[1].device),
        ("processes", jobs[0].world_size, jobs[1].world_size),
        ("samples per iteration", a.samples, b.samples),
    ]
    if jobs[0].loader and jobs[1].loader:
        facts.append(("samples in the data set", jobs[0].loader.samples, jobs[1].loader.samples))
    return "; ".join(f"{name}: {x} in A, {y} in B" for name, x, y in facts if x != y)


# ------------------------------------------------------------------ how fast, and the same loss?


def _speed(context: RunContext, pairs: Pairs, margin: float) -> tuple[Difference, str]:
    """Pairs until the interval decides, the looks are used up or the budget's minutes are."""
    context.progress.stage("confirm", "fresh processes, A and B in turn")
    minutes = context.spec.budget.minutes
    began = time.monotonic()
    for look, count in enumerate(LOOKS):
        have = len(pairs.reference)
        pairs.ensure(count)
        made = max(count - have, 1)
        pair_s = (time.monotonic() - began) / made
        found = difference(
            pairs.log_speedups(), look=look, levels=pairs.log_levels(), margin=margin
        )
        if found.state != "open" or look + 1 == len(LOOKS):
            break
        began = time.monotonic()
        ahead_s = (LOOKS[look + 1] - count) * pair_s + EXPLAIN_SHARE * minutes * 60
        if context.out_of_time_at(f"judge|{count}", ahead_s):
            break
    return found, _reason(found, margin, minutes)


def _reason(found: Difference, margin: float, minutes: float) -> str:
    it = found.interval
    figures = f"{it.estimate:.3f}× ({it.low:.3f} to {it.high:.3f}) after {found.pairs} pairs"
    if found.state == "same":
        return f"within {margin:.1%}, {figures}"
    if found.state == "open":
        how = "a quieter machine, more minutes" if found.pairs < LOOKS[-1] else "a quieter machine"
        return f"{figures} leaves it open after {minutes:g} minutes; try {how} or a wider --margin"
    return figures


def _asked(
    context: RunContext, sides: tuple[Side, Side], observation: Observation, loss: str
) -> Asked:
    """What B has to show."""
    convergence = context.spec.convergence
    declared = {
        path
        for side in sides
        for name in side.knobs
        for path in side.spec.search_space[name].declares
    }
    kinds = [numerics_of(s.knobs, s.spec.search_space) for s in sides if s.knobs]
    numerics = loss or max([Numerics.ROUNDING, *kinds], key=lambda kind: kind.severity).value
    return Asked(numerics, convergence.tolerance, convergence.steps, declared, convergence.metrics)


# ------------------------------------------------------------------ why?


def _explained(
    context: RunContext, side: Side, observation: Observation
) -> tuple[Profiled | None, tuple[Finding, ...]]:
    """Operators and findings of a side, from the run that observed it."""
    record = profile(context, side.name, side.knobs)
    if record is None:
        return None, ()
    peaks = measured_peaks(context, observation, [side.knobs])
    it = describe(context, observation, side.name, side.knobs, record, peaks)
    judged = judge_findings({"baseline": case(observation, side.name, it, record, peaks)})
    return it, tuple(_placed(finding, side) for finding in judged.findings)


def _placed(finding: Finding, side: Side) -> Finding:
    """With places as paths within the side's repository or working directory."""

    def within(place: Place) -> Place:
        path = Path(place.file)
        return (
            replace(place, file=str(path.relative_to(side.root)))
            if path.is_relative_to(side.root)
            else place
        )

    return replace(
        finding,
        side=side.name,
        place=None if finding.place is None else within(finding.place),
        places=tuple(map(within, finding.places)),
    )
