"""Autocast over the forward region, and loss scaling for float16.

    batch │ entry module called ─ enter │ forward, loss │ backward() ─ leave │ optimizer
                                          autocast on

The region is entered at the first entry module of an iteration and left at backward, because the loss belongs into it
(as in the usual ``with autocast(): loss = criterion(model(x), y)``). Inside an autocast region of the job's own, ours
lasts for the module call alone: regions must nest.

An iteration may end in the middle of the job's own one (a GAN steps its critic, then feeds what its generator made
before to the critic again). Autocast is therefore switched off where the next batch is fetched; without a loader, a
module that still gets a tensor of the old format is called under the old autocast.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

INITIAL_SCALE = 2.0**16  # scale, growth and backoff as in torch.amp.GradScaler
GROWTH_INTERVAL = 2000
LARGEST_SCALE = 2.0**96  # far from float32's end: GradScaler stops growing when the scale would be infinite


class AutocastRegion:
    """The one autocast region the agent may be inside."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.dtype: Any = None
        self.entering = False  # an autocast that is entered just now is ours
        self.ending = False  # to be switched off when the next batch is fetched
        self._fading: Any = None  # the dtype switched off last: tensors of it may still be about
        self.inside: Any = None  # the region we are in
        self.entered = 0  # regions so far
        self._thread = 0

    def set(self, dtype: Any, at_batch: bool = False) -> None:
        """Use ``dtype`` (a torch.dtype, None: no autocast) from the next iteration on; ``at_batch``: switch off where
        the next batch is fetched."""
        self.leave()
        self.ending = dtype is None and self.dtype is not None and at_batch
        if not self.ending:
            self._fading, self.dtype = self.dtype, dtype

    def end(self) -> None:
        """The next batch is fetched."""
        self.leave()
        self.ending = False
        self._fading = self.dtype = None

    def fade(self, device: str, inputs: Iterable[Any]) -> Any | None:
        """A context for a call without autocast whose inputs were made with it, else None."""
        old = self._fading
        if old is None or self.dtype is not None:
            return None
        if any(getattr(value, "dtype", None) is old for value in inputs):
            return self._confined(self._torch.autocast(device, dtype=old))
        return None

    def carry_on(self, device: str, inputs: Iterable[Any]) -> Any | None:
        """A context for a call in evaluation or in backward whose inputs the region made, else None. Weights are cast for it alone: what is
        cast without gradients must not serve a call with them."""
        torch = self._torch
        if self.dtype is None or not any(getattr(value, "dtype", None) is self.dtype for value in inputs):
            return None
        if self.inside is None and torch.is_autocast_enabled(device):
            return None  # a region of the job's own, or of a checkpoint's
        return self._confined(torch.autocast(device, dtype=self.dtype, cache_enabled=False))

    def enter(self, device: str, keep_weights: bool = True) -> Any | None:
        """Enter the region, unless inside already. ``keep_weights``: those cast once serve the rest of it; without gradients they must not.

        Returns a context manager where the region must be confined to the module call, else None.
        """
        torch = self._torch
        if self.dtype is None or self.inside is not None or torch.is_autocast_enabled(device):
            return None
        context = torch.autocast(device, dtype=self.dtype, cache_enabled=keep_weights)
        self.entered += 1
        if self._nesting() > 0:  # inside the job's own region, one it has switched off
            return self._confined(context)
        self.entering = True
        try:
            context.__enter__()
        finally:
            self.entering = False
        self.inside, self._thread = context, threading.get_ident()
        return None

    def leave(self) -> None:
        """Leave the region if we are inside. Put off while a region of the job's own is open inside ours."""
        if self.inside is None or self._thread != threading.get_ident() or self._nesting() != 1:
            return
        context, self.inside = self.inside, None
        context.__exit__(None, None, None)

    @contextmanager
    def _confined(self, context: Any) -> Iterator[None]:
        self.entering = True
        try:
            context.__enter__()
        finally:
            self.entering = False
        try:
            yield
        finally:
            context.__exit__(None, None, None)
            # Only the outermost exit drops the casted weights, and that one is the job's: it may be after the next step.
            self._torch.clear_autocast_cache()

    def _nesting(self) -> int:
        depth = self._torch.autocast_increment_nesting() - 1
        self._torch.autocast_decrement_nesting()
        return int(depth)


class LossScaler:
    """What torch.amp.GradScaler does, from outside of the job.

    The loss is scaled going into backward, and gradients are unscaled as soon as it returns, so that everything the
    job does with them (clipping, logging) sees true gradients. An overflow leaves out the optimizer's step: its
    gradients are taken away for the duration of ``step``. Usual scales are powers of two, so scaling itself is exact.
    """

    def __init__(self, torch: Any, scale: float | None = None) -> None:
        """``scale``: to start with; a power of two, so that scaling changes no digit. None: 2**16."""
        self._torch = torch
        self.scale = INITIAL_SCALE if scale is None else float(scale)
        self._good_steps = 0
        self._overflow: dict[tuple[int, Any], Any] = {}  # (id of optimizer, device) -> found_inf
        self._overflowed = False  # some optimizer in this iteration
        self._withheld: dict[int, list[tuple[Any, Any]]] = {}

    def before_backward(self, optimizers: Iterable[Any]) -> None:
        """Bring gradients already there (accumulation) to the scale of those to come."""
        for _, grads in self._by_kind(optimizers):
            self._torch._foreach_mul_(grads, self.scale)

    def scaled(self, tensors: Any, gradients: Any) -> tuple[Any, Any]:
        """The arguments of backward with the scale in them."""
        if isinstance(tensors, (list, tuple)):
            given = gradients if isinstance(gradients, (list, tuple)) else [gradients] * len(tensors)
            pairs = [self.scaled(t, g) for t, g in zip(tensors, given, strict=True)]
            return [p[0] for p in pairs], [p[1] for p in pairs]
        if gradients is not None:
            return tensors, gradients * self.scale
        return tensors * self.scale, None

    def after_backward(self, optimizers: Iterable[Any]) -> None:
        """Unscale in place, and note which optimizer's gradients are not finite."""
        torch = self._torch
        for (owner, device, checked), grads in self._by_kind(optimizers):
            found = self._overflow.get((owner, device))
            if found is None:
                found = self._overflow[owner, device] = torch.zeros(1, device=device)
            if checked:
                inverse = torch.full((), 1.0 / self.scale, device=device)
                torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
            else:
                torch._foreach_mul_(grads, 1.0 / self.scale)
                for grad in grads:
                    found += (~torch.isfinite(grad).all()).to(found.dtype)

    def before_step(self, optimizer: Any) -> bool:
        """Withhold the gradients if they overflowed. Returns whether it did.

        One synchronisation, as GradScaler has; but for a fused optimizer, whose kernel GradScaler lets look for itself.
        """
        keys = [k for k in self._overflow if k[0] == id(optimizer)]
        found = [float(self._overflow.pop(k)) for k in keys]
        overflowed = any(f > 0 for f in found)
        if overflowed and id(optimizer) not in self._withheld:
            self._overflowed = True
            parameters = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            self._withheld[id(optimizer)] = [(p, p.grad) for p in parameters]
            for p in parameters:
                p.grad = None
        return overflowed

    def after_step(self, optimizer: Any) -> None:
        """Give withheld gradients back, for whatever the job does next with them."""
        for parameter, grad in self._withheld.pop(id(optimizer), ()):
            parameter.grad = grad

    def update(self) -> None:
        """The iteration has ended: halve the scale after an overflow, double it after 2000 clean ones."""
        if self._overflowed:
            self.scale, self._good_steps, self._overflowed = self.scale * 0.5, 0, False
            return
        self._good_steps += 1
        if self._good_steps == GROWTH_INTERVAL:
            self.scale, self._good_steps = min(self.scale * 2.0, LARGEST_SCALE), 0

    def _by_kind(self, optimizers: Iterable[Any]) -> list[tuple[tuple[int, Any, bool], list[Any]]]:
        """Gradients by (optimizer, device, can the fused check take them); a parameter in two optimizers counts once."""
        torch = self._torch
        kinds: dict[tuple[int, Any, Any], list[Any]] = {}
        seen: set[int] = set()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    grad = parameter.grad
                    if grad is None or id(parameter) in seen:
                        continue
                    seen.add(id(parameter))
                    if grad.is_sparse:
                        grad = grad._values()
                    kinds.setdefault((id(optimizer), grad.device, grad.dtype), []).append(grad)
        fused = (torch.float32, torch.float16)
        return [((owner, device, dtype in fused), grads) for (owner, device, dtype), grads in kinds.items()]
