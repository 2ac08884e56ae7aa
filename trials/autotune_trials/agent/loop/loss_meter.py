"""The loss of each step, without synchronizing each step on CUDA."""

from __future__ import annotations

import math
from typing import Any

Scalar = Any  # a float, or a detached scalar tensor that is read later


class LossMeter:
    """Sums what backward differentiated in an iteration.

    A tensor that is not a scalar counts as ``sum(tensor * gradient)``, with the gradient that was
    passed to backward for it.
    """

    def __init__(self, torch: Any) -> None:
        self._torch, self._tensor = torch, torch.Tensor
        self._current: list[Scalar] = []
        self._summed = 0  # how many of them are totals (they come first)
        self._steps: list[list[Scalar]] = []

    @property
    def begun(self) -> bool:
        """Whether anything was differentiated in the current step."""
        return bool(self._current)

    def add(self, tensors: Any, gradients: Any = None) -> None:
        """``backward`` is called on ``tensors`` (one or several), with ``gradients`` for them or
        None.
        """
        if (
            gradients is None
            and type(tensors) is self._tensor
            and not tensors.is_cuda
            and tensors.numel() == 1
        ):
            value = tensors.item()  # the usual case, quickly
            if type(value) is float:
                self._current.append(value)
                return
        several = isinstance(tensors, (list, tuple))
        tensors = tensors if several else (tensors,)
        given = gradients if several and gradients is not None else [gradients] * len(tensors)
        for tensor, gradient in zip(tensors, given, strict=False):
            if gradient is not None:
                tensor = self._product(tensor, gradient)
            value = scalar(self._torch, tensor)
            if value is not None:
                self._current.append(value)

    def add_total(self, tensors: Any, gradients: Any = None) -> None:
        """Like :meth:`add`, but replaces what was added since the last total, as its sum."""
        del self._current[self._summed :]
        self.add(tensors, gradients)
        self._summed = len(self._current)

    def replace(self, value: Any) -> None:
        """Take ``value``, which the job reports, as this iteration's loss."""
        loss = scalar(self._torch, value)
        self._current = [] if loss is None else [loss]

    def end_step(self) -> None:
        """The iteration ends."""
        self._steps.append(self._current)
        self.drop_current()

    def drop_current(self) -> None:
        """Forget what was differentiated so far in the current step."""
        self._current, self._summed = [], 0

    def restart(self) -> None:
        """Forget all completed steps, but not the current one."""
        self._steps = []

    def merge_into_current(self) -> None:
        """Merge all completed steps into the current one."""
        self._current = [v for step in self._steps for v in step] + self._current
        self._steps = []

    def values(self) -> list[float | None]:
        """The sum for each step; None where there is none (or it is complex). Waits for the device."""
        tensors = [v for step in self._steps for v in step if not isinstance(v, float)]
        read = iter(read_scalars(self._torch, tensors))
        sums: list[float | None] = []
        for step in self._steps:
            numbers = [v if isinstance(v, float) else next(read) for v in step]
            exact = all(math.isfinite(n) for n in numbers)  # fsum refuses inf - inf
            total = math.fsum(numbers) if exact else sum(numbers)
            sums.append(total if numbers else None)
        return sums

    def _product(self, tensor: Any, gradient: Any) -> Any | None:
        """What backward differentiates when it is given a gradient."""
        try:
            with self._torch.no_grad(), self._torch._C.DisableTorchFunctionSubclass():
                return (tensor.detach() * gradient.detach()).sum()
        except Exception:  # they cannot be multiplied like this, but backward may accept them
            return None


def scalar(torch: Any, value: Any) -> Scalar | None:
    """``value``, a number or a tensor with one element, as it is kept; None if it is neither."""
    if not isinstance(value, torch.Tensor):
        try:
            return float(value)
        except Exception:  # None, or whatever a class of the job's own raises
            return None
    with torch._C.DisableTorchFunctionSubclass():
        if value.numel() != 1 or value.is_complex():
            return None
        if value.device.type == "cpu":
            return float(value.item())
        # what the job or a CUDA graph writes there later must not count
        return value.detach().clone()


def read_scalars(torch: Any, tensors: list[Any]) -> list[float]:
    """Scalar tensors as floats, in a single transfer if all are on one device."""
    if not tensors:
        return []
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        if len({t.device for t in tensors}) == 1:
            return [
                float(v) for v in torch.stack([t.reshape(()).double() for t in tensors]).tolist()
            ]
        return [float(t) for t in tensors]
