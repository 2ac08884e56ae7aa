"""Makes bounds.py: the critical values of every plan of looks that is used.

python -m autotune.verdict.make_bounds && ruff format autotune/verdict/bounds.py     (a minute)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "trials"), str(ROOT / "search_spaces")]

from autotune.verdict import difference, sequential, speedup  # noqa: E402

SEQUENCES, SEED = 400_000, 1964
HEADER = '''"""Critical values that sequential.boundary would find by itself, sooner and closer: of 400 000 normal
sequences. Made by benchmarks/bounds.py.
"""

# (looks, tail, spending): one value a look
BOUNDS: dict[tuple[tuple[int, ...], float, float], tuple[float, ...]] = {'''


def main() -> None:
    plans = [speedup.LOOKS[: n + 1] for n in range(len(speedup.LOOKS))]
    lower = sorted({*speedup.FALSE_ADOPTIONS, speedup.SHARP_TAIL})
    of_speedup = [(t, sequential.LATE) for t in lower] + [(speedup.UPPER_TAIL, sequential.EARLY)]
    of_judge = [
        (t, sequential.EARLY) for t in (difference.DIRECTION_TAIL, difference.INTERVAL_TAIL)
    ]
    entries = [*_entries(plans, of_speedup), *_entries([difference.LOOKS], of_judge)]
    target = ROOT / "autotune" / "verdict" / "bounds.py"
    target.write_text("\n".join([HEADER, *entries, "}"]) + "\n")


def _entries(plans: list[tuple[int, ...]], tails: list[tuple[float, float]]) -> Iterator[str]:
    """``plans`` are beginnings of the last one."""
    t = sequential.simulated(plans[-1], SEQUENCES, SEED)
    for looks in plans:
        for tail, spending in tails:
            found = sequential.passed_first(t[:, : len(looks)], looks, tail, spending)
            yield f"    ({looks}, {tail}, {spending}): ({', '.join(f'{c:.3f}' for c in found)},),"


if __name__ == "__main__":
    main()
