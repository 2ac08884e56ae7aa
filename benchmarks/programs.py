"""What the agent costs in frameworks' own loops: each program bare and in a session without a knob,
in turns.

    python benchmarks/programs.py [--rounds 5] [--steps 300] [--only accelerate lightning]

Both sides report how long their loop took, without evaluation; the session is a `fixed` one that
records every iteration to the job's end. The figure is the median of the pairwise ratios. The
programs and their environment are those of `make compat`: set AUTOTUNE_COMPAT_PYTHON to its Python.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "compat"))

from catalogue import ACCELERATE, GRAPHS, LIGHTNING, SKORCH, TRAINER, ZOO, Program
from harness import Place, settle


def loop_s(place: Place, name: str, steps: int) -> float:
    """Seconds its loop took, by its own clock."""
    truth = place.program.truth(place.folder / name)
    assert truth.loop_s is not None
    return (truth.loop_s - truth.away_s) / steps


def ratios(program: Program, rounds: int, steps: int) -> tuple[list[float], float]:
    """(agent / bare, one per round; seconds per iteration of the bare program)."""
    with tempfile.TemporaryDirectory() as folder:
        place = settle(program, Path(folder) / "job")
        found, bare = [], []
        for number in range(rounds):
            sides = {}
            for side in ("bare", "agent") if number % 2 == 0 else ("agent", "bare"):
                name = f"{side}{number}"
                if side == "bare":
                    place.bare(name, steps)
                else:
                    place.recorded(name, steps)
                sides[side] = loop_s(place, name, steps)
            found.append(sides["agent"] / sides["bare"])
            bare.append(sides["bare"])
        return found, statistics.median(bare)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", nargs="*", help="names of programs")
    chosen = parser.parse_args()
    print(
        "| program | iteration, bare | agent / bare, median | from … to | agent's share by that, µs"
        " an iteration |"
    )
    print("|---|---|---|---|---|")
    programs = (TRAINER, ACCELERATE, LIGHTNING, SKORCH, GRAPHS, ZOO)
    for program in [p for p in programs if not chosen.only or p.name in chosen.only]:
        found, bare_s = ratios(program, chosen.rounds, chosen.steps)
        middle = statistics.median(found)
        row = (
            f"{bare_s * 1e3:.2f} ms | {middle:.3f} | {min(found):.3f} … {max(found):.3f} |"
            f" {(middle - 1) * bare_s * 1e6:.0f}"
        )
        print(f"| {program.name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
