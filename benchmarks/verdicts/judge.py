"""Scores `autotune judge`'s verdict on two speeds, on the simulated machines of simulate.py.

    python benchmarks/verdicts/judge.py [--runs 400]       a few minutes; writes benchmarks/judge.md
    python benchmarks/verdicts/judge.py --loads [LOAD …]   real processes under the loads of loads.py
                                                           (all: an hour on a quiet machine)

Each simulated judgement makes pairs of fresh processes until the rule decides, ten minutes of the
machine's own clock have passed (a start takes 5 s, a window 4.5 s), or the looks are used up.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from loads import LOADS, Task, side_by_side
from simulate import MACHINES, Machine, figures, fresh_pairs

from autotune.verdict.difference import LOOKS, MARGIN, Difference, difference

SPEEDS = (1.00, 0.95, 0.90, 1.05)  # of B over A
STATES = ("faster", "slower", "same", "open")
SEED = 93_939
MINUTES = 10.0
PAGE = Path(__file__).parents[1] / "judge.md"


def judged(machine: Machine, speed: float) -> Difference:
    """One judgement of a B that is ``speed`` times as fast as A."""
    costs: list[tuple[float, float]] = []
    for look, pairs in enumerate(LOOKS):
        fresh_pairs(machine, speed, costs, pairs)
        ratios, levels = figures(costs)
        found = difference(ratios, look=look, levels=levels)
        last = look + 1 == len(LOOKS)
        pair_s = machine.now_s / pairs
        if found.state != "open" or last or LOOKS[look + 1] * pair_s > MINUTES * 60:
            break
    return found


def row(kind: str, speed: float, runs: int) -> str:
    found = [judged(Machine(kind, (SEED, round(100 * speed), i)), speed) for i in range(runs)]
    shares = [sum(it.state == state for it in found) / runs for state in STATES]
    held = sum(it.interval.low <= speed <= it.interval.high for it in found) / runs
    pairs = np.mean([it.pairs for it in found])
    cells = [
        kind,
        f"{speed:.2f}",
        *(f"{share:.1%}" for share in shares),
        f"{held:.1%}",
        f"{pairs:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def loads_rows(kind: str) -> list[str]:
    """Real processes under one load: 50 judgements of equal sides; if quiet, 40 of a slower B."""
    rows = []
    planted = {"1.00": 50, **({"0.95": 40} if kind == "quiet" else {})}
    tasks = [Task("judge", name, i) for name, count in planted.items() for i in range(count)]
    made = side_by_side(tasks, kind, SEED + LOADS.index(kind))
    for name in planted:
        found = [it for task, (it, _) in made if task.planted == name]
        again = sum(count for task, (_, count) in made if task.planted == name)
        cells = [kind, name, *(str(sum(it.state == state for it in found)) for state in STATES)]
        held = sum(it.interval.low <= float(name) <= it.interval.high for it in found)
        pairs = np.mean([it.pairs for it in found])
        rows.append(f"| {' | '.join(cells)} | {held} of {len(found)} | {pairs:.1f} | {again} |")
        print(rows[-1], flush=True)
    return rows


def real_part(loads: Sequence[str]) -> str:
    """The page's part on real processes, with the rows of ``loads`` measured now; text below its
    table is kept.
    """
    known = PAGE.read_text(encoding="utf-8").partition(REAL)[2]
    table, _, below = known.partition("\n\n")
    rows = table.splitlines()
    for kind in loads:
        rows = [row for row in rows if not row.startswith(f"| {kind} |")] + loads_rows(kind)
    rows.sort(key=lambda row: LOADS.index(row.split(" | ")[0].strip("| ")))
    return REAL + "\n".join(rows) + "\n" + (f"\n{below}" if below else "")


REAL = """
## Real processes under real load

Pairs of real training processes, with the loads and short windows of [loads.md](verdicts/loads.md).

| load | speed of B | faster | slower | same | undecided | held | pairs | runs measured again |
|---|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=400, help="judgements a cell")
    parser.add_argument(
        "--loads", nargs="*", choices=LOADS, help="real processes (none named: all)"
    )
    given = parser.parse_args()
    real = real_part([] if given.loads is None else given.loads or LOADS)
    runs = given.runs
    rows = [row(kind, speed, runs) for kind in MACHINES for speed in SPEEDS]
    text = f"""# What `autotune judge` says of two speeds

Made by `python benchmarks/verdicts/judge.py --runs {runs}`: {runs} judgements a row on the machines of
[simulated.md](verdicts/simulated.md), {MINUTES:g} minutes each, margin {MARGIN:.0%}, looks at
{", ".join(map(str, LOOKS))} pairs. Equal sides may be called faster or slower in 1 % together
(under unseen bursts, 1,200 on other seeds: 1.1 %; 0.9 % under those that are seen).
*Held*: intervals that hold the truth. The loss check is that of `autotune run`: planted loss faults in
[planted.md](verdicts/planted.md).

| machine | speed of B | faster | slower | same | undecided | held | pairs |
|---|---|---|---|---|---|---|---|
"""
    PAGE.write_text(text + "\n".join(rows) + "\n" + real, encoding="utf-8")


if __name__ == "__main__":
    main()
