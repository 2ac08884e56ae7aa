"""The loss scaler from outside of the job takes the same steps as torch.amp.GradScaler, here on the CPU with the same code."""

from __future__ import annotations

import pytest
import torch

from autotune_trials.agent.amp import INITIAL_SCALE, LossScaler

STEPS, OVERFLOWS = 6, 3


def losses(half: bool) -> tuple[torch.nn.Linear, torch.optim.Optimizer, list[torch.Tensor]]:
    """A model, its optimizer, and the factor of the loss at each step; at one of them the gradients overflow.

    ``half``: the loss itself is float16, in which 65536 times anything from 1 up is infinite, and so is its gradient.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    factors = [torch.tensor(1e38 if step == OVERFLOWS and not half else 1.5) for step in range(STEPS)]
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), factors


def loss_of(model: torch.nn.Linear, factor: torch.Tensor, half: bool) -> torch.Tensor:
    out = model(torch.ones(4, 8))
    return (out.half().abs().mean() * factor.half()) if half else out.pow(2).mean() * factor


@pytest.mark.parametrize("half", [False, True])
def test_it_takes_the_steps_of_grad_scaler(half: bool) -> None:
    model, optimizer, factors = losses(half)
    theirs, scales = [], []
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE)
    for factor in factors:
        optimizer.zero_grad()
        scaler.scale(loss_of(model, factor, half)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        theirs.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))
        scales.append(scaler.get_scale())

    model, optimizer, factors = losses(half)
    ours = LossScaler(torch)
    skipped = []
    for step, factor in enumerate(factors):
        optimizer.zero_grad()
        ours.before_backward([optimizer])
        scaled, gradients = ours.scaled(loss_of(model, factor, half), None)
        scaled.backward(gradients)
        ours.after_backward([optimizer])
        if ours.before_step(optimizer):
            skipped.append(step)
        optimizer.step()
        ours.after_step(optimizer)
        ours.update()
        assert ours.scale == scales[step]
        assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), theirs[step])
    assert skipped == ([0] if half else [OVERFLOWS])
