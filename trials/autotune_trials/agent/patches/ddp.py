"""DistributedDataParallel: the arguments the job builds it with, which its knobs override further in
(autotune_spaces/ddp.py); and ranks that train on different numbers of batches.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.base import Patch, PatchSet
from autotune_trials.agent.patches.settings import site
from autotune_trials.protocol.messages import SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl


def install(patches: PatchSet, torch: Any, live: LiveJobControl) -> None:
    """Note every DistributedDataParallel that is built, and where ``Join`` waits for other ranks."""

    def make(patch: Patch, original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)  # Lightning and accelerate look at the signature
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not patch.active:
                return
            try:
                asked = signature.bind(self, *args, **kwargs).arguments
                live.built.add(
                    self, {k: v for k, v in asked.items() if k not in ("self", "module")}, site()
                )
            except Exception:
                live.loop.fail("DistributedDataParallel.__init__")

        return __init__

    def make_exit(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def __exit__(self: Any, *args: Any) -> Any:
            if patch.active:
                for hook in getattr(self, "_join_hooks", ()):
                    hook.main_hook = _telling(hook.main_hook, patch, live)
            return original(self, *args)

        return __exit__

    if torch.distributed.is_available():
        if live.config.mode != SessionMode.LAUNCH:
            join = sys.modules["torch.distributed.algorithms.join"]  # imported by torch itself
            patches.add("Join.__exit__", join.Join, "__exit__", make_exit)
        patches.add(
            "DistributedDataParallel.__init__",
            torch.nn.parallel.DistributedDataParallel,
            "__init__",
            make,
        )


def _telling(main_hook: Callable[[], Any], patch: Patch, live: LiveJobControl) -> Any:
    """``main_hook``, which takes part in the other ranks' steps once this rank has no more batches."""

    def take_part() -> Any:
        if patch.active:
            live.loop.on_uneven_ranks()
        return main_hook()

    return take_part
