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

from autotune_trials.agent.controls.optimizers import step_is_torchs

INITIAL_SCALE = 2.0**16  # scale, growth and backoff as in torch.amp.GradScaler
GROWTH_INTERVAL = 2000


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
    job does with them (clipping, logging) sees true gradients. An overflow leaves out the optimizer's step: a fused
    kernel looks for itself, of another optimizer the gradients are taken away for the duration of ``step``, which
    takes one synchronisation. Usual scales are powers of two, so scaling itself is exact.
    """

    def __init__(self, torch: Any, scale: float | None = None) -> None:
        """``scale``: to start with; a power of two, so that scaling changes no digit. None: 2**16."""
        self._torch = torch
        self._first_scale = INITIAL_SCALE if scale is None else float(scale)
        self._scale: Any = None  # on the device of the first loss, where it is updated, too
        self._good_steps: Any = None
        self._overflow: dict[tuple[int, Any], Any] = {}  # (id of optimizer, device) -> found_inf: 0 or 1
        self._stepped: list[Any] = []  # found_inf of this iteration's steps
        self._withheld: dict[int, list[tuple[Any, Any]]] = {}

    @property
    def scale(self) -> float:
        """As it is now. Waits for the device."""
        return self._first_scale if self._scale is None else float(self._scale)

    def before_backward(self, optimizers: Iterable[Any]) -> None:
        """Bring gradients already there (accumulation) to the scale of those to come."""
        for (_, device, _), grads in self._by_kind(optimizers):
            self._torch._foreach_mul_(grads, self._scale_on(device))

    def scaled(self, tensors: Any, gradients: Any) -> tuple[Any, Any]:
        """The arguments of backward with the scale in them."""
        if isinstance(tensors, (list, tuple)):
            given = gradients if isinstance(gradients, (list, tuple)) else [gradients] * len(tensors)
            pairs = [self.scaled(t, g) for t, g in zip(tensors, given, strict=True)]
            return [p[0] for p in pairs], [p[1] for p in pairs]
        scale = self._scale_on(tensors.device)
        if gradients is not None:
            return tensors, gradients * scale
        return tensors * scale, None

    def after_backward(self, optimizers: Iterable[Any]) -> None:
        """Unscale in place, and note which optimizer's gradients are not finite."""
        torch = self._torch
        for (owner, device, checked), grads in self._by_kind(optimizers):
            found = self._overflow.get((owner, device))
            if found is None:
                found = self._overflow[owner, device] = torch.zeros((), device=device)
            inverse = self._scale_on(device).double().reciprocal().float()
            if checked:
                torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
            else:
                torch._foreach_mul_(grads, inverse)
                for grad in grads:
                    found.masked_fill_(~torch.isfinite(grad).all(), 1.0)

    def before_step(self, optimizer: Any) -> None:
        """Have the step left out if its gradients overflowed. Waits for the device, but for a fused optimizer."""
        keys = [k for k in self._overflow if k[0] == id(optimizer)]
        if not keys:
            return
        first, *others = [self._overflow.pop(k) for k in keys]
        found = first
        for other in others:
            found = self._torch.maximum(found, other.to(found.device, non_blocking=True))
        self._stepped.append(found)
        if _skips_by_itself(optimizer):
            optimizer.grad_scale, optimizer.found_inf = None, found  # as GradScaler tells it
        elif found and id(optimizer) not in self._withheld:
            parameters = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            self._withheld[id(optimizer)] = [(p, p.grad) for p in parameters]
            for p in parameters:
                p.grad = None

    def after_step(self, optimizer: Any) -> None:
        """Give withheld gradients back, for whatever the job does next with them."""
        for name in ("grad_scale", "found_inf"):
            vars(optimizer).pop(name, None)
        for parameter, grad in self._withheld.pop(id(optimizer), ()):
            parameter.grad = grad

    def update(self) -> Any:
        """The iteration has ended: halve the scale after an overflow, double it after 2000 clean ones.

        Returns:
            Whether a step was left out: False, or a tensor that is true if so, which waits for the device once it is asked.
        """
        if not self._stepped:
            return False
        torch, scale = self._torch, self._scale
        found, self._stepped = torch.stack([f.to(scale.device, non_blocking=True) for f in self._stepped]).amax(), []
        torch._amp_update_scale_(scale, self._good_steps, found, 2.0, 0.5, GROWTH_INTERVAL)
        return found

    def _scale_on(self, device: Any) -> Any:
        torch = self._torch
        if self._scale is None:
            self._scale = torch.full((), self._first_scale, device=device)
            self._good_steps = torch.zeros((), dtype=torch.int32, device=device)
        return self._scale.to(device, non_blocking=True)

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


def _skips_by_itself(optimizer: Any) -> bool:
    """Whether its kernel takes ``found_inf``.

    Not of SGD's first step with momentum: that hands on momenta nobody has written if it is left out (torch 2.13).
    """
    groups = optimizer.param_groups
    if not all(g.get("fused") for g in groups) or not step_is_torchs(type(optimizer)):
        return False
    return all(optimizer.state.get(p) for g in groups if g.get("momentum") for p in g["params"] if p.grad is not None)
