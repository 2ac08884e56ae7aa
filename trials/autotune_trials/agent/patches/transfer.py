"""Host-to-device copies: how long they take, and ``non_blocking`` on those the job makes from pinned memory. CUDA only."""

from __future__ import annotations

import functools
import sys
from typing import Any

from autotune_trials.agent.patches.base import Patch, PatchSet

NAMES = ("Tensor.to", "Tensor.cuda")


def install(patches: PatchSet, torch: Any, agent: Any) -> None:
    """Watch ``Tensor.to`` and ``Tensor.cuda`` called on CPU tensors."""

    def make(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not patch.active or self.is_cuda:
                return original(self, *args, **kwargs)
            if _target_is_cuda(patch.attribute, args, kwargs):
                if agent.sites.open:
                    agent.sites.on_transfer(sys._getframe(1))
                wanted = agent.live.non_blocking
                if wanted is not None and self.is_pinned():
                    args, kwargs = _with_flag(torch, args, kwargs, wanted)
                before = agent.modules.begin_transfer()
                try:
                    moved = original(self, *args, **kwargs)
                finally:
                    agent.modules.end_transfer(before)
            else:
                moved = original(self, *args, **kwargs)
            if agent.live.micro is not None:
                agent.live.micro.merging.provenance.note_copy(self, moved)
            return moved

        return move

    patches.add("Tensor.to", torch.Tensor, "to", make)
    patches.add("Tensor.cuda", torch.Tensor, "cuda", make)


def _target_is_cuda(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if method == "cuda":
        return True
    target = kwargs.get("device", args[0] if args else kwargs.get("other"))
    target = getattr(target, "device", target)  # .to(other_tensor)
    return isinstance(target, int) or str(target).startswith("cuda")


def _with_flag(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with ``non_blocking=on``; where the job passed the flag by position, it is replaced there.

    Positions: ``to(device, dtype, non_blocking)``, ``to(device, non_blocking)`` is not valid; ``cuda(device, non_blocking)``.
    """
    for index, value in enumerate(args):
        if isinstance(value, bool) and index > 0:
            return (*args[:index], on, *args[index + 1 :]), kwargs
    return args, {**kwargs, "non_blocking": on}
