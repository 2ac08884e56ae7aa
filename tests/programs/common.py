"""Data and a model small enough for tests, real enough to learn; and a log of the steps, as training scripts keep one."""

import json
import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset


def dataset(samples=512, features=16):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, features, generator=generator)
    weights = torch.randn(features, 4, generator=generator)
    return TensorDataset(inputs, (inputs @ weights).argmax(1))


def model(features=16, width=64):
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 4))


loss_function = nn.CrossEntropyLoss()
_log = open(os.environ["STEP_LOG"], "a") if "STEP_LOG" in os.environ else None  # noqa: SIM115
_steps = 0


def note(loss, samples, outside_s=0.0):
    """One line a step: its loss, its samples, when it was done, and how long since the last step something else was done.

    MAX_STEPS ends the program.
    """
    global _steps
    _steps += 1
    if _log is not None:
        _log.write(json.dumps({"loss": float(loss), "samples": samples, "at": time.perf_counter(), "outside_s": outside_s}) + "\n")
        _log.flush()
    if _steps == int(os.environ.get("MAX_STEPS", 0)):
        raise SystemExit(0)
