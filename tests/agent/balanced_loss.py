"""A model's own loss, hidden in its backward."""

from __future__ import annotations

from typing import Any

import torch


class Balanced(torch.autograd.Function):
    """A loss put into the backward of what it is given beside, as mixtures of experts do."""

    @staticmethod
    def forward(context: Any, y: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gradient, torch.ones(())
