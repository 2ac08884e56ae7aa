"""Defines an export format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.export.tuned import TunedConfig


@dataclass(frozen=True)
class Format:
    """``write`` returns the whole file; ``executable``: the file is a program.

    ``remark``: a note, made from the text, for a user who has it written to a file.
    """

    name: str
    summary: str
    write: Callable[[TunedConfig], str]
    executable: bool = False
    remark: Callable[[str], str] = lambda text: ""
