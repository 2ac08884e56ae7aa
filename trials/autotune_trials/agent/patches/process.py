"""Of the process itself: an exception that nobody catches, and children it forks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from autotune_trials.agent.patches.base import Patch, PatchSet


def install(
    patches: PatchSet, on_uncaught: Callable[[BaseException], None], after_fork: Callable[[], None]
) -> None:
    """``on_uncaught`` is told of the error the process dies of; ``after_fork`` is called in
    children."""

    def make(patch: Patch, original: Any) -> Any:
        def excepthook(kind: Any, error: Any, trace: Any) -> None:
            if patch.active:
                on_uncaught(error)
            original(kind, error, trace)

        return excepthook

    patches.add("sys.excepthook", sys, "excepthook", make)
    patches.at_fork(after_fork)
