"""One finished run in the history: hashes, numbers, and names of autotune's own knobs.

Names and values of knobs that the user defined are the job's business. They are stored as hashes
and found again by hashing what the search space holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune_spaces import knobs
from autotune_spaces.base import Config, Value

RECORD_VERSION = 1


def digest(data: object) -> str:
    """16 hexadecimal digits that are equal for equal JSON data."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Keys:
    """Hashes of what makes two runs the same."""

    job: str  # code, command, environment, model, optimizer, precision, loader, objective
    machine: str
    software: str


@dataclass(frozen=True)
class Measured:
    """What was measured of one configuration."""

    config: Mapping[str, Value]  # hidden, see :func:`hidden`
    # "live", "process" (fresh processes in the search), "confirmed"; or the state of a trial
    # without a figure
    source: str
    # log(time per sample, configuration / baseline): negative is faster
    log_ratio: float | None = None
    error: float | None = None  # its standard error
    pairs: int = 0


@dataclass(frozen=True)
class PastRun:
    """A finished run."""

    id: str
    at: float  # when it ended, seconds since 1970
    keys: Keys
    features: Mapping[str, float]  # see keys.SCALES
    iteration_s: float  # of the unchanged job
    noise: float  # standard deviation of the log time per sample between its blocks
    verdict: str  # "tuned", "keep-baseline"
    loss: str  # "unchanged", "changed", …
    answer: Mapping[str, Value]  # hidden; {}: keep the baseline
    log_gain: float = 0.0  # of the answer, as confirmed
    # knob -> its own speed-up, low, high
    gains: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    measured: tuple[Measured, ...] = ()
    withdrawn: tuple[str, ...] = ()  # knobs that did not apply
    space: tuple[str, ...] = ()  # hashes of what could be tried, see keys.space_of
    minutes: float = 0.0  # of the budget
    trials: int | None = None  # of the budget; None: no limit
    planned_steps: int = 0  # of the training, in which start-up must pay off; 0: unknown
    rules: str = ""  # hash of what else decides what an answer may be, see use.rules_of
    at_least: tuple[str, ...] = ()  # knobs whose gain is from a running job, which shows less
    version: int = RECORD_VERSION


def hidden(config: Config) -> dict[str, Value]:
    """``config`` in the form in which it is stored."""
    return dict(hidden_item(name, value) for name, value in config.items())


def hidden_item(name: str, value: Value) -> tuple[str, Value]:
    if name in knobs.names():
        return name, value
    return f"own:{digest(name)}", digest([name, value])


def revealed(config: Config, domains: Mapping[str, Sequence[Value]]) -> dict[str, Value] | None:
    """The configuration stored as ``config``; None if the search space no longer contains it."""
    known = {
        _typed(hidden_item(name, v)): (name, v) for name, values in domains.items() for v in values
    }
    found = [known.get(_typed(item)) for item in config.items()]
    return None if None in found else dict(item for item in found if item is not None)


def _typed(item: tuple[str, Value]) -> tuple[str, type, Value]:
    """Include the type, so that True is not 1."""
    return item[0], type(item[1]), item[1]
