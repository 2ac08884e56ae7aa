"""How more pairs after an adoption change the claim: its error, its coverage, its width, on the
simulated machines of simulate.py.

    python benchmarks/verdicts/sharpened.py [--runs 300]     a few minutes; writes sharpened.md next
                                                             to this file

For every adopted gain, compares the claim at its adoption with the one after further looks, which
continue until the interval is narrow enough or the pairs are used up (budget.minutes, which may end
them sooner, is ignored here).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from simulate import FINALIST, MACHINES, Machine, figures, fresh_pairs

from autotune.results import Interval
from autotune.verdict.speedup import LOOKS, SHARP, decide, half_width, sharpened

GAINS = (1.03, 1.15, 1.50)
SEED = 83_838


def claims(machine: Machine, speed: float) -> tuple[Interval, Interval, int] | None:
    """(at adoption, at the end, pairs at the end); None: not adopted."""
    costs: list[tuple[float, float]] = []
    first: Interval | None = None
    last = Interval(1.0, 1.0, 1.0)
    for look, pairs in enumerate(LOOKS):
        fresh_pairs(machine, speed, costs, pairs)
        ratios, levels = figures(costs)
        if first is not None:
            last = sharpened(last, ratios, look=look, levels=levels)
        else:
            decision = decide(ratios, look=look, levels=levels, finalist=FINALIST)
            if decision.state == "reject":
                return None
            if decision.state == "adopt":
                first = last = decision.interval
        if first is not None and half_width(last) <= SHARP:
            break
    return None if first is None else (first, last, len(costs))


def row(kind: str, speed: float, runs: int) -> str:
    made = [claims(Machine(kind, (SEED, round(100 * speed), i)), speed) for i in range(runs)]
    found = [claim for claim in made if claim is not None]
    cells = [kind, f"{speed:.2f}", f"{len(found)} of {runs}"]
    for place in (0, 1):
        intervals = [claim[place] for claim in found]
        errors = np.array([interval.estimate / speed - 1 for interval in intervals] or [math.nan])
        covered = sum(interval.low <= speed <= interval.high for interval in intervals) / max(
            len(found), 1
        )
        width = np.mean([half_width(interval) for interval in intervals] or [math.nan])
        cells.append(
            f"{errors.mean():+.1%}, {abs(errors).mean():.1%}, {np.quantile(errors, 0.95):+.1%};"
            f" {covered:.1%}; ±{width:.1%}"
        )
    cells.append(f"{np.mean([claim[2] for claim in found] or [math.nan]):.1f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=300, help="confirmations a cell")
    runs = parser.parse_args().runs
    rows = [row(kind, speed, runs) for kind in MACHINES for speed in GAINS]
    text = f"""# More pairs after an adoption

Made by `python benchmarks/verdicts/sharpened.py --runs {runs}`. Simulated machines as in [simulated.md](simulated.md), the second
of three finalists. A claim's figures: error of the estimate (mean, mean size, 95th percentile); share of intervals that hold the truth;
half their width. *In the end*: with pairs until half the width is {SHARP:.0%}, {LOOKS[-1]} at most. What is adopted does not change.

| machine | speed-up | adopted | claim at the adoption | claim in the end | pairs in the end |
|---|---|---|---|---|---|
"""
    (Path(__file__).parent / "sharpened.md").write_text(
        text + "\n".join(rows) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
