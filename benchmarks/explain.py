"""What the explain stage costs a run, and that no part of it is active in timed windows.

    python benchmarks/explain.py [--job examples/digits/job.yaml] [--minutes 3] [--trials 6]
    [--keep FOLDER]

Tunes a copy of the job in its own folder. Reports, from result.json, the explain stage's share of
the wall time (the bar: 25 %) and, from every session, whether any part of explaining was active
while iterations were timed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BAR = 0.25
TIMED = ("live", "fixed")
LEFT_BEHIND = ("trace-*", "stacks-*.json.gz", "nsight*")  # what a profiled session writes


def tune(job: Path, folder: Path, minutes: float, trials: int) -> Path:
    """Tune a copy of the job; returns the run directory."""
    shutil.copytree(
        job.parent, folder / "job", ignore=shutil.ignore_patterns("autotune-runs", "__pycache__")
    )
    words = [
        sys.executable,
        "-m",
        "autotune",
        "run",
        job.name,
        "--no-history",
        "--offline",
        "--quiet",
        "--minutes",
        str(minutes),
        "--trials",
        str(trials),
    ]
    subprocess.run(words, cwd=folder / "job", check=True)
    (result,) = (folder / "job").glob("autotune-runs/*/result.json")
    return result.parent


def shares(run: Path) -> list[tuple[str, float]]:
    """(stage, seconds) for the whole run, from the time each piece of work finished."""
    result = json.loads((run / "result.json").read_text())
    entries = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    observed = next(e["elapsed_s"] for e in entries if e["kind"] == "observation")
    searched = max((e["elapsed_s"] for e in entries if e["kind"] == "trial"), default=observed)
    explained, whole = result["explanation"]["wall_s"], result["wall_s"]
    return [
        ("observe", observed),
        ("search", searched - observed),
        ("confirm and converge", whole - explained - searched),
        ("explain", explained),
        ("whole run", whole),
    ]


def active_while_timed(run: Path) -> tuple[Counter[str], list[str]]:
    """(sessions by mode, parts of explaining that were active in a timed session)."""
    modes: Counter[str] = Counter()
    found = []
    for session in sorted((run / "sessions").iterdir()):
        config: dict[str, Any] = json.loads((session / "session.json").read_text())
        modes[config["mode"]] += 1
        if config["mode"] not in TIMED:
            continue
        found += [
            f"{session.name}: {name} is set"
            for name in ("nvtx_modules", "capture")
            if config.get(name)
        ]
        found += [
            f"{session.name}: wrote {path.name}"
            for pattern in LEFT_BEHIND
            for path in session.glob(pattern)
        ]
    for path in sorted((run / "records").glob("*.json")):
        record = json.loads(path.read_text())
        profiled = path.name.startswith(("profile-", "frames-", "nsys-", "ncu-"))
        found += [
            f"{path.name}: has {name}"
            for name in ("evidence", "trace", "stacks", "operators")
            if record.get(name) and not profiled
        ]
    return modes, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--job", type=Path, default=ROOT / "examples" / "digits" / "job.yaml")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--keep", type=Path, help="leave the run in this folder")
    parser.add_argument("--run", type=Path, help="look at this finished run instead of making one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = options.run or tune(
            options.job.resolve(), options.keep or Path(name), options.minutes, options.trials
        )
        rows, (modes, found) = shares(run), active_while_timed(run)
    whole = rows[-1][1]
    print("| stage | seconds | share |\n|---|---|---|")
    for stage, seconds in rows:
        print(f"| {stage} | {seconds:.1f} | {seconds / whole:.1%} |")
    share = dict(rows)["explain"] / whole
    print(
        f"\nexplain: {share:.1%} of the run's wall time (bar: {BAR:.0%}):"
        f" {'held' if share <= BAR else 'BROKEN'}"
    )
    timed = sum(modes[mode] for mode in TIMED)
    print(
        f"{timed} timed sessions"
        f" ({', '.join(f'{n} {mode}' for mode, n in sorted(modes.items()))}): ",
        end="",
    )
    print(
        "nothing of explaining was on in any of them"
        if not found
        else "BROKEN: " + "; ".join(found)
    )
    return int(share > BAR or bool(found))


if __name__ == "__main__":
    sys.exit(main())
