"""CONVERGE: does the loss still converge the same way?

Baseline and candidate run with the same seeds in fresh processes, and their losses are compared
pair by pair. First the fingerprint, which needs no training: settings that no knob declares must be
equal. Then the curves: unchanged, changed or undecided. Undecided asks for more pairs, then once
for twice the steps; if it stays undecided, the candidate is not adopted. A loss that moves too
little to show a change gets up to four times the steps. The job's own metrics are checked in the
same way.

This certifies the same early trajectory over these steps and seeds, never the same final quality.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autotune.executors.base import SessionFailed
from autotune.job.configs import numerics_of
from autotune.job.spec import Metric
from autotune.results import LossState, LossVerdict, MetricVerdict
from autotune.stages.context import RunContext
from autotune.stages.measuring.pairs import Pairs, SharedBaseline
from autotune.verdict.fingerprint import fingerprint_differences
from autotune.verdict.loss import OTHER_BATCHES, RULES, LossDecision, compare, next_look
from autotune.verdict.metrics import at_same_samples, compare_metric
from autotune.verdict.probe import PROBE_TOLERANCE
from autotune.verdict.runs import LossRun, loss_run
from autotune_spaces.base import Config, Numerics
from autotune_trials.protocol.messages import Record

# times as many steps: times as far as now that the job's loss may then be expected to move; a loss
# falls ever more slowly
WITHIN_REACH = {2: 1.3, 4: 3.0}
SHOWN_DIFFERENCES = 4  # settings named in the reason; further ones are counted


@dataclass(frozen=True)
class Asked:
    """What the candidate has to show."""

    numerics: str  # "exact", "rounding", "random-stream", "statistical"
    tolerance: float = 0.01
    steps: int = 240
    declared: Collection[str] = ()  # settings the knobs may change: see verdict.fingerprint
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # those the user asked for


def converge(context: RunContext, config: Config, pairs: Pairs) -> LossVerdict:
    """Compare the losses of ``pairs``, adding pairs until the rule decides."""
    context.progress.stage("converge", "paired seeded runs")
    verdict = replace(check_loss(pairs, asked(context, config)), config=dict(config))
    context.progress.loss(verdict, config)
    return verdict


def converge_alone(context: RunContext, config: Config, pairs: Pairs, label: str) -> LossVerdict:
    """Take a quick look at the loss of a part of the configuration.

    It is compared with the baseline runs that ``pairs`` has.
    """
    shared = SharedBaseline(pairs, config, label)
    return replace(
        check_loss(shared, asked(context, config), most_pairs=len(pairs.reference)),
        config=dict(config),
    )


def asked(context: RunContext, config: Config) -> Asked:
    """What ``config`` has to show, given its knobs and the job file."""
    space, convergence = context.spec.search_space, context.spec.convergence
    declared = {path for name in config for path in space[name].declares}
    numerics = numerics_of(config, space).value
    if numerics == Numerics.ROUNDING.value and _redraws(context, config):
        numerics = "random-stream"
    return Asked(numerics, convergence.tolerance, convergence.steps, declared, convergence.metrics)


def _redraws(context: RunContext, config: Config) -> bool:
    """Whether the observed model has dropout that draws other random numbers under ``config``."""
    observation, space = context.observation, context.spec.search_space
    if observation is None:
        return False
    job = observation.job
    return any(model.dropouts for model in job.models) and any(
        job.device in space[name].redraws for name in config
    )


def check_loss(runs: Pairs, asked: Asked, *, most_pairs: int | None = None) -> LossVerdict:
    """Return the loss verdict on ``runs``.

    Args:
        most_pairs: limit on the number of pairs; None: up to the rule's last look, then again with
            up to four times the steps if those may decide.
    """
    verdict = LossVerdict(LossState.UNDECIDED, "no run was made", 0, 0, numerics=asked.numerics)
    float16 = None
    try:
        runs.ensure(1)
        differences = _fingerprint(runs, asked.declared)
        if differences:
            return LossVerdict(
                LossState.CHANGED,
                f"settings differ beyond what the knobs declare: {differences}",
                1,
                0,
                numerics=asked.numerics,
            )
        if asked.numerics != "random-stream":  # other dropout masks hide what rounding does
            float16 = runs.float16_gradient()
        verdict = _look_by_look(runs, asked, float16, most_pairs, runs.stretched)
        while (
            most_pairs is None
            and (longer := _longer(verdict, runs.stretched))
            and runs.lengthen(longer * asked.steps)
        ):
            runs.stretched = longer
            verdict = _look_by_look(runs, asked, float16, None, longer)
    except SessionFailed as failure:
        why = f"a further run failed ({failure})"
        if verdict.verdict == LossState.NO_PROOF:
            return replace(verdict, reason=f"{verdict.reason}; {why}")
        return replace(verdict, verdict=LossState.UNDECIDED, reason=why, pairs=len(runs.candidate))
    return _without_probe(verdict, runs)


def _longer(verdict: LossVerdict, stretched: int) -> int:
    """How many times ``convergence.steps`` may decide what ``stretched`` times have not; 0: none."""
    if verdict.verdict == LossState.UNDECIDED and not verdict.chaotic:
        return 2 if stretched == 1 else 0
    wanted = next((n for n, most in WITHIN_REACH.items() if 1 <= verdict.lacks <= most), 0)
    return wanted * stretched if wanted * stretched <= max(WITHIN_REACH) else 0


def _without_probe(verdict: LossVerdict, runs: Pairs) -> LossVerdict:
    """Say so if the first steps could not be probed.

    float16 is then not adopted: that small gradients underflow may not show in the loss.
    """
    records = (*runs.reference.values(), *runs.candidate.values())
    why = next((r.notes["probe"] for r in records if "probe" in r.notes), "")
    half = runs.configs["candidate"].get("amp_dtype") == "float16"
    probed = half or verdict.numerics in PROBE_TOLERANCE
    if not (why and probed and verdict.verdict == LossState.UNCHANGED):
        return verdict
    return replace(
        verdict,
        verdict=LossState.UNDECIDED if half else verdict.verdict,
        reason=f"{verdict.reason}; the gradients of the first steps were not compared: {why}",
    )


def _fingerprint(runs: Pairs, declared: Collection[str]) -> str:
    """Undeclared differences in words; "" if there are none."""
    seed = min(runs.reference)
    found = fingerprint_differences(
        runs.reference[seed].fingerprint, runs.candidate[seed].fingerprint, declared
    )
    more = f"; and {len(found) - SHOWN_DIFFERENCES} more" if len(found) > SHOWN_DIFFERENCES else ""
    return "; ".join(found[:SHOWN_DIFFERENCES]) + more


def _look_by_look(
    runs: Pairs,
    asked: Asked,
    float16: tuple[float, float] | None,
    most_pairs: int | None,
    stretched: int = 1,
) -> LossVerdict:
    while True:
        have = len(runs.reference)
        further = next_look(have, asked.numerics)
        if most_pairs is not None and (further or 0) > most_pairs:
            further = None
        decision = _compare(runs, asked, float16, stretched, last=further is None)
        metrics = _metrics(runs, asked, decision) if decision.state == "unchanged" else ()
        waiting = decision.state == "more-pairs" or any(m.verdict == "undecided" for m in metrics)
        if not waiting or further is None:
            return _verdict(decision, metrics, asked.metrics)
        if why := runs.late(further):
            decision = _compare(runs, asked, float16, stretched, last=True)
            verdict = _verdict(decision, metrics, asked.metrics)
            return replace(verdict, reason=f"{verdict.reason}; {why}")
        runs.ensure(further)


def _compare(
    runs: Pairs, asked: Asked, float16: tuple[float, float] | None, stretched: int, last: bool
) -> LossDecision:
    if not runs.reference:
        return compare({}, {}, asked.numerics, last_look=last)
    judge = partial(
        compare,
        {s: loss_run(r) for s, r in runs.reference.items()},
        {s: _candidate(r, float16) for s, r in runs.candidate.items()},
        asked.numerics,
        tolerance=asked.tolerance,
        steps=stretched * asked.steps,
        stretched=stretched,
        last_look=last,
    )
    decision = judge()
    if not _depends_on_repeating(decision, asked.numerics):
        return decision
    return judge(baseline_repeat=loss_run(runs.repeat_reference(min(runs.reference))))


def _depends_on_repeating(decision: LossDecision, numerics: str) -> bool:
    """Whether the decision might be another one if the job by itself does not repeat its losses.

    That takes one more run of the job. It explains bits that an exact knob should not change, and
    the differences of a knob that only rounds; a knob that draws other random numbers is judged
    alike in both cases.
    """
    if numerics == Numerics.EXACT.value:
        return decision.numerics_used != numerics
    if decision.reason == OTHER_BATCHES:
        return True
    return numerics == Numerics.ROUNDING.value and decision.state in ("changed", "undecided")


def _candidate(record: Record, float16: tuple[float, float] | None) -> LossRun:
    run = loss_run(record)
    return (
        run
        if float16 is None
        else replace(run, gradient_error=float16[0], gradient_error_allowed=float16[1])
    )


def _metrics(runs: Pairs, asked: Asked, decision: LossDecision) -> tuple[MetricVerdict, ...]:
    """Judge every metric that the job reported or the user asked for."""
    names = dict.fromkeys(
        [*asked.metrics, *(n for r in runs.reference.values() for n in r.metrics)]
    )
    rule = RULES.get(decision.numerics_used, RULES["random-stream"])
    found = []
    for name in names:
        tolerance = asked.metrics.get(name, Metric()).tolerance or asked.tolerance
        sides: list[dict[int, Sequence[float]]] = [
            {s: r.metrics.get(name, ()) for s, r in side.items()}
            for side in (runs.reference, runs.candidate)
        ]
        if decision.numerics_used == Numerics.STATISTICAL.value:
            sides = _over_the_same_samples(name, runs)
        found.append(
            compare_metric(
                name, *sides, tolerance=tolerance * rule.tolerance_factor, looks=rule.looks
            )
        )
    return tuple(found)


def _over_the_same_samples(name: str, runs: Pairs) -> list[dict[int, Sequence[float]]]:
    """The values of a metric on both sides, which have different batch sizes: seed -> values.

    Values without positions are matched by their order if both sides have equally many.
    """
    sides: list[dict[int, Sequence[float]]] = [{}, {}]
    for seed in runs.reference.keys() & runs.candidate.keys():
        pair = runs.reference[seed], runs.candidate[seed]
        (one, at), (other, other_at) = (
            (r.metrics.get(name, ()), r.metrics_at.get(name, ())) for r in pair
        )
        matched: tuple[Sequence[float], Sequence[float]] = at_same_samples(one, at, other, other_at)
        if not at and not other_at and len(one) == len(other):
            matched = one, other
        sides[0][seed], sides[1][seed] = matched
    return sides


def _verdict(
    decision: LossDecision, metrics: tuple[MetricVerdict, ...], wanted: Collection[str]
) -> LossVerdict:
    verdict = LossVerdict(
        verdict=LossState({"more-pairs": "undecided"}.get(decision.state, decision.state)),
        reason=decision.reason,
        pairs=decision.pairs,
        steps=decision.steps,
        margin=decision.margin,
        largest_difference=decision.largest_difference,
        numerics=decision.numerics_used,
        baseline_curve=decision.baseline_curve,
        candidate_curve=decision.candidate_curve,
        metrics=metrics,
        chaotic=decision.chaotic,
        lacks=decision.lacks,
    )
    for state, said in (
        (LossState.CHANGED, "converges differently"),
        (LossState.UNDECIDED, "is neither clearly the same nor different"),
    ):
        against = [m for m in metrics if m.verdict == state]
        if against:
            return replace(
                verdict, verdict=state, reason=f"{against[0].name} {said}: {against[0].reason}"
            )
    unjudged = [m for m in metrics if m.verdict == "not-judged" and m.name in wanted]
    if unjudged:
        return replace(
            verdict,
            verdict=LossState.UNDECIDED,
            reason=f"{unjudged[0].name} cannot be judged: {unjudged[0].reason}",
        )
    return verdict
