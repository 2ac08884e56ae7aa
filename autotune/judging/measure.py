"""Runs both sides in fresh processes, in turns: comparable? how fast? the same loss? why?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from autotune.errors import BaselineError, HookError
from autotune.executors.base import Executor, SessionFailed
from autotune.explain.records import Finding, Place
from autotune.explain.records import Side as Profiled
from autotune.findings import judge as judge_findings
from autotune.job.configs import key_of, numerics_of
from autotune.judging.comparable import Observed, compare_sides, error_of_side
from autotune.judging.records import Judgement, SideRecord
from autotune.judging.sides import Side
from autotune.results import LossState, LossVerdict, Observation
from autotune.stages.context import ANNOUNCED, OVER, RunContext
from autotune.stages.converge import Asked, check_loss
from autotune.stages.explain import case, describe, measured_peaks, profile
from autotune.stages.measuring.fresh import pair_s, rounds
from autotune.stages.measuring.may_interleave import (
    WHY_NOT,
    keep_decision,
    unrecorded_files,
    why_not,
)
from autotune.stages.measuring.pairs import Pairs
from autotune.tuner import environment
from autotune.verdict.difference import LOOKS, Difference, difference
from autotune.verdict.runs import first_bits_differ, loss_run
from autotune.verdict.words import FIRST_EPOCH
from autotune.words import duration_words
from autotune_spaces.base import Config, Numerics
from autotune_trials.protocol.messages import Record

LOSS_SHARE = 0.15  # share of the budget kept for the loss check: A once more, further pairs
# Parts of the fingerprint that show how the source is arranged. A knob leaves that alone, a commit
# may not; its effect on the training shows in the loss.
ARRANGEMENT = ("modules_in_training", "modules_in_evaluation", "loss_modules", "dataset", "sampler")
NAMES = {"reference": "A", "candidate": "B"}  # of the sides
# The loss check speaks of knobs and of a baseline; here there are A and B.
IN_OUR_WORDS = {
    "settings differ beyond what the knobs declare": "settings differ",
    ", which no knob declared": "",
    "the baseline": "A",
    "the candidate": "B",
    "the job's own": "A's",
}


class SidePairs(Pairs):
    """A and B instead of baseline and candidate; each runs in the executor of its own side.

    ``reference`` holds the runs of A, ``candidate`` those of B.
    """

    def __init__(self, contexts: Mapping[str, RunContext], sides: tuple[Side, Side]) -> None:
        a, b = sides
        super().__init__(contexts["A"], b.knobs, a.knobs, "judge")
        self._by_name = contexts
        self._contexts = {"reference": contexts["A"], "candidate": contexts["B"]}
        self._sides = {"reference": a, "candidate": b}

    def _shown(self, side: str) -> tuple[str, Config | None]:
        return NAMES.get(side, f"A and B, {side}"), None

    def _executor(self, context: RunContext, side: str) -> Executor:
        return self._contexts[side].executor

    def _written(self, context: RunContext) -> str:
        return _written(self._by_name)

    def _measured(self, context: RunContext, side: str, seed: int, again: bool = False) -> Record:
        with self._as_error_of(side):
            return super()._measured(self._contexts[side], side, seed, again)

    def _require_enough(self, side: str, record: Record) -> None:
        with self._as_error_of(side):
            super()._require_enough(side, record)

    @contextmanager
    def _as_error_of(self, side: str) -> Iterator[None]:
        """A failure of either side ends the judgement."""
        try:
            yield
        except (SessionFailed, BaselineError, HookError) as failure:
            raise error_of_side(self._contexts[side], self._sides[side], failure) from failure

    def _longer(self, steps: int) -> str:
        return f"{super()._longer(steps)}|{self.context.spec.budget.minutes:g}"

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
    """Judge B against A.

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
    found = compare_sides(contexts, sides)
    _decide_interleaving(contexts, found)
    observations = {name: it.observation for name, it in found.items()}
    _warn_if_budget_is_short(contexts, observations)
    pairs = SidePairs(contexts, sides)
    speed, reason = _speed(context, pairs, margin)
    context.stop.check()
    context.progress.stage("converge", "paired seeded runs")
    verdict = check_loss(pairs, _asked(contexts["B"], sides, observations, loss))
    if loss == "exact":
        verdict = bits_asked(verdict, pairs)
    verdict = replace(verdict, reason=_in_our_words(verdict.reason))
    context.progress.loss(verdict, {"side": "B"})
    context.stop.check()
    records = []
    for side, anatomy, runs in zip(
        sides, pairs.figures.anatomies(), (pairs.reference, pairs.candidate), strict=True
    ):
        observation = observations[side.name]
        profiled_side, findings = _explained(contexts[side.name], side, observation)
        records.append(
            SideRecord(
                name=side.name,
                what=side.what,
                command=side.command,
                workdir=str(side.spec.workdir),
                anatomy=anatomy,
                peak_memory_gib=max(record.window.peak_memory_gib for record in runs.values()),
                profiled=profiled_side,
                findings=findings,
                torch_version=observation.machine.torch_version,
                python_version=observation.machine.python_version,
            )
        )
    return Judgement(
        speed="undecided" if speed.state == "open" else speed.state,
        speed_reason=f"{reason}. {FIRST_EPOCH}" if pairs.figures.first_epoch_only else reason,
        speedup=speed.interval,
        pairs=speed.pairs,
        interleaved=pairs.interleaved,
        margin=margin,
        loss="undecided" if verdict.verdict == LossState.NO_PROOF else verdict.verdict,
        loss_verdict=verdict,
        sides=tuple(records),
        environment=environment(context, observations["A"]),
        wall_s=round(context.journal.elapsed_s, 1),
        disturbed=len(list(context.journal.all("disturbed"))),
    )


def _decide_interleaving(contexts: Mapping[str, RunContext], found: Mapping[str, Observed]) -> None:
    """Decide for this judgement and those that resume it: see :mod:`.may_interleave`."""
    context = contexts["A"]
    if context.journal.find(WHY_NOT) is not None:
        return
    peak_gib, written = max(it.peak_gib for it in found.values()), _written(contexts)
    reasons = [why_not(contexts[n], it.observation, peak_gib, written) for n, it in found.items()]
    keep_decision(context, next(filter(None, reasons), ""))


def _written(contexts: Mapping[str, RunContext]) -> str:
    """:func:`.may_interleave.unrecorded_files` of both sides."""
    found = (unrecorded_files(it.run_dir / n, it.spec.workdir) for n, it in contexts.items())
    return next(filter(None, found), "")


# ------------------------------------------------------------------ how fast, and the same loss?


def _warn_if_budget_is_short(
    contexts: Mapping[str, RunContext], observations: Mapping[str, Observation]
) -> None:
    """Warn in advance if the first look will take longer than the budget."""
    context = contexts["A"]
    pair = sum(pair_s(contexts[name], it) / 2 for name, it in observations.items())
    needed_s = context.journal.elapsed_s + rounds(context, LOOKS[0]) * pair
    minutes = context.spec.budget.minutes
    if context.journal.find(ANNOUNCED) is None and needed_s > OVER * minutes * 60:
        context.journal.append(ANNOUNCED, "", needed_s)
        context.progress.note(
            f"{LOOKS[0]} pairs are always made: this judgement will take about"
            f" {duration_words(needed_s)}, longer than --minutes ({minutes:g})"
        )


def _speed(context: RunContext, pairs: Pairs, margin: float) -> tuple[Difference, str]:
    """Make pairs until the interval decides, or the looks or the budget's minutes are used up."""
    context.progress.stage("confirm", "fresh processes, A and B alternating")
    minutes = context.spec.budget.minutes
    for look, count in enumerate(LOOKS):
        pairs.ensure(count)
        found = difference(
            pairs.figures.log_speedups(),
            look=look,
            levels=pairs.figures.log_levels(),
            margin=margin,
        )
        if found.state != "open" or look + 1 == len(LOOKS):
            break
        ahead_s = (LOOKS[look + 1] - count) * pairs.pair_s() + LOSS_SHARE * minutes * 60
        if context.out_of_time_at(f"judge|{count}|{minutes:g}", ahead_s):
            break
    return found, _reason(found, margin)


def _reason(found: Difference, margin: float) -> str:
    it = found.interval
    interval = f"{it.estimate:.3f}× ({it.low:.3f} to {it.high:.3f})"
    figures = f"{interval} after {found.pairs} pairs"
    if found.state == "same":
        return f"within {margin:.1%}, {figures}"
    if found.state == "open":
        how = "a quieter machine, more minutes" if found.pairs < LOOKS[-1] else "a quieter machine"
        return f"undecided after {found.pairs} pairs: {interval}; try {how} or a wider --margin"
    return figures


def _asked(
    context: RunContext,
    sides: tuple[Side, Side],
    observations: Mapping[str, Observation],
    loss: str,
) -> Asked:
    """What B has to show."""
    convergence = context.spec.convergence
    declared = {
        path
        for side in sides
        for name in side.knobs
        for path in side.spec.search_space[name].declares
    }
    declared |= {*ARRANGEMENT, *_settings_of_other_torch(observations["A"], observations["B"])}
    kinds = [numerics_of(s.knobs, s.spec.search_space) for s in sides if s.knobs]
    numerics = loss or max([Numerics.ROUNDING, *kinds], key=lambda kind: kind.severity).value
    return Asked(numerics, convergence.tolerance, convergence.steps, declared, convergence.metrics)


def _settings_of_other_torch(a: Observation, b: Observation) -> set[str]:
    """Optimizer settings that only one of two torch versions has, as paths of the fingerprint."""
    if a.machine.torch_version == b.machine.torch_version:
        return set()
    names = [
        {
            key
            for o in it.fingerprint.get("optimizers", ())
            for g in o.get("groups", ())
            for key in g
        }
        for it in (a, b)
    ]
    return {f"optimizers.*.groups.*.{name}" for name in names[0] ^ names[1]}


def bits_asked(verdict: LossVerdict, runs: Pairs) -> LossVerdict:
    """Tighten ``verdict`` where B has to produce the same bits as A.

    The rule takes different bits for another random stream, because it cannot know that nothing was
    supposed to change.
    """
    close = verdict.verdict in (LossState.UNCHANGED, LossState.UNDECIDED)
    if not close or verdict.numerics == Numerics.EXACT.value or not runs.reference:
        return verdict
    first = min(runs.reference)
    again = runs.repeat_reference(first)
    if first_bits_differ(loss_run(runs.reference[first]), loss_run(again)) is not None:
        reason = "A is not bitwise reproducible, so B cannot be compared bit for bit"
        return replace(verdict, verdict=LossState.UNDECIDED, reason=reason)
    seeds = sorted(runs.reference.keys() & runs.candidate.keys())
    pairs = [(loss_run(runs.reference[seed]), loss_run(runs.candidate[seed])) for seed in seeds]
    if all(first_bits_differ(a, b) is None for a, b in pairs):
        return verdict
    reason = f"B does not match A bit for bit, and A is reproducible; {verdict.reason}"
    return replace(verdict, verdict=LossState.CHANGED, reason=reason)


def _in_our_words(reason: str) -> str:
    for theirs, ours in IN_OUR_WORDS.items():
        reason = reason.replace(theirs, ours)
    return reason


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
    """Make places relative to the side's :attr:`~Side.root`."""

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
