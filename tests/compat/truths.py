"""What a program reports of its own training, from its logs."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

FLOAT32 = 1e-6  # relative: sums of float32 numbers in a different order
FLOAT64 = 1e-12


@dataclass(frozen=True)
class Truth:
    """A program's own figures.

    ``losses``: one per step, or () if the program only logs ``epochs``. ``samples``: of each step,
    if they are random. ``said``: everything it logged, for exact comparison.
    """

    losses: tuple[float, ...] = ()
    epochs: tuple[float, ...] = ()
    samples: tuple[int, ...] = ()
    weighted: bool = False  # epochs: means over samples instead of steps
    rel: float = FLOAT32
    loop_s: float | None = None  # its training took this long ...
    away_s: float = 0.0  # ... of which this was evaluation

    @property
    def said(self) -> tuple[tuple[float, ...], ...]:
        return self.losses, self.epochs, self.samples


def by_script(out: Path) -> Truth:
    """losses.json, written by the scripts in ``programs``."""
    told = json.loads((out / "losses.json").read_text())
    return Truth(tuple(told["losses"]), loop_s=told["loop_s"], away_s=told.get("away_s", 0.0))


def by_trainer(out: Path) -> Truth:
    """trainer_state.json of transformers' Trainer and of tools built on it."""
    (path,) = sorted(out.glob("**/trainer_state.json"))[-1:]
    history = json.loads(path.read_text())["log_history"]
    return Truth(
        tuple(row["loss"] for row in history if "loss" in row),
        loop_s=next((row["train_runtime"] for row in history if "train_runtime" in row), None),
        away_s=sum(row.get("eval_runtime", 0.0) for row in history),
    )


def by_lightning(out: Path) -> Truth:
    """metrics.csv of Lightning's CSVLogger: one loss per step; and the script's own timing."""
    times = json.loads((out / "times.json").read_text())
    return Truth(tuple(_column(out, "train_loss")), loop_s=times["loop_s"], away_s=times["away_s"])


def by_chemprop(out: Path) -> Truth:
    """TensorBoard's files, to which chemprop has Lightning log the mean of an epoch."""
    (events,) = out.glob("**/events.out.tfevents.*")
    python = os.environ["AUTOTUNE_COMPAT_PYTHON"]
    told = subprocess.run(
        [
            python,
            str(Path(__file__).with_name("scalars.py")),
            str(events.parent),
            "train_loss_epoch",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return Truth(epochs=tuple(json.loads(told.stdout)), weighted=True, rel=1e-5)


def by_litgpt(out: Path) -> Truth:
    """metrics.csv, written by litgpt itself: the mean over the micro-batches of each step."""
    return Truth(tuple(_column(out, "loss")))


def _column(out: Path, name: str) -> list[float]:
    (path,) = out.glob("**/metrics.csv")
    with open(path, newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def by_open_clip(out: Path) -> Truth:
    """Lines of its log, with five digits."""
    (path,) = out.glob("**/out.log")
    return Truth(
        tuple(
            float(x) for x in re.findall(r"Train Epoch.* Loss: ([\d.e+-]+) \(", path.read_text())
        ),
        rel=1e-4,
    )


def by_pykeen(out: Path) -> Truth:
    """results.json: the mean over the batches of each epoch."""
    return Truth(epochs=tuple(json.loads((out / "results.json").read_text())["losses"]))


def by_skorch(out: Path) -> Truth:
    """Its history, batch by batch."""
    history = json.loads((out / "history.json").read_text())
    losses = [
        batch["train_loss"]
        for epoch in history
        for batch in epoch["batches"]
        if "train_loss" in batch
    ]
    return Truth(tuple(losses), loop_s=sum(epoch["dur"] for epoch in history))


def by_mmengine(out: Path) -> Truth:
    """scalars.json of mmengine's LoggerHook: the loss of each batch, two per step, and the time of
    each validation; and the script's own timing.
    """
    (path,) = out.glob("*/vis_data/scalars.json")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    return Truth(
        tuple(math.fsum(pair) / 2 for pair in zip(losses[::2], losses[1::2], strict=True)),
        loop_s=json.loads((out / "times.json").read_text())["loop_s"],
        away_s=math.fsum(row["time"] for row in rows if "accuracy" in row),
    )


def by_steps(out: Path) -> Truth:
    """steps.jsonl, written by a script step by step, even if it is ended from outside. times.json:
    written at its own end.
    """
    rows = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    times = out / "times.json"
    return Truth(
        tuple(row["loss"] for row in rows),
        samples=tuple(row["samples"] for row in rows),
        loop_s=json.loads(times.read_text())["loop_s"] if times.exists() else None,
    )


def by_mace(out: Path) -> Truth:
    """Its results file, one JSON object per line, and the times in its log."""
    (path,) = out.glob("results/*_train.txt")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    (log,) = out.glob("logs/run_run-1.log")
    began, ended = (
        datetime.fromisoformat(line[:23])
        for line in log.read_text().splitlines()
        if line.endswith(("INFO: ===========TRAINING===========", "INFO: Training complete"))
    )
    return Truth(
        tuple(row["loss"] for row in rows if row["mode"] == "opt"),
        rel=FLOAT64,
        loop_s=(ended - began).total_seconds(),
        away_s=sum(row["time"] for row in rows if row["mode"] == "eval"),
    )


def by_recbole(out: Path, steps: int) -> Truth:
    """Its log: the sum of the losses of an epoch's ``steps`` steps, and the time of training and
    evaluation.
    """
    (path,) = out.glob("log/*/*.log")
    log = path.read_text()
    trained = re.findall(r"training \[time: ([\d.]+)s, train loss: ([\d.]+)\]", log)
    away_s = sum(float(x) for x in re.findall(r"evaluating \[time: ([\d.]+)s", log))
    return Truth(
        epochs=tuple(float(loss) / steps for _, loss in trained),
        loop_s=sum(float(seconds) for seconds, _ in trained) + away_s,
        away_s=away_s,
    )


def epoch_means(
    losses: Sequence[float], samples: Sequence[float], steps: int, weighted: bool
) -> list[float]:
    """Means of ``losses`` over epochs of ``steps`` steps each, over samples if ``weighted``."""
    means = []
    for first in range(0, len(losses), steps):
        part = range(first, min(first + steps, len(losses)))
        weights = [samples[n] if weighted else 1.0 for n in part]
        means.append(
            math.fsum(losses[n] * w for n, w in zip(part, weights, strict=True))
            / math.fsum(weights)
        )
    return means
