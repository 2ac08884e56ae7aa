"""The search model on planted spaces, from the first block to confirmation.

    python benchmarks/regret/simulate.py                   scored runs; writes simulated.md
    python benchmarks/regret/simulate.py --dry --runs 20   other seeds, prints, writes nothing

``ModelSearch`` drives a simulated machine with a clock (planted.py); its answer is confirmed in
simulated fresh processes by the rule of ``autotune/verdict``, within the budget. Regret is 1 -
speed of what is adopted / speed of the best. Runs are kept in ``--results``; the same command
resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "trials"),
    str(ROOT / "search_spaces"),
    str(Path(__file__).parent),
]

import planted  # noqa: E402
from planted import COMPILE_S, FRESH_S, ITERATION_S, SPACES, START_UP_S, SWITCH_S, Machine, Space  # noqa: E402

from autotune.search.model import ModelSearch, Series  # noqa: E402
from autotune.verdict.speedup import decide, planned  # noqa: E402
from autotune_spaces.base import Config  # noqa: E402

SCORED_SEED, DRY_SEED = 91_177, 6
RUNS = 60
BLOCK_S, BLOCK_ITERATIONS = 0.25, 8
SHARE, PAIRS_KEPT = 0.55, 8
PLANNED_STEPS = 1_000_000
TIMED = True

# space, minutes, noise; mean regret (share within 3 %) as simulated before: the old search, TPE,
# this search
CELLS: tuple[tuple[str, int, float, str, str, str], ...] = (
    ("mix of 11", 3, 0.01, "2.4 % (78)", "16.3 % (7)", "0.3 % (96)"),
    ("mix of 11", 3, 0.06, "6.3 % (41)", "16.9 % (6)", "1.6 % (79)"),
    ("mix of 11", 3, 0.18, "24.4 % (4)", "25.1 % (5)", "8.1 % (44)"),
    ("mix of 11", 10, 0.01, "0.9 % (93)", "1.7 % (82)", "0.3 % (98)"),
    ("mix of 11", 10, 0.06, "3.6 % (52)", "2.1 % (72)", "0.6 % (93)"),
    ("mix of 11", 10, 0.18, "15.3 % (10)", "9.6 % (25)", "2.0 % (75)"),
    ("mix of 11", 10, 0.30, "33.0 % (0)", "19.5 % (17)", "4.8 % (63)"),
    ("mix of 20", 3, 0.06, "25.7 % (0)", "18.4 % (6)", "3.4 % (62)"),
    ("mix of 20", 10, 0.06, "5.6 % (42)", "5.3 % (45)", "0.7 % (95)"),
    ("mix of 20", 10, 0.18, "18.5 % (7)", "12.3 % (20)", "1.8 % (75)"),
    ("loader", 3, 0.06, "24.0 % (20)", "27.7 % (8)", "1.4 % (91)"),
    ("loader", 10, 0.06, "5.5 % (72)", "4.9 % (63)", "0.6 % (100)"),
    ("loader", 10, 0.18, "17.3 % (23)", "8.4 % (35)", "1.1 % (95)"),
    ("nothing to gain", 10, 0.06, "", "", ""),
    ("nothing to gain", 10, 0.18, "3 % adopted", "0 adopted", "0 of 60"),
)


@dataclass(frozen=True)
class Run:
    regret: float
    proposed_regret: float  # of the answer, before confirmation
    adopted: bool
    gain: float  # true, log
    claim: float  # what the confirmation claims, log
    needless: int
    search_s: float
    total_s: float
    blocks: int
    noise: float
    slowest_ms: float
    stopped: str
    config: dict


class Session:
    """A live session on a simulated machine."""

    def __init__(self, space: Space, machine: Machine) -> None:
        self.space, self.machine = space, machine
        self._now: dict = {}

    def measure(self, series: Series, search: ModelSearch) -> None:
        machine = self.machine
        for config in series.blocks:
            log_cost = self.space.log_cost(config)
            changed = {k for k in {*config, *self._now} if config.get(k) != self._now.get(k)}
            costly = changed & set(SWITCH_S)
            if costly:
                machine.now_s += max(SWITCH_S[k] for k in costly)
                # the first block counts as settling
                machine.measure(log_cost, BLOCK_S, BLOCK_ITERATIONS)
            if "compile_mode" in config and changed & {
                "compile_mode",
                "amp_dtype",
                "channels_last",
            }:
                machine.now_s += COMPILE_S
            machine.now_s += planted.SETTLE_ITERATIONS * ITERATION_S * math.exp(log_cost)
            found, took = machine.measure(log_cost, BLOCK_S, BLOCK_ITERATIONS)
            search.measured(config, found, took / BLOCK_S, machine.now_s if TIMED else None)
            self._now = dict(config)


def simulate(space: Space, machine: Machine, budget_s: float, seed: int, settings: dict) -> Run:
    search_s = min(SHARE * budget_s, budget_s - PAIRS_KEPT * 2 * (FRESH_S + START_UP_S))
    search = ModelSearch(
        space.knobs,
        normalize=space.normalize,
        bottleneck=space.bottleneck,
        seed=seed,
        compile_start_up_s={"default": COMPILE_S},
        planned_s=PLANNED_STEPS * ITERATION_S * math.exp(space.log_cost({})),
        **settings,
    )
    session, slowest = Session(space, machine), 0.0
    settle_s = planted.SETTLE_ITERATIONS * ITERATION_S
    while True:
        began = time.perf_counter()
        series = search.next_series(
            elapsed_share=machine.now_s / search_s,
            seconds_left=search_s - machine.now_s,
            block_s=BLOCK_S + settle_s,
            switch_s=max(SWITCH_S.values()),
        )
        slowest = max(slowest, time.perf_counter() - began)
        if series is None:
            break
        session.measure(series, search)
    searched_s = machine.now_s
    config = dict(search.answer().config)
    claim = confirm(space, machine, config, budget_s) if config else None
    gain = space.log_cost({}) - space.log_cost(config)
    best = space.log_cost({}) - space.best()
    return Run(
        regret=1 - math.exp((gain if claim is not None else 0.0) - best),
        proposed_regret=1 - math.exp(gain - best),
        adopted=claim is not None,
        gain=gain,
        claim=claim or 0.0,
        needless=space.needless(config),
        search_s=searched_s,
        total_s=machine.now_s,
        blocks=len(search._evidence),
        noise=search.noise,
        slowest_ms=slowest * 1e3,
        stopped=search.stopped,
        config=config,
    )


def confirm(space: Space, machine: Machine, config: Config, budget_s: float) -> float | None:
    """Claimed log gain after pairs of fresh processes within the budget; None: not adopted."""
    ratios: list[float] = []
    looks = planned((budget_s * 1.05 - machine.now_s) / (2 * (FRESH_S + START_UP_S)))
    for look, pairs in enumerate(looks):
        while len(ratios) < pairs:
            costs = []
            for c in ({}, config) if len(ratios) % 2 else (config, {}):
                machine.now_s += START_UP_S
                luck = machine.rng.normal(0, planted.PROCESS_NOISE)
                costs.append(machine.measure(space.log_cost(c), FRESH_S, 60)[0] + luck)
            ratios.append(costs[0] - costs[1] if len(ratios) % 2 else costs[1] - costs[0])
        decision = decide(ratios, look=look, looks=looks)
        if decision.state == "adopt":
            return math.log(decision.interval.estimate)
        if decision.state == "reject":
            return None
    return None


def one(cell: int, run: int, base: int, settings: dict) -> Run:
    name, minutes, noise = CELLS[cell][:3]
    seed = (base, cell, run)
    space = SPACES[name](np.random.default_rng((*seed, 1)))
    machine = Machine(noise, np.random.default_rng((*seed, 2)))
    return simulate(space, machine, minutes * 60.0, run, settings)


def row(cell: int, runs: list[Run]) -> str:
    name, minutes, noise, today, tpe, aim = CELLS[cell]
    regrets = np.array([r.regret for r in runs])
    within = np.mean([r <= 0.03 for r in regrets])
    claims = [r.claim - r.gain for r in runs if r.adopted]
    if name.startswith("nothing"):
        score = f"adopted {sum(r.adopted for r in runs)} of {len(runs)}"
    else:
        score = (
            f"{regrets.mean():.1%} ± {regrets.std() / math.sqrt(len(runs)):.1%}"
            f" ({within * 100:.0f})"
        )
    return (
        f"| {name}, {minutes} min | {noise:.0%} | {today} | {tpe} | {aim} | **{score}** |"
        f" {np.mean([r.proposed_regret for r in runs]):.1%} |"
        f" {np.mean([r.needless for r in runs]):.1f} | {np.mean([r.search_s for r in runs]):.0f} s,"
        f" {np.mean([r.total_s for r in runs]):.0f} s | {np.mean(claims) if claims else 0:+.1%} |"
    )


HEAD = (
    "| space, budget | noise | today, before | plain TPE, before | this, before | this, here | not"
    " confirmed | needless knobs | search, in all | over-claim |\n|" + "---|" * 10
)


PAGE = """# The search model on planted spaces

Made by `python benchmarks/regret/simulate.py`. Spaces and noise are described at the top of
`planted.py`; the search is `autotune/search/model/`, asked as a live session asks it, on a
simulated clock: a block is 0.25 s or 8 iterations, three iterations settle after each switch,
workers take 2 s and one block, compiling takes 10 s. A search has the smaller of {share:.0%} of
the budget and what {pairs} pairs of fresh processes leave. What it answers is then confirmed by
the rule of `autotune/verdict/` at 5, 8 and 12 pairs, as far as the budget reaches. Regret is 1 -
speed of what is adopted / speed of the best; *not confirmed* is that of the answer itself.

{runs} runs a cell, on seeds that nothing was developed on. Figures: mean regret ± its standard
error (share of runs within 3 % of the best). *Before* are figures of an earlier simulation whose
planted spaces were drawn alike but not by the same program: of the procedure that the model
replaces (one factor at a time, then TPE), of plain TPE with a fresh process a trial, and of a
prototype of this search.

{table}

Of the calls of `next_series` in a run the slowest took {slowest:.0f} ms (median of all runs), with
one thread of linear algebra, on a machine with other work.
"""

NOTES = """
## What misses the earlier figure

- *Loader*: 1.8 against 1.4 % at 3 minutes, 1.2 against 0.6 % at 10, 2.7 against 1.1 % at 18 %
  noise. Workers (mostly 8 or 16, 1 to 2 % apart) and prefetching are half of what is lost at 6 %
  noise and a third at 18 %; the rest is knobs worth 1.05x, and at 18 % compile. A probable cause,
  seen in runs looked at one by one: the best count changes once compute is faster, and blocks from
  before still speak for the other. These spaces are not the earlier ones, and may be harder.
- *Mix of 11*, 10 minutes, 18 %: 2.6 against 2.0 % in the mean (one standard error), with more runs
  within 3 % (83 against 75). A third of what is lost is compile: it was bought and not believed.
- *Mix of 11*, 1 %: 0.4 against 0.3 %, within the error.
- *Mix of 11*, 3 minutes, 18 %: the mean is better than before (3.7 against 8.1 %), and 58 % of the
  runs are within 3 %.
- *Nothing to gain*, 18 %: 1 of 60 adopted. 23 of the 60 answers were not empty, and those rest on
  the confirmation alone, which lets 2.5 % of them pass.
- Over-claim is small in the mean; its 95th percentile is 5 % at most at 6 % noise, 10 to 16 % at
  18 %, and 20 % at 30 %.

## What was tried

On other seeds (5, the last row 6), 40 to 60 runs a cell, so that the standard error is 0.2 to 0.5 %
and neighboring rows can often not be told apart. Noise 6 %; mean regret (runs within 3 %). Blank:
not run. From "costly knobs" on start-up weighs less (1,000,000 planned steps instead of 100,000),
which alone changes figures a little.

| rule | mix of 11, 3 min | mix of 11, 10 min | loader, 3 min | loader, 10 min | taken |
|---|---|---|---|---|---|
| no level, only random order | 2.6 (70) | 2.5 (80) | 2.7 (72) | 2.1 (65) | no |
| blocks within 2 s share a level | 1.5 (90) | 1.5 (90) | 3.3 (65) | 2.0 (78) | yes |
| … stop at 0.3 % of open regret instead of 0.6 % | | 1.1 (98) | 3.0 (70) | 1.4 (85) | no |
| … at 0.2 % | | 0.8 (98) | 2.9 (72) | 1.3 (90) | yes |
| …… discount behind another loader 1.0 instead of 0.7 | | | 3.1 (65) | 1.4 (88) | no |
| …… 0.4 | | | 3.3 (65) | 1.4 (90) | no |
| …… costly knobs drawn in as many series as they are in doubt | 2.3 (82) | 1.3 (95) | 3.1 (65) | 1.4 (85) | no |
| …… costly knobs drawn in every series | 1.2 (90) | 0.8 (95) | | | yes |
| ……… effects count as strong from 0.1 on, not 0.05 | 1.8 (85) | 1.0 (95) | 2.4 (77) | | no |
| ……… the same, and 0.4 behind another loader | | | 2.5 (70) | 0.8 (97) | the loader's |
| ……… shorter series (3 s) / leader's part from 90 % on | | | 2.8 (65) / 2.7 (72) | | no |
| ……… compile left after 40 blocks, ladders looked at again at the end | | 0.7 (98) | 1.9 (78) | 1.3 (88) | yes |

- Since then the search also goes on while a knob it would leave out may gain 2 % (two standard
  deviations): the minutes it then takes are fewer than those of the fresh processes that would
  have to settle it. The table above includes this; beside the rule before it (other seeds):
  0.6 against 0.7 % on *mix of 11*, 10 minutes, in 321 s instead of 301; 1.3 and 1.3 % on *loader*.
- Tried: the last fifth also flips values that the leader lacks and that may gain 1 % (two standard
  deviations). No difference: on *mix of 11*, 3 minutes with 54 s of search (other seeds), 2.1 and
  2.1 % at 6 % noise, 5.1 and 5.3 % at 18 %.
- Open regret is summed over all knobs here, which is stricter than for each change by itself.
- The level: beside its neighbors a block of 0.25 s is good to 3 %, beside those of a minute ago to
  6 %; and a series of 16 blocks with the same workers is one reading of the level, not sixteen.
- A rule was scored before this one, on nine of these cells and seeds 77 014: mix of 11 at
  10 minutes 3.0 % (18 % noise) and 5.4 % (30 %); mix of 20 1.4 % (3 minutes), 0.3 % and 2.2 %
  (10 minutes, 6 and 18 %); loader 3.4, 2.4 and 3.5 %; nothing to gain 3 of 60. It stayed on a graph
  once it was compiled, so that compile and the knobs of its graph were hardly measured without.
  What those runs showed led to the last row, to seeds 91 177 and to the page's table.
- Since then an answer of which less than 2 % is expected in all is none. Of 60 answers with nothing
  to gain 43 were not empty before, 23 are now.

## Limits

The spaces are near to log-additive, which favors this, and the level's noise is of the kind that
the model has. Not simulated: iterations of 0.3 s and more, bursts, a live session that is biased
against fresh processes. Start-up is paid for out of the search's time; in the regret it does not
count.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="a cell")
    parser.add_argument("--cells", type=int, nargs="*", help="numbers of the cells, all without")
    parser.add_argument(
        "--dry", action="store_true", help="other seeds than the scored ones, write nothing"
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="stop after so long; run it again to go on"
    )
    parser.add_argument("--results", type=Path, help="kept runs, one JSON line each")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        help="module.NAME=value of autotune.search.model, to try out",
    )
    args = parser.parse_args()
    _try_out(args.set)
    base = DRY_SEED if args.dry else SCORED_SEED
    began, kept = time.monotonic(), _kept(args.results)
    print(HEAD)
    rows = []
    for cell in args.cells or range(len(CELLS)):
        for run in range(args.runs):
            if (base, cell, run) in kept:
                continue
            if time.monotonic() - began > args.seconds:
                sys.exit("stopped; run the same command again to go on")
            kept[base, cell, run] = one(cell, run, base, {})
            if args.results:
                with args.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([base, cell, run, asdict(kept[base, cell, run])]) + "\n")
        rows.append(row(cell, [kept[base, cell, run] for run in range(args.runs)]))
        print(rows[-1], flush=True)
    slowest = float(np.median([r.slowest_ms for r in kept.values()]))
    print(f"slowest next_series of a run, median: {slowest:.0f} ms")
    if not args.dry and not args.cells:
        table = "\n".join([HEAD, *rows])
        page = PAGE.format(
            runs=args.runs, table=table, slowest=slowest, share=SHARE, pairs=PAIRS_KEPT
        )
        Path(__file__).with_name("simulated.md").write_text(page + NOTES, encoding="utf-8")


def _kept(path: Path | None) -> dict[tuple[int, int, int], Run]:
    if path is None or not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {(base, cell, run): Run(**found) for base, cell, run, found in lines}


def _try_out(settings: list[str]) -> None:
    import importlib

    for setting in settings:
        where, value = setting.split("=")
        module, name = where.split(".")
        place = (
            sys.modules[__name__]
            if module == "simulate"
            else importlib.import_module(f"autotune.search.model.{module}")
        )
        setattr(place, name, float(value))


if __name__ == "__main__":
    main()
