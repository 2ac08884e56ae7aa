"""Gradients that are computed while backward runs: by a hook with torch.func, or by a backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autotune_trials.agent.core.events import Events, Listener
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.core.training_loop import TrainingLoop
from autotune_trials.agent.facts.job_traits import JobTraits
from autotune_trials.agent.patches import backward
from autotune_trials.agent.patches.patch_set import PatchSet


class Heard(Listener):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        self.losses.append(float(tensors.detach()))


@pytest.fixture
def patches() -> Iterator[PatchSet]:
    patches = PatchSet()
    yield patches
    patches.restore_all()


def test_they_are_no_losses_of_their_own(patches: PatchSet) -> None:
    """As Opacus computes per-sample gradients of a layer for which it has no formula."""
    events, state, traits, heard = Events(), LoopState(), JobTraits(), Heard()
    events.listen(heard)
    loop = TrainingLoop(events, state, pytest.fail, pytest.fail)  # type: ignore[arg-type]
    backward.install(patches, torch, loop, traits)
    backward.install_grad(patches, torch, loop, traits)
    factors, inputs = torch.ones(4, requires_grad=True), torch.randn(8, 4)
    of_each: list[torch.Tensor] = []

    def take(gradient: torch.Tensor) -> None:
        one = torch.func.grad(lambda w, x, g: (w * x * g).sum())
        of_each.append(torch.func.vmap(one, in_dims=(None, 0, 0))(factors, inputs, gradient))

    outputs = inputs * factors
    outputs.register_hook(take)
    loss = outputs.square().mean()
    loss.backward()
    assert torch.allclose(of_each[0].sum(0), factors.grad)
    assert heard.losses == [loss.item()] and state.backwards == 1
    assert not state.functional and not traits.double_backward
    torch.func.grad(lambda w: (w * inputs).mean())(factors.detach())  # now a loss
    assert len(heard.losses) == 2 and state.functional


class Reentrant(torch.autograd.Function):
    """Computes its gradient by a backward of its own, as reentrant checkpoints do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return 3 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = ctx.x.detach().requires_grad_()
            torch.autograd.backward((3 * x,), (gradient,))
        return x.grad


def test_a_backward_inside_another_one_is_no_backward_of_the_job(patches: PatchSet) -> None:
    """On CUDA the inner one runs on a thread of the autograd engine, where only the engine knows of
    the outer one. Here the outer one is started past the patch, so that the agent knows no more.
    """
    events, state, heard = Events(), LoopState(), Heard()
    events.listen(heard)
    loop = TrainingLoop(events, state, pytest.fail, pytest.fail)  # type: ignore[arg-type]
    backward.install(patches, torch, loop, JobTraits())
    weight = torch.ones(4, requires_grad=True)
    loss = Reentrant.apply(2 * weight).sum()
    loss.backward(retain_graph=True)
    assert heard.losses == [loss.item()] and state.backwards == 1
    torch.autograd.Variable._execution_engine.run_backward(
        (loss,), (torch.ones(()),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
    assert torch.equal(weight.grad, torch.full((4,), 12.0))
    assert heard.losses == [loss.item()] and state.backwards == 1
