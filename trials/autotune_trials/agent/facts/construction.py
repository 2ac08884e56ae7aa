"""Where the job builds an object whose constructor is patched."""

from __future__ import annotations

import os
import sys
import traceback
from types import CodeType, FrameType
from typing import Any

from autotune_trials.agent.facts.source_calls import OURS, local_variables

BuiltAt = tuple[CodeType, int]  # the function and the line


def construction_spot(built: Any, frame: FrameType) -> BuiltAt | None:
    """Where ``built`` was built: the line of :func:`construction_frame`; None if unknown."""
    caller = construction_frame(built, frame)
    return None if caller is None else (caller.f_code, caller.f_lineno or 0)


def construction_frame(built: Any, frame: FrameType) -> FrameType | None:
    """The frame that built ``built``, ``frame`` or one of its callers: outside torch, autotune, the
    constructors of its subclasses and their wrappers (Lightning).
    """
    torch_directory = (
        os.path.dirname(getattr(sys.modules.get("torch"), "__file__", "") or "") + os.sep
    )
    for caller, _ in traceback.walk_stack(frame):
        code = caller.f_code
        if not code.co_filename.startswith((torch_directory, OURS)):
            first = code.co_varnames[0] if code.co_argcount else ""
            if local_variables(caller).get(first) is not built:
                return caller
    return None


def site_of(built_at: BuiltAt | None) -> str:
    """``file.py:12``"""
    return (
        f"{os.path.basename(built_at[0].co_filename)}:{built_at[1]}"
        if built_at is not None
        else "?:0"
    )
