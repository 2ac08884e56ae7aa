"""Scores the "loss unchanged" rule on small real trainings into which a known change is planted.

    python benchmarks/verdicts/planted.py --dry      other seeds; prints the tables, writes nothing
    python benchmarks/verdicts/planted.py            the scored run, about half an hour on 2 cores;
                                                     writes planted.md
    python benchmarks/verdicts/planted.py --dry --only transformer --cache DIR
                                                     one bed; runs are kept for the next time

    cells ──▶ truth      16 paired runs of each change: what it really does, in margins
      │                  (beds/truth.py)
      └─────▶ verdicts   fresh sets of seeds; for each, check_loss of the converge stage requests
                         pair after pair, as it does in the tool
                         (autotune/stages/converge.py, beds/runs.py)

Every run is a session of the real agent in a forked process (beds/forked.py). The scored seeds must
not run before the rule is frozen: use --dry while working on a rule.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

# one thread per run: two runs at once must not compete for the cores
os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "trials"),
    str(ROOT / "search_spaces"),
    str(Path(__file__).parent),
]

from beds import forked  # noqa: E402
from beds.cells import STEPS, Cell, table  # noqa: E402
from beds.report import bars_table, cells_table, document, wrong_verdicts  # noqa: E402
from beds.runs import CellPairs, Store  # noqa: E402
from beds.truth import Truth, truth  # noqa: E402

from autotune.results import LossVerdict  # noqa: E402
from autotune.stages.converge import Asked, check_loss  # noqa: E402

# the scored seeds run once, after the rule is frozen
SCORED_SEED, DRY_SEED = 2_026_000, 7_000_000
SET_SEEDS = 100  # seeds that a set may use
TRUTH_SEED = 500_000  # outside all sets
TRUTH_PAIRS = 16
SETS = 5
# Bars of a few per cent need more than five tries per cell.
MORE_SETS = {"stream": 3, "rounding": 2, "mild-float16": 2}
AT_ONCE = 2


@dataclass(frozen=True)
class Scored:
    """One cell, its truth and the verdict of each set of seeds."""

    cell: Cell
    truth: Truth
    verdicts: tuple[LossVerdict, ...]

    def share(self, word: str) -> float:
        return sum(v.verdict == word for v in self.verdicts) / len(self.verdicts)

    @property
    def median_pairs(self) -> float:
        return median(v.pairs for v in self.verdicts)


def verdict(cell: Cell, first_seed: int, store: Store) -> LossVerdict:
    """One verdict; pairs are made as ``check_loss`` requests them."""
    asked = Asked(cell.numerics, steps=STEPS, declared=cell.declared)
    return check_loss(CellPairs(store, cell, first_seed), asked)


def truth_of(cell: Cell, seeds: range, store: Store) -> Truth:
    reference = {s: store.reference(cell.bed, s) for s in seeds}
    return truth(cell, reference, {s: store.candidate(cell, s) for s in seeds})


def score(
    cells: Sequence[Cell], seed: int, store: Store, sets: int = SETS, truth_pairs: int = TRUTH_PAIRS
) -> list[Scored]:
    """Truth and verdicts of all ``cells``, two runs at a time."""
    truth_seeds = range(seed + TRUTH_SEED, seed + TRUTH_SEED + truth_pairs)
    counts = {cell: sets * MORE_SETS.get(cell.kind, 1) for cell in cells}
    tries = [
        (cell, seed + SET_SEEDS * k)
        for k in range(max(counts.values()))
        for cell in cells
        if k < counts[cell]
    ]
    with two_at_once() as pool:
        truths = list(
            _shown(
                "truth",
                pool.map(partial(truth_of, seeds=truth_seeds, store=store), cells),
                len(cells),
            )
        )
        found = list(
            _shown("verdicts", pool.map(partial(_verdict, store=store), tries), len(tries))
        )
    verdicts: dict[Cell, list[LossVerdict]] = {cell: [] for cell in cells}
    for (cell, _), one in zip(tries, found):
        verdicts[cell].append(one)
    return [Scored(cell, what, tuple(verdicts[cell])) for cell, what in zip(cells, truths)]


def verdicts_of(tries: Sequence[tuple[Cell, int]], store: Store) -> list[LossVerdict]:
    """One verdict for each cell and first seed."""
    with two_at_once() as pool:
        return list(pool.map(partial(_verdict, store=store), tries))


@contextmanager
def two_at_once() -> Iterator[ProcessPoolExecutor]:
    """Processes that fork runs. multiprocessing's own pool cannot be used: its processes must not
    have children with workers.
    """
    forked.prepare()
    pool = ProcessPoolExecutor(AT_ONCE, get_context("fork"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)  # if interrupted, nothing new is started


def _verdict(job: tuple[Cell, int], store: Store) -> LossVerdict:
    found = verdict(*job, store)
    return LossVerdict(
        found.verdict,
        found.reason,
        found.pairs,
        found.steps,
        found.margin,
        found.largest_difference,
        found.numerics,
    )


def _shown(what: str, results: Iterable[Any], total: int) -> Iterator[Any]:
    began = time.monotonic()
    for i, result in enumerate(results, 1):
        if i % max(total // 20, 1) == 0 or i == total:
            print(
                f"{what}: {i} of {total}, {time.monotonic() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        yield result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="other seeds, and nothing is written")
    parser.add_argument(
        "--cache", type=Path, help="keep runs here, to score them again with another rule"
    )
    parser.add_argument(
        "--only", default="", help="beds, kinds or changes, comma separated: only these cells"
    )
    parser.add_argument("--sets", type=int, default=SETS, help="sets of seeds a cell is scored on")
    parser.add_argument(
        "--truth-pairs", type=int, default=TRUTH_PAIRS, help="paired runs behind each true effect"
    )
    parser.add_argument(
        "--reasons", action="store_true", help="also print why each wrong verdict was given"
    )
    options = parser.parse_args()
    whole = (options.only, options.sets, options.truth_pairs) == ("", SETS, TRUTH_PAIRS)
    if not whole and not options.dry:
        parser.error(
            "--only, --sets and --truth-pairs are for --dry: the scored run is the whole table"
        )

    wanted = {w for w in options.only.split(",") if w}
    cells = [
        c
        for c in table()
        if not wanted or wanted & {c.bed, c.kind, c.change, f"{c.bed}/{c.change}"}
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-runs-") as temporary:
        folder = options.cache or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        scored = score(
            cells,
            DRY_SEED if options.dry else SCORED_SEED,
            Store(folder),
            options.sets,
            options.truth_pairs,
        )
    wall_s = time.monotonic() - began
    print(bars_table(scored))
    print(cells_table(scored))
    if options.reasons:
        print(wrong_verdicts(scored))
    print(f"{wall_s:.0f} s")
    if not options.dry:
        (Path(__file__).parent / "planted.md").write_text(
            document(scored, wall_s), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
