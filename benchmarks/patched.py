"""Does the exported patch deliver the reported speed-up? The example bare, patched, and by
`autotune launch`, two epochs each, in turns.

    autotune run examples/digits/job.yaml
    python benchmarks/patched.py autotune-runs/digits [--rounds 5] [--out benchmarks/patched.md]

Applies the patch of `autotune export --format diff` to a copy of the example and runs the copy
without autotune. All sides record the time at every optimizer step. The first step of an epoch is
left out because it includes evaluation and the change of epochs; the reported figure leaves these
out too. Losses are compared as well: the patched copy must print what the launched one prints.
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

from autotune.export.formats import FORMATS
from autotune.export.load import load_tuned
from autotune.export.tuned import TunedConfig, write_tuned

ROOT = Path(__file__).resolve().parents[1]
EPOCHS = 2
WARM_UP = 10  # steps left out, as in every reported figure
STEPS = 24  # per epoch: 1500 images in batches of 64
CLOCK = (
    (
        "import argparse, atexit, json, os, time; TIMES = []; atexit.register(lambda:"
        " json.dump(TIMES, open(os.environ['TIMES'], 'w')))"
    ),
    "optimizer.step(); TIMES.append(time.perf_counter())",
)


def timed(text: str) -> str:
    """The example's source with a timestamp at its optimizer step; line numbers stay the same."""
    return text.replace("import argparse", CLOCK[0], 1).replace("optimizer.step()", CLOCK[1], 1)


def sides(tuned: TunedConfig, folder: Path) -> dict[str, list[str]]:
    """The copies and the command of each. The patch is applied before the timestamps are added."""
    source = (tuned.workdir / "train.py").read_text()
    for name in ("bare", "patched", "launched"):
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(source)
    diff = FORMATS["diff"].write(tuned)
    print(diff)
    subprocess.run(
        ["patch", "-p1", "--quiet"], cwd=folder / "patched", input=diff, text=True, check=True
    )
    for name in ("bare", "patched", "launched"):
        path = folder / name / "train.py"
        path.write_text(timed(path.read_text()))
    write_tuned(replace(tuned, workdir=folder / "launched"), folder / "launched" / "tuned.yaml")
    epochs = ["--epochs", str(EPOCHS)]
    script = [sys.executable, "train.py", *epochs]
    return {
        "bare": script,
        "patched": script,
        "launched": [
            sys.executable,
            "-m",
            "autotune",
            "launch",
            "tuned.yaml",
            "--quiet",
            "--",
            *epochs,
        ],
    }


def measure(command: list[str], folder: Path) -> tuple[float, str]:
    """(Mean step-to-step time, output); without warm-up and the first step of each epoch."""
    output = folder / "times.json"
    done = subprocess.run(
        command,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "TIMES": str(output)},
    )
    times = json.loads(output.read_text())
    gaps = [
        b - a
        for n, (a, b) in enumerate(zip(times, times[1:], strict=False), 1)
        if n > WARM_UP and n % STEPS
    ]
    return statistics.fmean(gaps), done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="a run of the example, or a tuned.yaml of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tuned = replace(
        load_tuned(options.run),
        workdir=ROOT / "examples" / "digits",
        command=("python", "train.py"),
    )
    ratios: dict[str, list[float]] = {"patched": [], "launched": []}
    same = True
    with tempfile.TemporaryDirectory() as name:
        commands = sides(tuned, Path(name))
        for number in range(options.rounds):
            order = list(commands)[:: 1 if number % 2 == 0 else -1]
            found = {side: measure(commands[side], Path(name) / side) for side in order}
            same = same and found["patched"][1] == found["launched"][1]
            for side, against in ratios.items():
                against.append(found["bare"][0] / found[side][0])
            print(
                f"round {number}: "
                + ", ".join(f"{side} {1e3 * found[side][0]:.1f} ms" for side in commands),
                flush=True,
            )
    lines = report(options.rounds, tuned, ratios, same)
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def report(
    rounds: int, tuned: TunedConfig, ratios: dict[str, list[float]], same: bool
) -> list[str]:
    """The figures as a page."""
    reported = tuned.provenance.speedup
    assert reported is not None, "nothing was tuned, so there is nothing to hold a patch against"
    middle = {side: statistics.median(against) for side, against in ratios.items()}
    inside = reported.low <= middle["patched"] <= reported.high
    knobs = {name: knob.value for name, knob in tuned.knobs.items()}
    return [
        "# The patch, held against the result",
        "",
        (
            "Made by `python benchmarks/patched.py` after `autotune run examples/digits/job.yaml`,"
            f" {rounds} rounds of {EPOCHS} epochs."
        ),
        "",
        (
            f"- reported: {reported.estimate:.2f}x, 95 % interval {reported.low:.2f} to"
            f" {reported.high:.2f}; knobs {knobs}"
        ),
        *(
            f"- {side} against bare: {middle[side]:.2f}x (median; from {min(against):.2f} to"
            f" {max(against):.2f})"
            for side, against in ratios.items()
        ),
        f"- threads: {os.environ.get('OMP_NUM_THREADS') or 'as many as torch takes'}",
        f"- patched inside the reported interval: {'yes' if inside else 'no'}",
        f"- patched and launched print the same losses and accuracies: {'yes' if same else 'no'}",
    ]


if __name__ == "__main__":
    main()
