"""Which implementations an optimizer can be switched between."""

from __future__ import annotations

import pytest
import torch

from autotune_trials.agent.optimizers import OptimizerControl


def built(cls: type, dtype: torch.dtype) -> torch.optim.Optimizer:
    return cls([torch.nn.Parameter(torch.ones(4, dtype=dtype))], lr=0.1)


@pytest.mark.parametrize(
    ("cls", "dtype", "fused"),
    [
        (torch.optim.SGD, torch.float32, True),
        (torch.optim.SGD, torch.bfloat16, False),  # leaves the parameters as they are, and says nothing (torch 2.13)
        (torch.optim.SGD, torch.float16, False),
        (torch.optim.AdamW, torch.float32, True),
        (torch.optim.AdamW, torch.bfloat16, True),
        (torch.optim.Adagrad, torch.float16, True),
    ],
)
def test_whatever_is_offered_updates_the_parameters(cls: type, dtype: torch.dtype, fused: bool) -> None:
    optimizer = built(cls, dtype)
    offered = OptimizerControl(torch, optimizer).supported()
    assert offered == ("for-loop", "foreach", "fused")[: 2 + fused]
    for implementation in offered:
        optimizer = built(cls, dtype)
        OptimizerControl(torch, optimizer).set(implementation)
        [parameter] = optimizer.param_groups[0]["params"]
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert (parameter < 1).all(), implementation
