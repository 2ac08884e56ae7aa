"""DistributedDataParallel: the arguments the job builds it with. Its knobs override them further in
(autotune_spaces/ddp.py).
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.dataloader.facts import construction_spot, site_of
from autotune_trials.agent.patches.base import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl


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
