"""Is the loss unchanged? Compares baseline and candidate runs with the same seeds, pair by pair.

It certifies the same *early trajectory* within a margin, never the same final quality. The steps of
the rule:

    not finite ── only in the candidate ──▶ changed
    does the baseline's own loss move? ── no ──▶ no-proof
    same bits (enough steps, one pair) ──▶ unchanged         exact: a mismatch only demotes to random-stream
    probe of the first steps ── differs ──▶ changed
    paired difference in every bin, with its interval
        │      −Δ         0         +Δ
        │       ├────[────×────]────┤             inside in all bins  ──▶ unchanged
        │       ├─────────┼─────────┤  [──×──]    outside in any bin  ──▶ changed
        │       ├─────────┼────[────┼───×──]      else ──▶ more-pairs, after the last look undecided
        └ rounding alone, and pairs end up unrelated ──▶ never changed: the job is chaotic

The margin of a bin is Δ = max(τ · |loss|, min(κ · seed SD, 10% of the window's progress)): a
difference no larger than that between seeds is harmless, up to a tenth of the window's progress.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev, variance

from autotune.verdict.equivalence import Differences, judge
from autotune.verdict.probe import float16_fault, probe
from autotune.verdict.runs import (
    LossRun,
    bin_integrals,
    bin_means,
    curve,
    first_bits_differ,
    movement,
    same_steps,
    sample_bins,
    step_bins,
)

TOLERANCE = 0.01  # τ: MLPerf's reference convergence points scatter by about as much between seeds
SEED_SHARE = 1.0  # κ
PROGRESS_SHARE = 0.10
PROGRESS_FLOOR = 0.001  # share of the progress, for a loss near zero, where τ · |loss| vanishes
EXACT_STEPS = 20
ABOUT_AS_MANY = 0.1  # share by which counts of samples may differ that are chance in the job itself
CHAOTIC_SHARE = 0.25  # of the variance of unrelated runs, beyond which runs of one seed are such
CHANCE = 4.0  # standard errors of the mean difference of unrelated runs
ENOUGH_FOR_CHAOS = 5  # pairs, as many as a proof has
CHAOTIC = (
    "two runs with the same seed drift as far apart as two seeds do, so rounding alone may decide"
    " what this job learns in these steps; only what leaves every bit as it is can be certified,"
    " unless a larger difference is allowed (convergence.tolerance)"
)
OTHER_BATCHES = "the runs used batches of different sizes or numbers, which no knob declared"
FLOAT16_STEPS = 240  # shorter windows let a mild underflow through
STATISTICAL_STEPS = 240  # of the baseline
LARGE_BATCH_STEPS = 30


@dataclass(frozen=True)
class Rule:
    """What a change of one numerics class has to show."""

    bins: int
    tolerance_factor: float  # multiplies the tolerance
    first_half_factor: float  # multiplies the margin in the first half of the bins
    looks: tuple[int, ...]  # in pairs
    minimum_steps: int  # of the baseline
    # A run that learns nothing must be this many margins away, or the window proves nothing. No
    # probe of the first steps judges how fast a larger batch learns.
    visible: float


RULES = {
    "rounding": Rule(6, 1.0, 1.0, (2, 3, 4, 6, 8), 60, 1.5),
    "random-stream": Rule(2, 2.0, 2.0, (3, 5, 8, 12), 60, 1.5),
    "statistical": Rule(2, 2.0, 2.0, (3, 5, 8, 12), STATISTICAL_STEPS, 4.0),
}


@dataclass(frozen=True)
class LossDecision:
    """``margin`` and ``largest_difference`` belong to the deciding bin, in the loss's own unit."""

    state: str  # "unchanged", "changed", "undecided", "more-pairs", "no-proof"
    reason: str
    margin: float | None = None
    largest_difference: float | None = None
    pairs: int = 0
    steps: int = 0
    numerics_used: str = "exact"
    baseline_curve: Mapping[int, float] = field(default_factory=dict)
    candidate_curve: Mapping[int, float] = field(default_factory=dict)
    chaotic: bool = False  # two runs of one seed drift apart as far as two seeds do
    # no-proof because the job's loss moves too little: how many times as far it would have to
    lacks: float = 0.0


def next_look(n: int, numerics: str) -> int | None:
    """Pairs needed for the next look, or None after the last. "exact" needs one, then as many as
    "random-stream"."""
    if numerics == "exact" and n < 1:
        return 1
    looks = RULES["random-stream" if numerics == "exact" else numerics].looks
    return next((look for look in looks if look > n), None)


def compare(
    baselines: Mapping[int, LossRun],
    candidates: Mapping[int, LossRun],
    numerics: str,
    *,
    tolerance: float = TOLERANCE,
    baseline_repeat: LossRun | None = None,
    last_look: bool = False,
    steps: int | None = None,
    stretched: int = 1,
) -> LossDecision:
    """The verdict on ``candidates`` against ``baselines``.

    Args:
        baselines: seed -> run; seeds without a candidate still show how much seeds differ.
        candidates: seed -> run with the same seed.
        numerics: "exact", "rounding", "random-stream" or "statistical": the most severe class among
            the candidate's knobs.
        tolerance: share of the loss that may differ (doubled for the last two classes).
        baseline_repeat: the baseline's smallest seed run again; a mismatch demotes the class,
            because the job itself is not repeatable.
        last_look: no further pairs will come: "undecided" instead of "more-pairs".
        steps: compare only this many first steps; None: all that both sides have.
        stretched: length of the window in usual windows. The number of bins grows with it, because
            longer bins would dilute a change in a part of them.

    Raises:
        ValueError: an unknown class.
    """
    if numerics != "exact" and numerics not in RULES:
        raise ValueError(f"unknown class of numerics {numerics!r}")
    recorded = {s: len(run.losses) for s, run in baselines.items()}
    baselines, candidates = _cut(baselines, steps), _cut(candidates, steps)
    seeds = sorted(baselines.keys() & candidates.keys())
    left = {s: baselines[s] for s in seeds}
    # steps that the job's own scaler skips on both sides are no doing of the candidate
    right = {
        s: replace(
            candidates[s], skipped=[i for i in candidates[s].skipped if i not in left[s].skipped]
        )
        for s in seeds
    }
    common = min((min(left[s].steps, right[s].steps) for s in seeds), default=0)
    sides = _Sides(baselines, left, right, common, baseline_repeat)
    found = _early(sides, numerics, recorded, last_look)
    if found is None:
        used = _class_in_force(sides, numerics)
        found = _other_batches(sides, used)
        if found is None:
            found = _by_curves(sides, used, tolerance, stretched, last_look)
    return replace(
        found,
        pairs=len(seeds),
        steps=common,
        baseline_curve=curve(left.values()),
        candidate_curve=curve(right.values()),
    )


@dataclass(frozen=True)
class _Sides:
    """The runs that are compared, seed -> run; ``left`` and ``right`` have the same seeds."""

    baselines: Mapping[int, LossRun]  # with those of further seeds
    left: Mapping[int, LossRun]  # the baselines
    right: Mapping[int, LossRun]  # the candidates
    common: int  # steps that all of them have
    repeat: LossRun | None  # the baseline's smallest seed run again


def _early(
    sides: _Sides, numerics: str, recorded: Mapping[int, int], last_look: bool
) -> LossDecision | None:
    """What needs no curves: no pair, a loss that is not finite, the same bits, too few steps."""

    def decision(state: str, reason: str, margin: float | None = None) -> LossDecision:
        return LossDecision(state, reason, margin, margin, numerics_used=numerics)

    left, right, common = sides.left, sides.right, sides.common
    if not left:
        state = "undecided" if last_look else "more-pairs"
        return decision(state, "no seed has been run on both sides")
    same_bits = _same_bits(left, right, common)
    broken = _not_finite(sides.baselines, right, recorded)
    alike = numerics == "exact" and common >= EXACT_STEPS and same_bits
    if broken and not (alike and broken[0] == "no-proof"):
        return decision(*broken)
    if numerics != "statistical" and common >= _enough_for_bits(numerics) and same_bits:
        return decision("unchanged", f"the losses of {common} steps are bit-identical", 0.0)
    if numerics == "exact" and common < EXACT_STEPS:
        reason = (
            f"the runs have {common} steps, but {EXACT_STEPS} are needed: give the job more steps"
        )
        return decision("no-proof", reason)
    return None


def _class_in_force(sides: _Sides, numerics: str) -> str:
    """The class whose rule holds: a job whose own runs do not repeat cannot be held to a stricter
    one, and exact knobs that changed bits are held to that of random streams.
    """
    if numerics in ("exact", "rounding"):
        repeatable, demoted_to = _repeatable(sides.baselines, sides.repeat)
        if not repeatable:
            return demoted_to
    return "random-stream" if numerics == "exact" else numerics


def _other_batches(sides: _Sides, used: str) -> LossDecision | None:
    """Whether the candidate trained on batches of other sizes or numbers, which no knob declared."""
    left, right, repeat = sides.left, sides.right, sides.repeat
    if used == "statistical" or all(same_steps(left[s], right[s]) for s in left):
        return None
    # a thread that reads ahead: which step a batch is counted in is chance in the job itself
    by_chance = repeat is not None and not same_steps(sides.baselines[min(sides.baselines)], repeat)
    if by_chance and all(_about_as_many(left[s], right[s]) for s in left):
        return None
    return LossDecision("changed", OTHER_BATCHES, numerics_used=used)


def _by_curves(
    sides: _Sides, used: str, tolerance: float, stretched: int, last_look: bool
) -> LossDecision:
    """The first steps by their norms, and all of them by the paired difference in each bin."""
    baselines, left, right, common = sides.baselines, sides.left, sides.right, sides.common
    if used == "statistical":  # steps beyond the shared samples prove nothing
        shared = min(
            r.samples_before[r.steps - 1] if r.steps else 0.0
            for r in (*baselines.values(), *right.values())
        )
        baselines, right = _up_to(baselines, shared), _up_to(right, shared)
        left = {s: baselines[s] for s in left}
    rule = replace(RULES[used], bins=RULES[used].bins * stretched)
    too_short = _too_short(left, right, common, rule, used)
    if too_short:
        return LossDecision("no-proof", too_short, numerics_used=used)
    limits = _margins(baselines, right, common, rule, tolerance, by_samples=used == "statistical")
    if isinstance(limits, LossDecision):
        return replace(limits, numerics_used=used)
    fault = float16_fault(right) or probe(left, right, used)
    if fault:
        return LossDecision("changed", fault, numerics_used=used)
    found = _by_bins(left, right, common, limits, rule, used, last_look)
    related = used != "rounding" or not _chaotic(baselines, right, common, limits.margins[-1])
    if related or found.state == "unchanged":
        return found
    # what seeds decide is no sign of a change, and further pairs show no more
    over = last_look or len(left) >= ENOUGH_FOR_CHAOS
    state = "undecided" if over else "more-pairs"
    return replace(found, state=state, reason=CHAOTIC, chaotic=True)


def _cut(runs: Mapping[int, LossRun], steps: int | None) -> dict[int, LossRun]:
    if steps is None:
        return dict(runs)
    return {
        seed: replace(
            run,
            losses=run.losses[:steps],
            samples_before=run.samples_before[:steps],
            skipped=[i for i in run.skipped if i < steps],
        )
        for seed, run in runs.items()
    }


def _up_to(runs: Mapping[int, LossRun], samples: float) -> dict[int, LossRun]:
    """The steps that begin before ``samples`` have been consumed, or with the next one."""
    counts = {s: sum(n <= samples for n in r.samples_before[: r.steps]) for s, r in runs.items()}
    return {seed: _cut({seed: run}, counts[seed])[seed] for seed, run in runs.items()}


def _not_finite(
    baselines: Mapping[int, LossRun], candidates: Mapping[int, LossRun], recorded: Mapping[int, int]
) -> tuple[str, str] | None:
    """(state, reason) if a loss is not finite. ``recorded``: seed -> steps of the baseline's record,
    of which those of ``baselines`` may be the first.
    """
    for seed, run in baselines.items():
        step = run.first_non_finite()
        if step is not None and step < run.steps:
            return (
                "no-proof",
                (
                    f"the job's own loss is NaN or infinite at step {step + 1} (seed"
                    f" {seed}): there is nothing to compare with"
                ),
            )
    for seed, run in candidates.items():
        step, own = run.first_non_finite(), baselines[seed].first_non_finite()
        # beyond the compared steps it counts as well, unless the baseline's is not finite there
        reached = step is not None and step < recorded[seed]
        if step is not None and (step < run.steps or (own is None and reached)):
            return (
                "changed",
                (
                    f"the loss is NaN or infinite at step {step + 1} (seed {seed}), while"
                    " the baseline's is finite"
                ),
            )
    return None


def _about_as_many(a: LossRun, b: LossRun) -> bool:
    """Whether both runs had consumed about the same number of samples by their last common step."""
    last = min(a.steps, b.steps) - 1
    return last >= 0 and math.isclose(
        a.samples_before[last], b.samples_before[last], rel_tol=ABOUT_AS_MANY
    )


def _repeatable(baselines: Mapping[int, LossRun], repeat: LossRun | None) -> tuple[bool, str]:
    """(whether the job is bit-reproducible, the class to fall back to if not): rounding if the
    repeat only drifts away gradually, else random-stream."""
    if repeat is None or not baselines:
        return True, "random-stream"
    first = baselines[min(baselines)]
    if first_bits_differ(first, repeat) is None:
        return True, "random-stream"
    start = [
        (a, b)
        for a, b in zip(first.losses[:3], repeat.losses[:3], strict=False)
        if a is not None and b is not None
    ]
    near = all(math.isclose(a, b, rel_tol=1e-3) for a, b in start)
    alike = probe({0: first}, {0: repeat}, "rounding") is None
    return False, "rounding" if near and alike and start else "random-stream"


def _enough_for_bits(numerics: str) -> int:
    return EXACT_STEPS if numerics == "exact" else RULES[numerics].minimum_steps


def _same_bits(left: Mapping[int, LossRun], right: Mapping[int, LossRun], steps: int) -> bool:
    """Whether all bits are equal and the loss varies: a constant loss is equal whatever changed."""
    run = left[min(left)]
    values = {
        x for x in (*run.losses[:steps], *run.gradient_norms) if x is not None and math.isfinite(x)
    }
    varied = len(values) >= min(EXACT_STEPS, steps) // 2
    return varied and all(first_bits_differ(left[s], right[s]) is None for s in left)


def _too_short(
    left: Mapping[int, LossRun], right: Mapping[int, LossRun], common: int, rule: Rule, used: str
) -> str | None:
    silent = [
        name
        for name, runs in (("baseline", left), ("candidate", right))
        for r in runs.values()
        if sum(x is None for x in r.losses) > 0.1 * r.steps
    ]
    if silent:
        return (
            f"the {silent[0]}'s loss is not a single number at each step: report it with"
            " autotune.step(loss=…)"
        )
    if used == "statistical":
        first, second = min(r.steps for r in left.values()), min(r.steps for r in right.values())
        if first < rule.minimum_steps or second < LARGE_BATCH_STEPS:
            return (
                f"the runs have {first} and {second} steps over the same samples, but the baseline"
                f" needs {rule.minimum_steps} and the candidate {LARGE_BATCH_STEPS}: raise"
                " convergence.steps, or give the job more epochs"
            )
        return None
    needed = FLOAT16_STEPS if any(r.skipped for r in right.values()) else rule.minimum_steps
    if common < needed:
        return (
            f"the runs have {common} steps in common, but {needed} are needed: raise"
            " convergence.steps, or give the job more epochs"
        )
    return None


@dataclass(frozen=True)
class _Margins:
    """Margins and edges of the bins; ``edges``: in samples if the runs share no steps, else None."""

    margins: Sequence[float]
    edges: Sequence[float] | None


def _margins(
    baselines: Mapping[int, LossRun],
    candidates: Mapping[int, LossRun],
    common: int,
    rule: Rule,
    tolerance: float,
    by_samples: bool,
) -> _Margins | LossDecision:
    """The margin of each bin, or that the baseline can prove nothing."""
    tau = tolerance * rule.tolerance_factor
    runs = {s: r for s, r in baselines.items() if by_samples or r.steps >= common}
    edges = sample_bins([*runs.values(), *candidates.values()], rule.bins) if by_samples else None
    if by_samples and edges is None:
        return LossDecision("no-proof", "the runs share no samples")
    window = min(r.steps for r in runs.values()) if by_samples else common
    moved = movement(runs, window)
    visible = rule.visible * tau * moved.level
    why_not = moved.why_not(visible)
    if why_not:
        return LossDecision("no-proof", why_not, lacks=moved.lacks(visible))
    columns = list(zip(*(_bins(r, common, rule, edges) for r in runs.values()), strict=False))
    margins = []
    for i, values in enumerate(columns):
        if any(map(math.isnan, values)):
            return LossDecision("no-proof", "the loss is missing in a whole part of the window")
        spread = stdev(values) if len(values) > 1 else 0.0
        seeds = min(SEED_SHARE * spread, PROGRESS_SHARE * moved.progress)
        margin = max(tau * abs(fmean(values)), seeds, PROGRESS_FLOOR * moved.progress)
        margins.append(margin * (rule.first_half_factor if i < rule.bins // 2 else 1.0))
    delays = max((len(r.skipped) for r in candidates.values()), default=0)
    if delays and not by_samples:
        margins = [
            m + delays * slope
            for m, slope in zip(margins, _slopes(runs, common, rule.bins), strict=False)
        ]
    return _Margins(margins, edges)


def _slopes(runs: Mapping[int, LossRun], common: int, bins: int) -> list[float]:
    """How far the loss moves per step within each bin: a step skipped by float16's scaler is a
    declared delay of one step."""
    halves = [bin_means(r, common, 2 * bins) for r in runs.values()]
    means = [fmean(column) for column in zip(*halves, strict=False)]
    lengths = [len(stretch) for stretch in step_bins(common, 2 * bins)]
    return [abs(means[2 * i + 1] - means[2 * i]) / lengths[2 * i] for i in range(bins)]


def _bins(run: LossRun, common: int, rule: Rule, edges: Sequence[float] | None) -> list[float]:
    return bin_means(run, common, rule.bins) if edges is None else bin_integrals(run, edges)


def _by_bins(
    left: Mapping[int, LossRun],
    right: Mapping[int, LossRun],
    common: int,
    limits: _Margins,
    rule: Rule,
    used: str,
    last_look: bool,
) -> LossDecision:
    """The decision from the paired differences."""
    n = len(left)
    rows = [
        [
            (b - a) / m
            for a, b, m in zip(
                _bins(left[s], common, rule, limits.edges),
                _bins(right[s], common, rule, limits.edges),
                limits.margins,
                strict=False,
            )
        ]
        for s in left
    ]
    floors = (
        _scatter_floors(left, right, common, rule, limits) if limits.edges is None and n > 1 else []
    )
    found = judge(Differences(rows, floors), looks=rule.looks)
    margin = limits.margins[found.bin]
    difference = found.mean * margin
    figures = (
        f"largest difference {difference:+.3g} in part {found.bin + 1} of {rule.bins}, margin"
        f" ±{margin:.3g}, {n} pair{'s' if n > 1 else ''}"
    )

    def decision(state: str, reason: str) -> LossDecision:
        return LossDecision(state, reason, margin, difference, numerics_used=used)

    if found.state == "changed":
        return decision("changed", f"the loss curves differ: {figures}")
    if found.state == "unchanged":
        return decision("unchanged", f"the loss curves agree within the margin: {figures}")
    further = next_look(n, used)
    state = "undecided" if last_look or further is None else "more-pairs"
    unclear = f"neither clearly inside nor outside the margin: {figures}"
    if n < rule.looks[0]:
        reason = f"{figures}; at least {rule.looks[0]} pairs are needed to decide"
    elif state == "more-pairs":
        reason = f"{unclear}; the next look is at {further} pairs"
    else:
        reason = f"{unclear}; more steps (convergence.steps) may settle it"
    return decision(state, reason)


def _chaotic(
    baselines: Mapping[int, LossRun], candidates: Mapping[int, LossRun], common: int, margin: float
) -> bool:
    """Whether two runs of one seed, which the probe has seen begin alike, end up unrelated.

    In the last third, unrelated runs differ by more than the margin, the variance of the
    differences is a good share of theirs, and their mean is what chance may leave of them.
    """
    ends = {s: bin_means(r, common, 3)[2] for s, r in baselines.items() if r.steps >= common}
    apart = [bin_means(r, common, 3)[2] - ends[s] for s, r in candidates.items() if s in ends]
    unrelated = 2 * variance(ends.values()) if len(apart) > 1 else 0.0
    if unrelated <= margin**2:
        return False
    by_chance = CHANCE * math.sqrt(unrelated / len(apart))
    return variance(apart) > CHAOTIC_SHARE * unrelated and abs(fmean(apart)) < by_chance


def _scatter_floors(
    left: Mapping[int, LossRun],
    right: Mapping[int, LossRun],
    common: int,
    rule: Rule,
    limits: _Margins,
) -> list[float]:
    """Least variance of each bin's difference, from the scatter of single steps, so that two pairs
    that agree by chance do not hide it."""
    floors = []
    for stretch, margin in zip(step_bins(common, rule.bins), limits.margins, strict=False):
        scatter = []
        for s in left:
            steps = [
                b - a
                for i in stretch
                if (a := left[s].losses[i]) is not None and (b := right[s].losses[i]) is not None
            ]
            scatter.append(variance(steps) / len(steps) if len(steps) > 1 else 0.0)
        floors.append(fmean(scatter) / margin**2)
    return floors
