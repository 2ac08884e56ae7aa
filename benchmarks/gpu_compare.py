"""Autotune against the package pytorch-autotune 2.0.0, written to benchmarks/gpu_compare.md.

    python benchmarks/gpu_compare.py run [WORKLOAD ...] [--parts other ours turns] [--within 9.5]
    python benchmarks/gpu_compare.py page

That package publishes, over the float32 defaults of torch on an A100 and with 15 minutes to search:

    resnet50      2.71x   224 pixels, batch 64
    resnet18      3.84x   32 pixels, batch 128
    transformer   6.65x   6 layers, 128 tokens, batch 32

Both tools get the same program for each workload, benchmarks/gpu_jobs/published.py. The parts, in
this order:

    other   the package searches, called as its README says (pytorch_autotuned.py)
    ours    `autotune run` on the unchanged program
    turns   the program bare and with both winners, each in a fresh process: bare, ours, other,
            then other, ours, bare, and so on

Finished tuning is not repeated, and an interrupted run of autotune resumes (build/gpu_compare/).
Batches are kept on the device; with --loader, a DataLoader with torch's defaults makes them.

The job's Python (--job-python; for the tuner's see gpu.py) needs the package beside torch and
NumPy: 20 kB without its dependencies. --other PROGRAM compares another tool, which is called like
pytorch_autotuned.py, with the arguments of published.py:

    PROGRAM tune WORKLOAD … --budget BUDGET        its last line names the settings it found
    PROGRAM run WORKLOAD … --steps N --timed N     its last line looks like "1234.5 samples/s"

Both get AUTOTUNED_FOLDER, a folder in which the first can leave files for the second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu

PUBLISHED = {"resnet50": 2.71, "resnet18": 3.84, "transformer": 6.65}
RESULTS = gpu.ROOT / "benchmarks" / "gpu_compare_results"
PARTS = ("other", "ours", "turns")
GOAL = 0.98  # of the package's speed
COLUMNS = (
    "workload",
    "bare, samples/s",
    "autotune",
    "the package",
    "published",
    "autotune ÷ the package",
    "at least 0.98",
    "settings of autotune",
    "of the package",
    "minutes of autotune",
    "of the package",
)

HEAD = """\
# Beside pytorch-autotune 2.0.0

Made by `python benchmarks/gpu_compare.py run`. The program bare, tuned by autotune, and set up by
the package, in turns in fresh processes: samples a second, medians of the rounds with the range of
their ratios. Published: what the package states for an A100 over torch's float32 defaults. Its
README tells neither the width of its Transformer, 512 here, nor the stem of its ResNet-18, the one
for ImageNet here.
"""


@dataclass(frozen=True)
class Place:
    """Where one workload is compared.

    Args:
        words: the program's arguments, the workload first.
    """

    words: tuple[str, ...]
    folder: Path
    python: str
    other: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def run_dir(self) -> Path:
        return self.folder / "ours" / "autotune-runs" / self.name

    @property
    def ours_found(self) -> Path:
        return self.run_dir / "result.json"

    @property
    def other_found(self) -> Path:
        return self.folder / "other.json"

    def env(self) -> dict[str, str]:
        """Environment of a process without the tuner, with a folder for the other tool's files."""
        kept = self.folder / "other"
        kept.mkdir(parents=True, exist_ok=True)
        added = {"AUTOTUNED_FOLDER": str(kept), "PYTORCH_AUTOTUNE_CACHE": str(kept / "cache.json")}
        return {**os.environ, **added}


def tune_ours(place: Place, minutes: float, until: float = math.inf) -> dict[str, Any]:
    """Run `autotune run`; returns its result.json, and raises what gpu.tune raises."""
    command = [place.python, "published.py", *place.words]
    return gpu.tune(place.name, command, place.folder / "ours", minutes, until)


def tune_other(place: Place, budget: str) -> dict[str, Any]:
    """What the other tool found: its settings, in its own words, and the seconds it took.

    Raises:
        subprocess.CalledProcessError: it failed; it has printed why.
    """
    command = [place.python, str(place.other), "tune", *place.words, "--budget", budget]
    began = time.monotonic()
    done = subprocess.run(command, env=place.env(), stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    found = {"settings": done.stdout.strip().splitlines()[-1], "wall_s": time.monotonic() - began}
    place.other_found.write_text(json.dumps(found))
    return found


def turns(place: Place, rounds: int, steps: int, timed: int) -> list[dict[str, float]]:
    """Samples per second of each side, one value per round.

    Args:
        steps: of one process; those before the last ``timed`` are warm-up, including compilation.
    """
    words = ["--steps", str(steps), "--timed", str(timed)]
    bare = [place.python, str(gpu.SCRIPTS / "published.py"), *place.words, *words]
    launch = [
        sys.executable,
        "-m",
        "autotune",
        "launch",
        str(place.run_dir),
        "--quiet",
        "--",
        *words,
    ]
    other = [place.python, str(place.other), "run", *place.words, *words]
    sides = {
        "bare": (bare, place.env()),
        "ours": (launch, gpu.TUNER),
        "other": (other, place.env()),
    }
    found = []
    for number in range(rounds):
        order = list(sides)[:: 1 if number % 2 == 0 else -1]
        found.append({side: rate(*sides[side]) for side in order})
        print(f"{place.name}, round {number + 1}: {found[-1]}", flush=True)
    return found


def rate(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Samples per second, from the last line that a fresh process prints."""
    done = subprocess.run(command, env=dict(env), stdout=subprocess.PIPE, text=True, check=True)
    said = re.fullmatch(r"(\S+) samples/s", done.stdout.strip().splitlines()[-1])
    if not said:
        raise ValueError(f"no rate in the last line of {command}: {done.stdout[-200:]!r}")
    return float(said[1])


def figures(
    place: Place,
    ours: Mapping[str, Any],
    other: Mapping[str, Any],
    rates: Sequence[Mapping[str, float]],
) -> dict[str, Any]:
    """What is kept of a comparison.

    Raises:
        ValueError: it was not made on a CUDA device.
    """
    result = gpu.figures(ours)
    return {
        "words": place.words,
        "machine": result["machine"],
        "other": other,
        "ours": {
            name: result[name]
            for name in ("knobs", "verdict", "reason", "speedup", "loss", "wall_s")
        },
        "rates": rates,
    }


def row(found: Mapping[str, Any]) -> str:
    """One line of the table: medians of the rounds, and their range."""
    rates = found["rates"]
    middle = {side: statistics.median(r[side] for r in rates) for side in rates[0]}
    against = [r["ours"] / r["other"] for r in rates]
    ratio = statistics.median(against)
    gains = [
        f"{middle[side]:.0f} ({statistics.median(r[side] / r['bare'] for r in rates):.2f}x)"
        for side in ("ours", "other")
    ]
    knobs = ", ".join(f"{name}={value}" for name, value in found["ours"]["knobs"].items())
    return gpu.line(
        [
            " ".join(found["words"]),
            f"{middle['bare']:.0f}",
            *gains,
            f"{PUBLISHED[found['words'][0]]:.2f}x",
            f"{ratio:.3f} ({min(against):.3f} to {max(against):.3f})",
            "yes" if ratio >= GOAL else "no",
            knobs or "none",
            found["other"]["settings"],
            f"{found['ours']['wall_s'] / 60:.1f}",
            f"{found['other']['wall_s'] / 60:.1f}",
        ]
    )


def page(found: Sequence[Mapping[str, Any]]) -> str:
    lines = [HEAD.rstrip()]
    for machine in sorted({gpu.words_of(one["machine"]) for one in found}):
        lines += ["", f"## {machine}", "", gpu.line(COLUMNS), "|" + "---|" * len(COLUMNS)]
        lines += [row(one) for one in found if gpu.words_of(one["machine"]) == machine]
    return "\n".join(lines) + "\n"


def compare(place: Place, options: argparse.Namespace, until: float) -> None:
    """Run the requested parts that are not done yet; raises what they raise, and TimeIsUp."""

    def asked_for(part: str) -> bool:
        if part in options.parts and time.monotonic() > until:
            raise gpu.TimeIsUp
        return part in options.parts

    if asked_for("other") and not place.other_found.exists():
        tune_other(place, options.budget)
    if asked_for("ours") and not place.ours_found.exists():
        tune_ours(place, options.minutes, until)
    if asked_for("turns"):
        ours, other = (
            json.loads(path.read_text()) for path in (place.ours_found, place.other_found)
        )
        rates = turns(place, options.rounds, options.steps, options.timed)
        options.results.mkdir(parents=True, exist_ok=True)
        text = json.dumps(figures(place, ours, other, rates), indent=1)
        (options.results / f"{place.name}.json").write_text(text + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="one JSON file a workload")
    parser.add_argument("--out", type=Path, default=gpu.ROOT / "benchmarks" / "gpu_compare.md")
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("page", help="write the page of the results that are there")
    running = commands.add_parser(
        "run", help="tune with both, run both winners in turns, write the page"
    )
    running.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(PUBLISHED)}; default: all"
    )
    running.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    running.add_argument(
        "--loader", action="store_true", help="batches come from a default DataLoader"
    )
    running.add_argument("--minutes", type=float, default=8.0, help="budget of autotune run")
    running.add_argument("--budget", default="max", help="fast, balanced, max: 2, 6, 15 minutes")
    running.add_argument(
        "--within",
        type=float,
        default=math.inf,
        help="minutes for it all; the package's search and the turns are not cut short",
    )
    running.add_argument("--rounds", type=int, default=4)
    running.add_argument("--steps", type=int, default=400, help="of each process in turn")
    running.add_argument("--timed", type=int, default=300, help="of them, the last")
    running.add_argument(
        "--job-python", default=sys.executable, help="Python of the workloads and the package"
    )
    running.add_argument(
        "--other", type=Path, default=gpu.SCRIPTS / "pytorch_autotuned.py", help="see above"
    )
    running.add_argument("--work", type=Path, default=gpu.ROOT / "build" / "gpu_compare")
    options = parser.parse_args()
    if options.what == "page":
        return gpu.write_page(page, options.results, options.out)
    names = options.workloads or list(PUBLISHED)
    if unknown := set(names) - set(PUBLISHED):
        parser.error(
            f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(PUBLISHED)}"
        )
    if why := gpu.no_device(options.job_python):
        print(f"no CUDA device for {options.job_python} ({why}): nothing is run", file=sys.stderr)
        return 1
    until, without = time.monotonic() + 60 * options.within, []
    for name in names:
        words = (name, "--loader") if options.loader else (name,)
        folder = options.work / (f"{name}-loader" if options.loader else name)
        place = Place(words, folder, options.job_python, options.other.absolute())
        try:
            compare(place, options, until)
        except gpu.TimeIsUp:
            without.append(f"{name} (time is up: the same command carries on)")
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            without.append(f"{name} ({error})")
    if without:
        print("without a result: " + ", ".join(without), file=sys.stderr)
    if without or "turns" not in options.parts:
        return 1 if without else 0
    return gpu.write_page(page, options.results, options.out)


if __name__ == "__main__":
    sys.exit(main())
