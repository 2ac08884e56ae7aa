"""Host-to-device copies: how long they take, ``non_blocking``, and copies made ahead. CUDA only."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.base import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent

NAMES = ("Tensor.to", "Tensor.cuda")


def install(patches: PatchSet, torch: Any, agent: Agent) -> None:
    """Watch ``Tensor.to`` and ``Tensor.cuda`` called on CPU tensors."""

    def make(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not patch.active or self.is_cuda or not _target_is_cuda(patch.attribute, args, kwargs):
                return original(self, *args, **kwargs)
            if agent.sites.open:
                agent.sites.on_transfer(sys._getframe(1))
            wanted = agent.live.non_blocking
            if wanted is not None and self.is_pinned():
                args, kwargs = _with_flag(torch, args, kwargs, wanted)
            before = agent.modules.begin_transfer()
            try:
                moved, prefetch = None, agent.live.prefetch
                if prefetch is not None:
                    moved = _made_ahead(torch, prefetch, patch.attribute, self, args, kwargs)
                return original(self, *args, **kwargs) if moved is None else moved
            finally:
                agent.modules.end_transfer(before)

        return move

    patches.add("Tensor.to", torch.Tensor, "to", make)
    patches.add("Tensor.cuda", torch.Tensor, "cuda", make)


def _made_ahead(
    torch: Any, prefetch: Any, method: str, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any | None:
    """What the call would return, if it is a plain copy and that was made ahead; else None."""
    positional = ("device",) if method == "to" else ("device", "non_blocking")
    call = {**dict(zip(positional, args, strict=False)), **kwargs}
    if len(args) > len(positional) or not call.keys() <= {"device", "non_blocking"}:
        return None
    target = call.get("device", "cuda")
    if isinstance(target, torch.Tensor):  # of another type, perhaps
        return None
    number = isinstance(target, int)
    device = torch.device("cuda", target) if number else torch.device(target or "cuda")
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return prefetch.take(tensor, device, bool(call.get("non_blocking")))


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
