"""DistributedDataParallel: the arguments the job builds it with. Its knobs override them further in
(autotune_spaces/ddp.py).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.facts.construction import construction_spot, site_of
from autotune_trials.agent.facts.ranks import world_size
from autotune_trials.agent.patches.patch_set import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

UNEVEN = (
    "the ranks join in a context for uneven inputs, in which they may take different numbers of"
    " steps; autotune stops all ranks at the same one. Give every rank as many batches as the"
    " others (drop_last), and leave the context out for tuning"
)


def install(patches: PatchSet, torch: Any, live: LiveJobControl) -> None:
    """Note every DistributedDataParallel that is built."""

    def make(patch: Patch, original: Any) -> Any:
        signature = inspect.signature(original)

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not patch.active:
                return
            try:
                asked = signature.bind(self, *args, **kwargs).arguments
                where = site_of(construction_spot(self, sys._getframe(1)))
                live.built.add(
                    self, {k: v for k, v in asked.items() if k not in ("self", "module")}, where
                )
            except Exception:
                live.loop.fail("DistributedDataParallel.__init__")

        return __init__

    if torch.distributed.is_available():
        patches.add(
            "DistributedDataParallel.__init__",
            torch.nn.parallel.DistributedDataParallel,
            "__init__",
            make,
        )


def install_join(
    patches: PatchSet, torch: Any, step_aside: Callable[[str, str, bool], None]
) -> None:
    """Step aside where the job joins ranks that take different numbers of steps: each would stop at
    a step of its own, and wait for ranks that wait for it in a collective.
    """

    def make(patch: Patch, original: Any) -> Any:
        def __enter__(self: Any) -> Any:
            if patch.active and self._enable and world_size(torch) > 1:
                step_aside("model.join()", UNEVEN, True)
            return original(self)

        return __enter__

    if torch.distributed.is_available():
        join = sys.modules["torch.distributed.algorithms.join"].Join  # imported with the above
        patches.add("Join.__enter__", join, "__enter__", make)
