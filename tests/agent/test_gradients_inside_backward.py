"""Gradients that a hook takes by torch.func while backward runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autotune_trials.agent.core.events import Events, Listener
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.core.training_loop import TrainingLoop
from autotune_trials.agent.facts.job_traits import JobTraits
from autotune_trials.agent.patches import PatchSet, backward


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
    """As Opacus takes the gradients of each sample, of a layer that it has no formula for."""
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
    torch.func.grad(lambda w: (w * inputs).mean())(factors.detach())  # a loss again
    assert len(heard.losses) == 2 and state.functional
