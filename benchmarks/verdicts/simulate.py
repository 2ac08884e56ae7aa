"""Scores the "faster" rule on simulated machines with known truth, and prints the table.

    python benchmarks/verdicts/simulate.py                    a quarter of an hour, resumes if cut
                                                              off; writes simulated.md next to this
                                                              file
    python benchmarks/verdicts/simulate.py --runs 40 --dry    a quick look at other seeds; writes
                                                              nothing

A machine has a clock, and every window of a job takes place on it: iterations scatter, one in fifty
stalls, a fresh process has its own random speed and a slow start, and the machine slows everything
that happens at a moment by the same factor. The rule sees only what it sees in reality: the
iteration times, and on one of the bursty machines the load of other processes.

    quiet           no other load; windows differ by about 2 %
    drifting        speed wanders by ± 5 % over minutes, with a trend of up to 10 % in half an hour
    bursty, seen    other load for about 8 s every 88 s slows by 1.2 to 2; it shows as CPU use of
                    other processes
    bursty, unseen  the same, but nothing shows (a neighbor on the same host)
    very noisy      unseen bursts of 15 s every 55 s, and stalls of 5 iterations: windows differ by
                    20 % and more
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "trials"), str(ROOT / "search_spaces")]

from autotune.results import Interval  # noqa: E402
from autotune.verdict.disturbed import disturbed  # noqa: E402
from autotune.verdict.iterations import drop_start, warm_up_end  # noqa: E402
from autotune.verdict.sequential import levels_by_kind  # noqa: E402
from autotune.verdict.speedup import LOOKS, LogRatio, SpeedDecision, decide, planned  # noqa: E402
from autotune.verdict.timing import cost_per_sample  # noqa: E402
from autotune_trials.protocol.messages import Window  # noqa: E402

MACHINES = ("quiet", "drifting", "bursty, seen", "bursty, unseen", "very noisy")
RATIOS = (1.00, 1.03, 1.15, 0.90)  # planted speed-ups
# run once, after the rule was frozen; earlier rules were scored on 20 260, 30 303, 41 404, 60 606,
# 70 707, 80 808, 90 909, 101 010, 111 111 and 121 212
SCORED_SEED, DRY_SEED = 131_313, 7

ITERATION_S, BATCH = 0.05, 32
FRESH_S, LIVE_ITERATIONS, WARM_UP, START_UP_S = 4.5, 14, 20, 5.0
ITERATION_NOISE, PROCESS_NOISE = 0.05, 0.01
STALLS, STALL_FACTOR, LONG_STALL_FACTOR = 0.02, 2.0, 5.0
BURSTS_S, LONG_BURSTS_S = (80.0, 8.0), (40.0, 15.0)  # mean gap, mean length
HORIZON_S = 20_000.0

CONFIGURATIONS, FINALISTS, MINIMUM_GAIN = 10, 2, 0.02
FINALIST = 1  # counted from 0: its share of the risk equals that of the third
ROOM = (5, 7, 9, 12)  # pairs that fit the budget
# of four live blocks per configuration: half a minute of search in total, or under three
ROUNDS = (1, 6)

NOTES = """
## What misses its bar

- *Candidate slow in 30 % of its processes* (10 % faster in the others, nothing on average): adopted in 32 % (bar 1 %; with room for five pairs 15 %),
  claiming 10 %, what an ordinary process of it gains; in *half*, 2 %. Without the condition on the plain mean it was 71 % (300 sequences of like noise).
  A stricter condition (the plain mean one error above nothing, too) gained little more.
- *Very noisy*, all equal, after six rounds of search: 9 of 500 adopted (1.8 %, bar 1 %). By the rule before, on other seeds, 7 of 500 were.
- *Very noisy*, 1.15, second or third finalist: 80 % (the bar is for the first, 85.5 %).
- *Very noisy*, 1.03: what is adopted was measured too luckily, by 5 % on average. Drawing estimates towards 1 takes from a claim what its own
  error explains, and where one gain in twenty passes, that is not enough. The others are told that no gain is shown, or that it is too noisy.
- *Very noisy*, choice after one round of search: in a quarter of the studies the search does not make the winner a finalist, and no proof can find it then.
  With six rounds, under three minutes in all, it does so in more than nine of ten, and 85.2 % end within 2 % of the best (bar 85 %).
- *Normal, 10 % and 20 %* (other noise), 1.15, with room for five pairs: one in six and one in 23 pass, and those claim 2.5 % and 10 % too much; with
  24 pairs, 20 %: half of them pass, 3.4 % too much. *Candidate by 10 %, baseline by 2 %*, the same: one in five, 2.8 % too much.

The rule before let levels count as they are, and a side whose processes scatter more was favored: its slow processes raise the level, too. Of equal sides
with 1.3 % (baseline) and 5 % (candidate) it adopted 5 % (600 sequences), and 7 % with 2 and 10 % (400); it now adopts what its share of the risk is. The
price, on these machines: 1.15 under unseen bursts with room for five pairs 72 % (78 % before), with seven 82 % (84 %), with twelve 94 %; on *very noisy* with
seven 22 % (26 %). Where both processes of a pair train in slices, bursts hit them alike, and levels hardly matter. All of what ratios explain, with
few pairs too, would have cost more: 55 % with five pairs (300 sequences; three quarters: 74 %, half: 78 %, but half adopted 2.8 % of equal sides in one cell).


## What was tried

For the looks at 5 to 24 pairs: on seeds 50 505, 1500 sequences of pairs a cell, before the scored runs. First how much a mean gets out of a fixed
number of pairs: how often one look with half a percent of the level finds 1.15 on *very noisy*, and 1.03 on *quiet*.

| mean | 12 pairs: 1.15, very noisy | 1.03, quiet | 16 pairs | | 20 pairs | |
|---|---|---|---|---|---|---|
| plain | 28% | 82% | 35% | 94% | 45% | 98% |
| 25 % trimmed (before) | 38% | 41% | 63% | 67% | 78% | 85% |
| 35 % trimmed | 22% | 21% | 50% | 49% | 57% | 54% |
| t likelihood, 3 degrees, expected information | 35% | 72% | 50% | 90% | 62% | 96% |
| … its sandwich error | 45% | 60% | 64% | 81% | 75% | 93% |
| t likelihood, 2 degrees, sandwich | 42% | 47% | 64% | 67% | 79% | 84% |
| Huber 0.7 | 43% | 52% | 66% | 73% | 80% | 89% |
| Huber 1.0 | 48% | 65% | 66% | 87% | 77% | 96% |
| Huber 1.4 | 43% | 76% | 57% | 93% | 67% | 97% |
| … weighted by rank of level, from 1 to 0.2 | 66% | 69% | 81% | 88% | 90% | 96% |
| … slower half of the pairs weighs 0.3 | 70% | 58% | 86% | 80% | 95% | 91% |

A window's time on *very noisy* has bursts and stalls in it, which only slow: a pair whose mean level is low had little of them. Then whole rules, with
1 % of the level at the lower end and 4 % at the upper one; columns: adopted at 1.00, the worst machine; 1.03 on *quiet*; 1.15 on *very noisy*;
pairs on *quiet* at 1.00, 1.03, 1.15; pairs on *very noisy* at 1.00. Looks at 5, 8, 12, 16, 20 pairs unless said.

| rule | at 1.00 | 1.03, quiet | 1.15, very noisy | pairs, quiet | pairs, very noisy | taken |
|---|---|---|---|---|---|---|
| trimmed, 5, 8, 12 (before; 2.5 % at each end) | 1.2% | 66% | 62.4% | 11.0, 9.8, 5.6 | 11.9 | no |
| the same, 1 % and 4 % | 0.5% | 45% | 41.0% | 10.4, 10.7, 6.6 | 11.8 | no |
| trimmed, more looks | 0.3% | 80% | 76.7% | 15.3, 15.5, 7.0 | 19.5 | no |
| Huber 1.0 | 0.4% | 91% | 77.2% | 14.3, 13.8, 5.6 | 19.5 | no |
| Huber 1.4 | 0.4% | 94% | 70.5% | 13.5, 12.6, 5.1 | 19.4 | no |
| … weighted by rank of level | 0.5% | 92% | 90.3% | 14.1, 13.4, 5.5 | 19.3 | no |
| … by distance above the median level, in 2 spreads | 0.7% | 93% | 88.7% | 13.6, 12.9, 5.4 | 19.0 | no |
| … in 1 spread | 0.8% | 92% | 91.5% | 14.2, 13.4, 5.9 | 19.1 | no |
| … in 1.5 spreads, and stopped where 1.5 errors would not help | 0.6% | 91% | 82.9% | 7.0, 12.7, 5.4 | 8.1 | no |
| …… 0.5 errors | 0.5% | 80% | 70.7% | 5.4, 11.2, 5.4 | 5.9 | no |
| …… 1.5 errors; looks at every pair to 10, every other to 20 | 0.5% | 90% | 79.5% | 6.3, 12.2, 5.2 | 7.1 | no |
| …… 2 errors; 5, 7, 9, 12, 16, 20; spending 1.5 | 0.7% | 92% | 86.9% | 8.5, 13.1, 5.7 | 10.2 | no |
| ……… fewer than 8 pairs: Huber 2, not weighted | 0.5% | 93% | 85.2% | 8.6, 12.8, 5.0 | 9.8 | no |
| ……… fewer than 8: Huber 2, 2 spreads; else 1 spread | 0.7% | 91% | 88.2% | 8.4, 13.3, 5.3 | 10.1 | no |
| ………… weighted by the slower side of a pair instead | 0.7% | 91% | 86.6% | 7.8, 13.1, 5.3 | 8.9 | no |
| ………… and 24 pairs, spending 1.5 and 0.75, 2.5 errors | 0.9% | 95% | 93.3% | 11.3, 14.3, 5.5 | 14.6 | no |
| ………… 24 pairs, spending 1.2 and 0.6, 2.2 errors, 1 % (three: 0.5 %), seeds 60 606 | 1.1% | 95% | 89.0% | 10.2, 13.9, 5.1 | 12.7 | scored, left |
| ………… the same, 2.4 errors, 0.75 % (three: 0.33 %), scored above | 0.5% | 96% | 90.8% | 10.5, 14.8, 5.2 | 13.2 | yes |

- In all of these a pair's level was compared with those of all pairs. Since the second process of a pair may find in memory what the first one read from
  the disk, it is compared with those of its own order only (before, such a 1.83 to 2.00× was reported as 2.06×). With the median of the order as what is
  usual, one burst in two or three pairs cost power (scored on seeds 101 010: 1.15 under unseen bursts with room for five 69 %, 1.30 83 %); with the lower
  quartile none was lost, but of equal configurations on *very noisy* 1.9 % were adopted (111 111). With the lower median, above, little is lost.
- The last one of the table planned 24 pairs whatever there was time for: where five were, a gain had to lie 11.9 errors above nothing. Now the level
  is spent on the looks there is room for, the first finalist has 0.5 % of it and the others 0.25 % each, an upper end 2 %, and estimates are drawn by
  (f + 2) / (f - 2) and not f / (f - 2): with room for five or seven pairs, claims at 1.15 on *very noisy* were 2.3 % and 1.7 % too high without
  (seeds 77, 1000 a cell).
- The one before it was scored on seeds 60 606, 1000 runs a cell: of equal configurations it adopted 1.4 % and 1.6 % on *very noisy* (bar 1 %), so
  the finalists now share 1 % and not 1.5 %. All other figures were like those above; the winner there 70.4 % and 87.0 %.
- Stopping what is hopeless (the mean plus some errors would not be adopted by the last look) saves a quarter to a half of the pairs where there is nothing;
  nothing is adopted by it, and the interval holds at whatever look it is reported.
- Not tried: noise known from the search or from within the windows that steadies the error of the first looks (a wrong one would adopt wrongly, and no bar
  needed it); signed ranks and Hodges–Lehmann.

For the looks at 5, 8, 12 pairs that were before:

On other seeds, 1300 sequences of pairs a cell (800 at 0.90), before the scored runs; the rule before this one was scored on
seeds 20 260, and missed the choice under unseen bursts (92.0 %) and over-claims on *very noisy* (+2.2 %, +11.2 %). Columns: pairs
at 1.15 on *quiet*; adopted at 1.00, the worst machine; coverage over all machines, ratios, and one or three finalists; adopted as
one of three finalists at 1.03 on *quiet* and at 1.15 under unseen bursts; over-claim at 1.15 on *very noisy*.

| rule | pairs | at 1.00 | covered | 1.03, quiet | 1.15, unseen | over-claim, mean, p95 | taken |
|---|---|---|---|---|---|---|---|
| Bonferroni over looks and finalists, 20 % trimmed (the rule before) | 5.4 | 1.4% | 95.8%–99.4% | 51% | 94.2% | +2.0%, +10.2% | no |
| no trimming | 5.0 | 1.1% | 97.5%–100.0% | 68% | 68.2% | +6.3%, +20.9% | no |
| bounds simulated | 5.7 | 1.3% | 95.8%–99.7% | 51% | 93.8% | +2.2%, +10.8% | no |
| … with shares .1, .3, .6 of the level | 6.8 | 1.2% | 95.7%–99.9% | 58% | 93.8% | +2.2%, +11.7% | no |
| … 25 % trimmed at every look | 5.7 | 1.8% | 96.2%–99.5% | 33% | 98.6% | +1.6%, +7.8% | no |
| … 25 % trimmed from 12 pairs on | 5.7 | 1.4% | 95.8%–99.7% | 37% | 98.5% | +1.7%, +8.3% | no |
| …… and finalists share the upper tail only | 5.7 | 1.4% | 95.8%–99.2% | 54% | 98.7% | +1.7%, +8.3% | no |
| ……… and the estimate drawn towards 1 by 1 / T² | 5.7 | 1.3% | 96.0%–99.2% | 53% | 98.7% | +1.1%, +7.3% | no |
| ……… by f / (f - 2) / T² | 5.7 | 1.3% | 96.0%–99.2% | 53% | 98.7% | +0.7%, +6.8% | yes |
| ……… with shares .2, .3, .5 | 6.2 | 1.2% | 95.9%–99.5% | 57% | 98.7% | +0.6%, +6.7% | no |
| ……… with a fourth look at 16 pairs | 5.9 | 1.2% | 96.2%–99.4% | 71% | 99.5% | +0.5%, +6.7% | no |

- Unseen bursts hit one pair in four. Trimming two of twelve from each end lets a third one on the same side decide the width;
  trimming three does not. Trimmed at eight as well, too few degrees of freedom are left for small gains.
- Only the lower end of an interval can adopt what is no faster, so three finalists may have two thirds of alpha each, two-sided.
- A fourth look would find more small gains, at a third more runs for every candidate that gives nothing; later looks given more
  of the level cost pairs where the gain is clear. Neither was needed for a bar.
- Simulated bounds are wider than t quantiles for a trimmed mean of five and of twelve, and narrower for sharing their pairs:
  they do not buy power, they make the level right.

In a first version of the machines all had stalls of five iterations, and the bursty ones the long bursts that only
*very noisy* has now: windows of the quiet one differed by 6 %, which is not quiet. The rule was not changed with it.

Not simulated: the DataLoader's queue after a stall (live blocks drain it, fresh processes are charged for what came out
of it), and clock or thermal limits. Real processes under
real load: loads.md.
"""


class Machine:
    """One simulated machine with its clock."""

    def __init__(self, kind: str, seed: Sequence[int]) -> None:
        self.kind, self.rng, self.now_s = kind, np.random.default_rng(seed), 0.0
        rng = self.rng
        if kind == "drifting":
            grid = np.arange(0.0, HORIZON_S, 5.0)
            wave = 0.05 * np.sin(2 * np.pi * (grid / rng.uniform(120, 900) + rng.random()))
            trend = rng.uniform(-0.1, 0.1) * grid / 1800
            self._grid, self._log_slow = (
                grid,
                wave + trend + np.cumsum(rng.normal(0, 0.002, len(grid))),
            )
        elif kind != "quiet":
            gap_s, length_s = LONG_BURSTS_S if kind == "very noisy" else BURSTS_S
            gaps, lengths = rng.exponential(gap_s, 800), rng.exponential(length_s, 800)
            self._starts = np.cumsum(gaps + lengths) - lengths
            self._ends, self._factors = self._starts + lengths, rng.uniform(1.2, 2.0, 800)

    def slowness(self, at_s: np.ndarray) -> np.ndarray:
        if self.kind == "drifting":
            return np.exp(np.interp(at_s, self._grid, self._log_slow))
        if self.kind != "quiet":
            i = np.maximum(np.searchsorted(self._starts, at_s, side="right") - 1, 0)
            return np.where(
                (at_s >= self._starts[i]) & (at_s < self._ends[i]), self._factors[i], 1.0
            )
        return np.ones_like(at_s)

    def window(self, speed: float, *, iterations: int, warm_up: int, luck: float) -> Window:
        """``iterations`` of a job that is ``speed`` times as fast as the baseline, after
        ``warm_up`` slower ones.
        """
        rng, n = self.rng, iterations + warm_up
        own = ITERATION_S / speed * luck * rng.lognormal(0, ITERATION_NOISE, n)
        own = own * np.where(
            rng.random(n) < STALLS,
            LONG_STALL_FACTOR if self.kind == "very noisy" else STALL_FACTOR,
            1.0,
        )
        own[:warm_up] *= 1 + 1.5 * np.exp(-np.arange(warm_up) / 5)
        times = own * self.slowness(self.now_s + np.cumsum(own))
        busy = (
            float((self.slowness(self.now_s + np.cumsum(times)) > 1.1).mean())
            if self.kind == "bursty, seen"
            else 0.0
        )
        self.now_s += float(times.sum())
        return Window(tuple(times.tolist()), (float(BATCH),) * n, {}, foreign_load=busy)

    def fresh(self, speed: float) -> float:
        """Cost of a fresh process; as when confirming, measured once more if disturbed."""
        for _ in range(2):
            self.now_s += START_UP_S
            luck = self.rng.lognormal(0, PROCESS_NOISE)
            window = self.window(
                speed, iterations=round(FRESH_S * speed / ITERATION_S), warm_up=WARM_UP, luck=luck
            )
            if disturbed(window) is None:
                break
        return cost_per_sample(drop_start(window, warm_up_end(window.times_s)))

    def live(self, speed: float, luck: float) -> float:
        for _ in range(3):
            window = self.window(speed, iterations=LIVE_ITERATIONS, warm_up=0, luck=luck)
            if disturbed(window) is None:
                break
        return cost_per_sample(window)


def fresh_pairs(
    machine: Machine, speed: float, costs: list[tuple[float, float]], pairs: int
) -> None:
    """Adds (baseline, candidate) of fresh processes, in alternating order, up to ``pairs``."""
    while len(costs) < pairs:
        forth = len(costs) % 2 == 0
        sides = [machine.fresh(s) for s in ((1.0, speed) if forth else (speed, 1.0))]
        costs.append((sides[0], sides[1]) if forth else (sides[1], sides[0]))


def figures(costs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """(log ratios, levels) of pairs whose order alternates."""
    ratios = [math.log(baseline / candidate) for baseline, candidate in costs]
    return ratios, levels_in_order([math.log(a * b) / 2 for a, b in costs])


def levels_in_order(levels: Sequence[float]) -> list[float]:
    return levels_by_kind(levels, [i % 2 for i in range(len(levels))])


def confirm(
    machine: Machine, speed: float, finalist: int = 0, room: int = LOOKS[-1]
) -> tuple[SpeedDecision, int]:
    """(decision, pairs): fresh processes in alternating order until the rule decides, at most
    ``room`` pairs.
    """
    looks = planned(room)
    costs: list[tuple[float, float]] = []
    for look, pairs in enumerate(looks):
        fresh_pairs(machine, speed, costs, pairs)
        ratios, levels = figures(costs)
        decision = decide(ratios, look=look, levels=levels, looks=looks, finalist=finalist)
        if decision.state != "continue":
            return decision, pairs
    raise AssertionError("the last look decides")


@dataclass(frozen=True)
class Study:
    chosen: int | None  # configuration, None: the baseline is kept
    interval: Interval
    finalists: tuple[int, ...]
    naive: int  # what the fastest single window would have chosen
    naive_claim: float


def abba(opening: float, first: float, second: float, closing: float) -> LogRatio:
    """log(candidate / baseline) of blocks B C C B, in which linear drift cancels."""
    ascending, descending = math.log(first / opening), math.log(second / closing)
    return LogRatio((ascending + descending) / 2, abs(ascending - descending) / 2, 2)


def pooled(ratios: Sequence[LogRatio]) -> float:
    """Mean of several comparisons, weighted by their precision."""
    weights = [max(ratio.standard_error, 1e-9) ** -2 for ratio in ratios]
    return fmean([ratio.estimate for ratio in ratios], weights=weights)


def study(machine: Machine, speeds: Sequence[float], rounds: int) -> Study:
    """A search by live ABBA blocks, then confirmation of the finalists."""
    singles: list[float] = []
    # a single process: each configuration has one random speed
    baseline_luck = machine.rng.lognormal(0, PROCESS_NOISE)
    lucks = [machine.rng.lognormal(0, PROCESS_NOISE) for _ in speeds]
    first = machine.live(1.0, baseline_luck)
    found: list[list[LogRatio]] = [[] for _ in speeds]
    for _ in range(rounds):
        for i, (speed, luck) in enumerate(zip(speeds, lucks, strict=True)):
            blocks = [
                machine.live(speed, luck) if label == "C" else machine.live(1.0, baseline_luck)
                for label in "BCCB"
            ]
            found[i].append(abba(*blocks))
            singles.append(first / blocks[1])
    ratios = [pooled(f) for f in found]
    ahead = sorted(
        (i for i, r in enumerate(ratios) if r < -math.log1p(MINIMUM_GAIN)), key=lambda i: ratios[i]
    )
    finalists = tuple(ahead[:FINALISTS])
    confirmed = [(i, confirm(machine, speeds[i], n)[0]) for n, i in enumerate(finalists)]
    adopted = [(i, d.interval) for i, d in confirmed if d.state == "adopt"]
    naive = max(range(len(speeds)), key=lambda i: singles[i])
    if not adopted:
        return Study(None, Interval(1.0, 1.0, 1.0), finalists, naive, singles[naive])
    taken = max(adopted, key=lambda each: each[1].estimate)
    return Study(*taken, finalists, naive, singles[naive])


class Parts:
    """Rows made so far, kept in a file until the page is written: a cut-off run can resume."""

    def __init__(self, base: int, runs: int) -> None:
        self.path = Path(__file__).parent / f"simulated-{base}-{runs}.parts.json"
        self.rows: dict[str, str] = (
            json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        )

    def row(self, name: str, make: Callable[[], str]) -> str:
        if name not in self.rows:
            self.rows[name] = make()
            self.path.write_text(json.dumps(self.rows), encoding="utf-8")
            print(self.rows[name], file=sys.stderr, flush=True)
        return self.rows[name]


def single_row(
    base: int, runs: int, finalist: int, m: int, ratio: float, room: int = LOOKS[-1]
) -> str:
    kind, seed = MACHINES[m], (base, finalist, m, round(100 * ratio), room)
    made = [confirm(Machine(kind, (*seed, i)), ratio, finalist, room) for i in range(runs)]
    found = [d for d, _ in made]
    return (
        f"| {kind} | {ratio:.2f} | {_adopted(found, ratio)} |"
        f" {np.mean([d.too_noisy for d in found]):.1%} |"
        f" {np.mean([pairs for _, pairs in made]):.1f} |"
    )


def _adopted(found: Sequence[SpeedDecision], ratio: float) -> str:
    """Four cells of a row: adopted, over-claim (mean, 95th percentile), covered."""
    claims = [d.interval.estimate / ratio - 1 for d in found if d.state == "adopt"]
    over = (
        f"{np.mean(claims):+.1%} | {np.quantile(claims, 0.95):+.1%}"
        if len(claims) >= 20
        else "– | –"
    )
    covered = np.mean([d.interval.low <= ratio <= d.interval.high for d in found])
    return (
        f"{len(claims)} of {len(found)} ({len(claims) / len(found):.1%}) | {over} | {covered:.1%}"
    )


def equal_row(base: int, runs: int, m: int, rounds: int) -> str:
    found = [
        study(Machine(MACHINES[m], (base, 20, rounds, m, i)), [1.0] * CONFIGURATIONS, rounds)
        for i in range(runs)
    ]
    false = sum(s.chosen is not None for s in found)
    naive = [s.naive_claim - 1 for s in found]
    taking = (
        f"{np.mean([c > MINIMUM_GAIN for c in naive]):.1%} | {np.mean(naive):+.1%}"
        if rounds == 1
        else "– | –"
    )
    return f"| {MACHINES[m]} | {rounds} | {false} of {runs} ({false / runs:.1%}) | {taking} |"


def clear_row(base: int, runs: int, m: int, rounds: int) -> str:
    right, among, claims, kept, covered = 0, 0, [], 0, 0
    for i in range(runs):
        machine = Machine(MACHINES[m], (base, 30, rounds, m, i))
        speeds = machine.rng.uniform(0.8, 1.05, CONFIGURATIONS)
        best = int(machine.rng.integers(CONFIGURATIONS))
        speeds[best] = 1.15 * max(speeds.max(), 1.0)
        got = study(machine, speeds, rounds)
        among += best in got.finalists
        kept += got.chosen is None
        if got.chosen is not None:
            right += speeds[got.chosen] >= 0.98 * speeds[best]
            claims.append(got.interval.estimate / speeds[got.chosen] - 1)
            covered += got.interval.low <= speeds[got.chosen] <= got.interval.high
    over = f"{np.mean(claims):+.1%} | {np.quantile(claims, 0.95):+.1%}" if claims else "– | –"
    return (
        f"| {MACHINES[m]} | {rounds} | {among / runs:.1%} | {right} of {runs} ({right / runs:.1%})"
        f" | {kept / runs:.1%} | {over} | {covered / max(len(claims), 1):.1%} |"
    )


# ── other noise ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _pairs(shape: str, rng: np.random.Generator, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """(log ratios, levels) of LOOKS[-1] pairs with noise unlike that of the machines."""
    n, truth = LOOKS[-1], math.log(ratio)
    normal = {"normal, 0.5 %": 0.005, "normal, 10 %": 0.10, "normal, 20 %": 0.20}
    if shape in normal:
        sides = rng.normal(0, normal[shape] / math.sqrt(2), (2, n))
    elif shape == "t of 2 degrees":
        sides = 0.03 * rng.standard_t(2, (2, n))
    elif shape == "levels that mislead":  # fast pairs are noisy, slow ones are not
        level = rng.exponential(0.1, n)
        return truth + rng.normal(0, 0.06, n) / (1 + level / 0.1), level
    elif shape == "bursts in one of three, to 10 times":
        sides = rng.normal(0, 0.02, (2, n)) + np.where(
            rng.random((2, n)) < 1 / 3, rng.uniform(0, math.log(10), (2, n)), 0
        )
    elif shape == "two speeds, 3 % apart":
        sides = 0.03 * rng.integers(0, 2, (2, n)) + rng.normal(0, 0.004, (2, n))
    elif shape in UNLIKE:  # each side's own processes scatter by this, the machine by 1 %
        sides = rng.normal(0, 1, (2, n)) * np.array(UNLIKE[shape])[:, None] + rng.normal(0, 0.01, n)
    elif shape in OWN_SLOW:  # on average over its processes the candidate gains the ratio
        share, slow = OWN_SLOW[shape]
        sides = rng.normal(0, 0.02, (2, n)) + rng.normal(0, 0.03, n)
        sides[1] += slow * (rng.random(n) < share) - slow * share
    # "wandering by 10 %": the two sides of a pair, and neighboring pairs, share the machine's
    # state
    else:
        walk = np.cumsum(rng.normal(0, 0.05, 2 * n))
        first, second = walk[::2] + rng.normal(0, 0.02, n), walk[1::2] + rng.normal(0, 0.02, n)
        even = np.arange(n) % 2 == 0
        sides = np.array([np.where(even, first, second), np.where(even, second, first)])
    return truth + sides[0] - sides[1], sides.mean(axis=0)


# share of its own processes in which the candidate is slow, and by how much (log units)
OWN_SLOW = {
    "candidate slow in 30 % of its processes": (0.3, 0.33),
    "candidate slow in half of its processes": (0.5, 0.10),
}
# standard deviation of the processes of baseline and candidate
UNLIKE = {
    "candidate scatters by 5 %, baseline by 1.3 %": (0.013, 0.05),
    "candidate by 10 %, baseline by 2 %": (0.02, 0.10),
    "baseline by 5 %, candidate by 1.3 %": (0.05, 0.013),
}
SHAPES = (
    "normal, 0.5 %",
    "normal, 10 %",
    "normal, 20 %",
    "t of 2 degrees",
    "levels that mislead",
    "bursts in one of three, to 10 times",
    "two speeds, 3 % apart",
    "wandering by 10 %",
    *UNLIKE,
    *OWN_SLOW,
)


def shape_row(base: int, runs: int, k: int, ratio: float, room: int) -> str:
    found, taken, looks = [], [], planned(room)
    for i in range(runs):
        ratios, levels = _pairs(SHAPES[k], np.random.default_rng((base, 5, k, i)), ratio)
        for look, pairs in enumerate(looks):
            seen = levels_in_order(levels[:pairs].tolist())
            decision = decide(ratios[:pairs].tolist(), look=look, levels=seen, looks=looks)
            if decision.state != "continue":
                break
        found.append(decision)
        taken.append(pairs)
    return (
        f"| {SHAPES[k]} | {room} | {ratio:.2f} | {_adopted(found, ratio)} | {np.mean(taken):.1f} |"
    )


def stall_bias(base: int, runs: int) -> str:
    """A configuration that stalls in one iteration of ten, against a steady one of equal mean."""
    rng = np.random.default_rng((base, 4))
    mean, middle = [], []
    for _ in range(runs):
        smooth = rng.lognormal(0, ITERATION_NOISE, 90)
        stalling = (
            rng.lognormal(0, ITERATION_NOISE, 90)
            * np.where(np.arange(90) % 10 == 0, 2.0, 1.0)
            / 1.1
        )
        window = [Window(tuple(x.tolist()), (1.0,) * 90, {}) for x in (smooth, stalling)]
        mean.append(math.log(cost_per_sample(window[0]) / cost_per_sample(window[1])))
        middle.append(math.log(np.median(smooth) / np.median(stalling)))
    return (
        f"bias {np.mean(mean):+.2%} with the winsorized mean (with the median it would be"
        f" {np.mean(middle):+.1%})"
    )


def report(base: int, runs: int, scored: bool) -> str:
    parts, studies = Parts(base, runs), max(runs // 2, 1)
    cells = [(m, ratio) for m in range(len(MACHINES)) for ratio in RATIOS]
    single, shared = (
        [parts.row(f"{n} {m} {r}", partial(single_row, base, runs, n, m, r)) for m, r in cells]
        for n in (0, FINALIST)
    )
    room = [
        parts.row(f"room {n} {m} {r}", partial(single_row, base, runs, 0, m, r, n)).replace(
            "|", f"| {n} |", 1
        )
        for n in ROOM
        for m in range(len(MACHINES))
        for r in (1.0, 1.15, 1.3)
    ]
    places = [(m, rounds) for m in range(len(MACHINES)) for rounds in ROUNDS]
    equal = [
        parts.row(f"equal {m} {n}", partial(equal_row, base, studies, m, n)) for m, n in places
    ]
    clear = [
        parts.row(f"clear {m} {n}", partial(clear_row, base, studies, m, n)) for m, n in places
    ]
    shapes = [
        parts.row(f"shape {k} {n} {x}", partial(shape_row, base, runs, k, x, n))
        for k in range(len(SHAPES))
        for n in (ROOM[0], LOOKS[-1])
        for x in (1.0, 1.15)
    ]
    table = "\n"
    dry = "" if scored else " (a dry run on other seeds)"
    looks = ", ".join(map(str, LOOKS))
    return f"""# The "faster" rule on simulated machines

Made by `python benchmarks/verdicts/simulate.py`{dry}. The rule is the one in `autotune/verdict/`, called as the stages
call it; it was frozen before these seeds were run. The machines are described at the top of the script. Their noise is
invented: the figures show that the rule does what it says under such noise, not how noisy your machine is. *Very noisy*
is there to show what happens beyond what the rule was made for.

## One candidate, confirmed in fresh processes

Looks at {looks} pairs. Bars: adopted at 1.00 and at 0.90 at most 1 %; over-claim of what is adopted at most 1.5 % in
the mean and 10 % at the 95th percentile (given where at least 20 are adopted); coverage of the reported interval 93 to
99 %; 1.15 on *very noisy* adopted in at least 85 %. A gain of 1.03 is near the least that is worth a change (2 %): the
noisier the machine, the more often the baseline stays.

| machine | planted | adopted | over-claim, mean | p95 | covered | too noisy to tell | pairs, mean |
|---|---|---|---|---|---|---|---|
{table.join(single)}

The second or third that is confirmed, with its smaller share of the risk:

| machine | planted | adopted | over-claim, mean | p95 | covered | too noisy to tell | pairs, mean |
|---|---|---|---|---|---|---|---|
{table.join(shared)}

The first one again, where the budget has room for so many pairs: looks beyond them are not planned, and the level is
spent on those that are.

| room for | machine | planted | adopted | over-claim, mean | p95 | covered | too noisy to tell | pairs, mean |
|---|---|---|---|---|---|---|---|---|
{table.join(room)}

## Search and confirmation, {CONFIGURATIONS} configurations

A configuration has {" or ".join(map(str, ROUNDS))} rounds of four live blocks in the search, the best {FINALISTS} are confirmed.
All equal: how often anything is adopted (bar: 1 %), and what taking the fastest single window would have done.

| machine | rounds | adopted | taking the fastest window: "gain" above 2 % | its mean claim |
|---|---|---|---|---|
{table.join(equal)}

One clear winner, 15 % ahead of the rest: how often the search makes it a finalist, and how often what is adopted is
within 2 % of the best (bar: 95 %, *very noisy* 85 %).

| machine | rounds | winner among the finalists | within 2 % of the best | baseline kept | over-claim, mean | p95 | covered |
|---|---|---|---|---|---|---|---|
{table.join(clear)}

## Other noise

One candidate; the ratios of its pairs are drawn as the name says, from none of the machines.

| noise | room for | planted | adopted | over-claim, mean | p95 | covered | pairs, mean |
|---|---|---|---|---|---|---|---|
{table.join(shapes)}

## Stalls

A configuration that stalls every tenth iteration against one of equal mean that does not (bar: 1 %):
{stall_bias(base, runs)}.
{NOTES}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--runs", type=int, default=1000, help="runs a cell; studies take half as many"
    )
    parser.add_argument(
        "--dry", action="store_true", help="other seeds than the scored ones, write nothing"
    )
    args = parser.parse_args()
    os.nice(5)
    text = report(DRY_SEED if args.dry else SCORED_SEED, args.runs, not args.dry)
    print(text)
    Parts(DRY_SEED if args.dry else SCORED_SEED, args.runs).path.unlink(missing_ok=True)
    if not args.dry:
        (Path(__file__).parent / "simulated.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
