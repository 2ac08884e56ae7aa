"""Freezes learning-rate schedulers in live sessions.

Blocks are compared with each other, so the learning rate must not drift between them, and a
stretched epoch must not drive a scheduler past its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune_trials.agent.patches.patch_set import Patch, PatchSet


def freeze(patches: PatchSet, torch: Any) -> None:
    """Make ``step`` of every scheduler class do nothing. A scheduler's first step, in its
    constructor, still runs.
    """

    def make(patch: Patch, original: Any) -> Any:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                not patch.active
                or not hasattr(self, "_last_lr")
                or getattr(self, "_is_initial", False)
            ):
                return original(self, *args, **kwargs)
            return None

        return step

    for cls in _family(torch.optim.lr_scheduler.LRScheduler):
        if "step" in vars(cls):
            patches.add(f"{cls.__module__}.{cls.__qualname__}.step", cls, "step", make)
    # ReduceLROnPlateau has been a subclass of LRScheduler since torch 2.2; nothing is missed.


def _family(cls: type) -> Iterator[type]:
    yield cls
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield from _family(child)
