"""What an export format is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.export.tuned import TunedConfig


@dataclass(frozen=True)
class Format:
    """``write`` gives the whole file; ``executable``: the file is a program; ``remark``: what to
    tell who has it written to a file unseen.
    """

    name: str
    summary: str
    write: Callable[[TunedConfig], str]
    executable: bool = False
    remark: Callable[[str], str] = lambda text: ""
