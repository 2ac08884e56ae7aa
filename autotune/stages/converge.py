"""CONVERGE: does the loss still take the same way?

Baseline and candidate run with the same seeds in fresh processes; their losses are compared pair by pair. First the
fingerprint (no training needed): settings that the knobs did not declare must be the same. Then the curves: unchanged,
changed, or undecided, which asks for more pairs and in the end is not adopted.

What is certified is the same early trajectory over these steps and seeds; never the same final quality.
"""

from __future__ import annotations

from autotune.executors.base import SessionFailed
from autotune.job.configs import numerics_of
from autotune.results import LossVerdict
from autotune.stages.bench import Bench
from autotune.stages.pairs import Pairs
from autotune.verdict.loss import LossDecision, compare, fingerprint_differences, loss_run, next_look
from autotune_spaces.base import Config, Numerics


def converge(bench: Bench, config: Config, pairs: Pairs) -> LossVerdict:
    """Compare the losses of ``pairs``, adding pairs until the rule decides."""
    bench.progress.stage("converge", "paired seeded runs")
    numerics = numerics_of(config, bench.spec.search_space)
    differences = _fingerprint(bench, config, pairs)
    if differences:
        verdict = LossVerdict("changed", "settings differ that no knob declares: " + "; ".join(differences[:4]), 1, 0, numerics=numerics.value)
    else:
        verdict = _compare(bench, config, pairs, numerics)
    bench.progress.loss(verdict, config)
    return verdict


def _fingerprint(bench: Bench, config: Config, pairs: Pairs) -> list[str]:
    declared = {path for name in config for path in bench.spec.search_space[name].declares}
    seed = min(pairs.reference)
    return fingerprint_differences(pairs.reference[seed].fingerprint, pairs.candidate[seed].fingerprint, declared)


def _compare(bench: Bench, config: Config, pairs: Pairs, numerics: Numerics) -> LossVerdict:
    repeat = loss_run(pairs.repeat_reference(min(pairs.reference))) if numerics is not Numerics.STATISTICAL else None
    while True:
        have = len(pairs.reference)
        further = next_look(have, numerics.value)
        decision = compare(
            {s: loss_run(r) for s, r in pairs.reference.items()},
            {s: loss_run(r) for s, r in pairs.candidate.items()},
            numerics.value, tolerance=bench.spec.convergence.tolerance, steps=bench.spec.convergence.steps,
            baseline_repeat=repeat, last_look=further is None,
        )
        if decision.state != "more-pairs" or further is None:
            return _verdict(decision)
        try:
            pairs.ensure(further)
        except SessionFailed as failure:
            return LossVerdict("undecided", f"a further run failed ({failure})", have, decision.steps, numerics=numerics.value)


def _verdict(decision: LossDecision) -> LossVerdict:
    word = {"unchanged": "unchanged", "changed": "changed"}.get(decision.state, "undecided")
    return LossVerdict(
        word, decision.reason, decision.pairs, decision.steps, decision.margin, decision.largest_difference,
        decision.numerics_used, decision.baseline_curve, decision.candidate_curve,
    )
