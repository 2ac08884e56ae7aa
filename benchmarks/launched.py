"""Does the launch config keep the promise of the result? The example bare and by `autotune launch`,
two epochs each, in turn.

    autotune run examples/digits/job.yaml
    python benchmarks/launched.py autotune-runs/digits [--pairs 5] [--out benchmarks/launched.md]

Both sides run the same copy of the script, which notes the time at every optimizer step. An epoch's
first step is left out on both sides: what lies before it is evaluation and the change of epochs,
which the reported figure leaves out too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from autotune.export.load import load_tuned
from autotune.export.tuned import write_tuned

ROOT = Path(__file__).resolve().parents[1]
EPOCHS = 2
WARM_UP = 10  # steps left out, as in every figure the tool reports
STEPS = 24  # an epoch: 1500 images in batches of 64


def timed_copy(folder: Path) -> Path:
    """The example with a clock at its optimizer step, line for line the same."""
    text = (ROOT / "examples" / "digits" / "train.py").read_text()
    text = text.replace(
        "import argparse",
        "import argparse, atexit, json, os, time; TIMES = []; atexit.register(lambda:"
        " json.dump(TIMES, open(os.environ['TIMES'], 'w')))",
        1,
    )
    text = text.replace(
        "optimizer.step()", "optimizer.step(); TIMES.append(time.perf_counter())", 1
    )
    (folder / "train.py").write_text(text)
    return folder / "train.py"


def iteration_s(command: list[str], folder: Path) -> float:
    """Mean step-to-step time; warm-up and the first step of each epoch left out."""

    output = folder / "times.json"
    subprocess.run(
        command,
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TIMES": str(output)},
    )
    times = json.loads(output.read_text())
    gaps = [
        b - a
        for n, (a, b) in enumerate(zip(times, times[1:], strict=False), 1)
        if n > WARM_UP and n % STEPS
    ]
    return statistics.fmean(gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = json.loads((options.run / "result.json").read_text())
    speedup = result["speedup"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = timed_copy(folder)
        write_tuned(
            replace(load_tuned(options.run), workdir=folder, command=("python", "train.py")),
            folder / "tuned.yaml",
        )
        epochs = ["--epochs", str(EPOCHS)]
        bare = [sys.executable, script.name, *epochs]
        launched = [
            sys.executable,
            "-m",
            "autotune",
            "launch",
            "tuned.yaml",
            "--quiet",
            "--",
            *epochs,
        ]
        ratios = []
        for number in range(options.pairs):
            sides = [bare, launched] if number % 2 == 0 else [launched, bare]
            seconds = {id(side): iteration_s(side, folder) for side in sides}
            ratios.append(seconds[id(bare)] / seconds[id(launched)])
            print(
                f"pair {number}: bare {1e3 * seconds[id(bare)]:.1f} ms, launched"
                f" {1e3 * seconds[id(launched)]:.1f} ms an iteration, {ratios[-1]:.2f}x",
                flush=True,
            )
    middle = statistics.median(ratios)
    inside = speedup["low"] <= middle <= speedup["high"]
    lines = [
        "# The launch config, held against the result",
        "",
        (
            "Made by `python benchmarks/launched.py` after `autotune run"
            f" examples/digits/job.yaml`, {options.pairs} pairs of {EPOCHS} epochs."
        ),
        "",
        (
            f"- reported: {speedup['estimate']:.2f}x, 95 % interval {speedup['low']:.2f} to"
            f" {speedup['high']:.2f}; knobs {result['knobs']}"
        ),
        (
            f"- launched against bare: {middle:.2f}x (median; from {min(ratios):.2f} to"
            f" {max(ratios):.2f})"
        ),
        f"- inside the reported interval: {'yes' if inside else 'no'}",
    ]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
