"""Loss, gradient norm, update norm: what the loss comparison needs of each step. Nothing is synchronised per step on CUDA."""

from __future__ import annotations

import math
from typing import Any

Scalar = Any  # a float, or a detached scalar tensor that is read later


class LossMeter:
    """The values backward was called on, summed up over an iteration."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._tensor = torch, torch.Tensor
        self._current: list[Scalar] = []
        self._steps: list[list[Scalar]] = []

    def add(self, tensors: Any) -> None:
        """``backward`` is called on ``tensors`` (one or several); only scalars count."""
        if type(tensors) is self._tensor and not tensors.is_cuda and tensors.numel() == 1:  # the usual case, quickly
            value = tensors.item()
            if type(value) is float:
                self._current.append(value)
                return
        for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
            value = self._scalar(tensor)
            if value is not None:
                self._current.append(value)

    def replace(self, value: Any) -> None:
        """The job says what this iteration's loss is."""
        scalar = self._scalar(value)
        self._current = [] if scalar is None else [scalar]

    def end_step(self, keep: bool = True) -> None:
        """The iteration ends; ``keep=False`` forgets its loss."""
        if keep:
            self._steps.append(self._current)
        self._current = []

    def restart(self) -> None:
        """Forget all steps so far, but not the current one."""
        self._steps = []

    def merge_into_current(self) -> None:
        """All steps so far were part of the current one."""
        self._current = [v for step in self._steps for v in step] + self._current
        self._steps = []

    def values(self) -> list[float | None]:
        """One a step: the sum, None where nothing scalar was differentiated. Waits for the device."""
        tensors = [v for step in self._steps for v in step if not isinstance(v, float)]
        read = iter(_read(self._torch, tensors))
        sums: list[float | None] = []
        for step in self._steps:
            numbers = [v if isinstance(v, float) else next(read) for v in step]
            sums.append(math.fsum(numbers) if _all_finite(numbers) and numbers else sum(numbers) if numbers else None)
        return sums

    def _scalar(self, value: Any) -> Scalar | None:
        if value is None:
            return None
        if not isinstance(value, self._torch.Tensor):
            try:
                return float(value)
            except (TypeError, ValueError):
                return None
        with self._torch._C.DisableTorchFunctionSubclass():
            if value.numel() != 1 or value.is_complex():
                return None
            if value.device.type == "cpu":
                return float(value.item())
            return value.detach().clone()  # what the job or a CUDA graph writes there later must not count


class NormProbe:
    """Gradient norm before clipping and norm of the parameter change, for the first steps of a run."""

    def __init__(self, torch: Any, steps: int) -> None:
        self._torch, self.left = torch, steps  # steps still to be probed
        self._gradient: Scalar | None = None
        self._before: list[tuple[Any, Any]] = []
        self._changes: list[Any] = []
        self._gradients: list[Scalar] = []
        self._updates: list[Scalar] = []

    def after_backward(self, parameters: list[Any]) -> None:
        """Take the norm of all gradients; the last backward before the step counts."""
        grads = [p.grad for p in parameters if p.grad is not None]
        with self._torch.no_grad():
            self._gradient = self._norm([g.coalesce()._values() if g.is_sparse else g for g in grads])

    def before_step(self, optimizer: Any) -> None:
        """Remember the parameters of ``optimizer``."""
        self._before = [(p, p.detach().clone()) for g in optimizer.param_groups for p in g["params"]]

    def after_step(self) -> None:
        """How far they went."""
        with self._torch.no_grad():
            self._changes += [p.detach() - before for p, before in self._before]
        self._before = []

    def end_step(self) -> None:
        """The iteration ends."""
        if self.left <= 0:
            return
        self.left -= 1
        self._gradients.append(self._gradient)
        with self._torch.no_grad():
            self._updates.append(self._norm(self._changes))
        self._gradient, self._changes = None, []

    def norms(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(gradient norms, update norms), one a probed step; 0.0 where there was none."""
        return tuple(_numbers(self._torch, self._gradients)), tuple(_numbers(self._torch, self._updates))

    def _norm(self, tensors: list[Any]) -> Scalar | None:
        if not tensors:
            return None
        device = tensors[0].device
        parts = [self._torch.linalg.vector_norm(t.float()).to(device) for t in tensors]
        return self._torch.linalg.vector_norm(self._torch.stack(parts))


def _numbers(torch: Any, scalars: list[Scalar | None]) -> list[float]:
    read = iter(_read(torch, [s for s in scalars if s is not None]))
    return [0.0 if s is None else next(read) for s in scalars]


def _read(torch: Any, tensors: list[Any]) -> list[float]:
    """Scalar tensors as floats, with one transfer a device."""
    if not tensors:
        return []
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        if len({t.device for t in tensors}) == 1:
            return [float(v) for v in torch.stack([t.reshape(()).double() for t in tensors]).tolist()]
        return [float(t) for t in tensors]


def _all_finite(numbers: list[float]) -> bool:
    return all(math.isfinite(n) for n in numbers)


def to_number(torch: Any, value: Any) -> float:
    """A metric's value, which may be a tensor."""
    return float(value.item() if isinstance(value, torch.Tensor) else value)
