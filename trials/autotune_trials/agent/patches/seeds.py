"""Seeded runs: every seed the job sets is shifted by the session's offset; a job that sets none is
seeded once.
"""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

from autotune_trials.agent.patches.patch_set import Patch, PatchSet

UNSEEDED = 1000  # plus the offset: the seed of a job that sets none


def install(patches: PatchSet, torch: Any, offset: int) -> None:
    """Seed once, now, and shift later seeds by ``offset`` (0 leaves them as they are)."""
    torch.manual_seed(UNSEEDED + offset)
    random.seed(UNSEEDED + offset)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(UNSEEDED + offset)
    inside = threading.local()

    def make(patch: Patch, original: Any) -> Any:
        def seed(*args: Any, **kwargs: Any) -> Any:
            # torch.manual_seed seeds CUDA through functions that are patched too: shift a seed only
            # once
            if not patch.active or getattr(inside, "seed", False):
                return original(*args, **kwargs)
            inside.seed = True
            try:
                args = tuple(_moved(a, offset) for a in args[:1]) + args[1:]
                kwargs = {
                    k: _moved(v, offset) if k in ("seed", "a") else v for k, v in kwargs.items()
                }
                return original(*args, **kwargs)
            finally:
                inside.seed = False

        return seed

    patches.add("torch.manual_seed", torch, "manual_seed", make)
    patches.add("torch.random.manual_seed", torch.random, "manual_seed", make)
    patches.add("torch.cuda.manual_seed", torch.cuda, "manual_seed", make)
    patches.add("torch.cuda.manual_seed_all", torch.cuda, "manual_seed_all", make)
    patches.add("random.seed", random, "seed", make)
    if numpy is not None:
        patches.add("numpy.random.seed", numpy.random, "seed", make)


def _moved(value: Any, offset: int) -> Any:
    """The shifted seed. Seeds that people write are small; large ones (DataLoader workers) come
    from a generator whose seed is shifted already.
    """
    human = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value + offset if human else value
