"""What a judgement says, as data; `judgement.json` is this record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.explain.records import Finding
from autotune.explain.records import Side as Profiled
from autotune.results import Anatomy, Interval, LossVerdict

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class SideRecord:
    """One side: ``what`` in words, ``command`` with secrets masked."""

    name: str  # "A" or "B"
    what: str
    command: str
    workdir: str
    anatomy: Anatomy  # where one iteration's time goes; seconds
    peak_memory_gib: float = 0.0
    profiled: Profiled | None = None  # operators, timeline and trace; None: unavailable
    findings: tuple[Finding, ...] = ()
    torch_version: str = ""
    python_version: str = ""


@dataclass(frozen=True)
class Judgement:
    """B against A.

    ``speedup``: cost per sample of A / of B with its 95% interval; above 1, B is faster.
    """

    speed: str  # "faster", "slower", "same" or "undecided"
    speed_reason: str
    speedup: Interval
    pairs: int
    margin: float  # within which "same" holds, as a share
    loss: str  # "unchanged", "changed" or "undecided"
    loss_verdict: LossVerdict
    sides: tuple[SideRecord, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    interleaved: bool = False  # both processes of a pair were alive at once and trained in slices
    disturbed: int = 0  # runs that were measured again because something else ran
    schema_version: int = SCHEMA_VERSION

    @property
    def decided(self) -> bool:
        return "undecided" not in (self.speed, self.loss)
