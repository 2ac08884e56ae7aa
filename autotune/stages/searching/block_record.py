"""One block of a live session in the journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.results import Anatomy
from autotune_spaces.base import Value

JOURNAL_KIND = "plot"  # of a series' blocks; the original name of a series


@dataclass(frozen=True)
class BlockRecord:
    """Everything that the models and the trials are built from."""

    config: dict[str, Value]
    log_cost: float | None  # None: failed, or disturbed by other load
    weight: float
    # on a clock of measured time: blocks of the same seconds share the machine's level; those of
    # another node are ages away
    at_s: float
    node: str
    purpose: str
    first: bool  # of its series: its settling includes switching costly knobs
    settle_s: float
    wall_s: float
    failure: tuple[str, str] | None = None  # kind, reason
    no_effect: dict[str, str] = field(default_factory=dict)
    parts: Anatomy | None = None  # of a configuration's first block
    second_log_cost: float | None = None
