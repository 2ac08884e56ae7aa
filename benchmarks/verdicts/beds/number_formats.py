"""Emulates other number formats by rounding the inputs and outputs of matrix products and
convolutions.

    forward    operand ── rounded ──▶ product ── rounded ──▶
    backward   ◀── rounded ── product of gradients ◀── rounded ── gradient

float16 gradients are rounded at a loss scale: values below the least normal number become zero. The
rest of the training stays in float32, as under autocast.
"""

from __future__ import annotations

from typing import Any

import torch

LEAST_NORMAL, LARGEST = 2.0**-14, 65504.0  # of float16
PRODUCTS = {"linear", "conv2d", "matmul", "bmm", "scaled_dot_product_attention", "gru", "lstm"}


class Tf32:
    """Ten mantissa bits, float32's range."""

    def value(self, x: torch.Tensor) -> torch.Tensor:
        bits = x.contiguous().view(torch.int32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)

    def gradient(self, g: torch.Tensor) -> torch.Tensor:
        return self.value(g)


class Float16:
    """Ten mantissa bits, and a range that ends at 2^-14; the loss scale moves gradients into it."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self._entries = self._lost = 0

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return _to_float16(x)

    def gradient(self, g: torch.Tensor) -> torch.Tensor:
        rounded = _to_float16(g * self.scale)
        self._entries += int(torch.count_nonzero(g))
        self._lost += int(torch.count_nonzero(g)) - int(torch.count_nonzero(rounded))
        return rounded / self.scale

    def report(self) -> None:
        """Report the share of this step's gradient entries that was lost, as a metric."""
        from autotune_trials.api import metric

        metric("lost", self._lost / max(self._entries, 1))
        self._entries = self._lost = 0


def _to_float16(x: torch.Tensor) -> torch.Tensor:
    rounded = x.clamp(-LARGEST, LARGEST).half().float()
    return torch.where(rounded.abs() < LEAST_NORMAL, 0.0, rounded)


def format_of(words: dict[str, str]) -> Any:
    if "fp16" in words:
        return Float16(float(words["fp16"]))
    return Tf32() if "tf32" in words else None


class _Rounded(torch.autograd.Function):
    """The identity, with its value and its gradient rounded to a format."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kind: Any) -> torch.Tensor:
        ctx.kind = kind
        return kind.value(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.kind.gradient(gradients[0]), None


class RoundedProducts(torch.overrides.TorchFunctionMode):
    """Rounds the inputs and outputs of matrix products and convolutions."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._kind = kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in PRODUCTS:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            args, kwargs = self._rounded(args), self._rounded(kwargs)
            return self._rounded(func(*args, **kwargs))

    def _rounded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _Rounded.apply(value, self._kind) if value.dtype == torch.float32 else value
        if isinstance(value, (tuple, list)):
            return type(value)(self._rounded(v) for v in value)
        if isinstance(value, dict):
            return {k: self._rounded(v) for k, v in value.items()}
        return value
