"""Hooks of the process itself: uncaught exceptions and forked children."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from autotune_trials.agent.patches.patch_set import Patch, PatchSet


def install(
    patches: PatchSet, on_uncaught: Callable[[BaseException], None], after_fork: Callable[[], None]
) -> None:
    """``on_uncaught`` is called with the error the process dies of, ``after_fork`` in forked
    children."""

    def make(patch: Patch, original: Any) -> Any:
        def excepthook(kind: Any, error: Any, trace: Any) -> None:
            if patch.active:
                on_uncaught(error)
            original(kind, error, trace)

        return excepthook

    patches.add("sys.excepthook", sys, "excepthook", make)
    patches.at_fork(after_fork)
