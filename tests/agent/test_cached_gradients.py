"""Which of the values that backward is called on are a loss. For whole programs, see tests/programs
(gradient_cache, cached_loss).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils._expanded_weights.expanded_weights_impl import ExpandedWeight
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.loop.cached_gradients import ITERATIONS, CachedGradients, Value
from autotune_trials.agent.loop.fake_tensors import without_data


class Job:
    """A model, and backward calls judged before they run; plays the agent's part for
    CachedGradients.
    """

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.state = LoopState()
        self.cached = CachedGradients(torch, self.state, lambda: list(self.model.parameters()))
        self.inputs = torch.randn(6, 4)

    def backward(self, tensor: torch.Tensor, gradient: torch.Tensor | None = None) -> Value:
        value = self.cached.judge(tensor, gradient)
        tensor.backward(gradient)
        self.cached.after_backward()
        return value

    def first_half(self) -> tuple[Value, torch.Tensor]:
        """The pass up to the model's outputs, of which only the gradient is kept."""
        with torch.no_grad():
            outputs = self.model(self.inputs)
        outputs.requires_grad_()
        value = self.backward(outputs.square().mean())
        assert outputs.grad is not None
        return value, outputs.grad


@pytest.fixture
def job() -> Job:
    return Job()


def test_what_carries_a_kept_gradient_on_is_no_loss(job: Job) -> None:
    value, gradient = job.first_half()
    assert value is Value.LOSS and job.cached.under_way
    carried = torch.dot(job.model(job.inputs).flatten(), gradient.flatten())
    assert job.backward(carried * 2.0) is Value.CARRIED and job.state.caches_gradients
    job.cached.end_iteration()
    assert not job.cached.under_way


def test_a_kept_gradient_may_be_given_to_backward_itself(job: Job) -> None:
    _, gradient = job.first_half()
    assert job.backward(job.model(job.inputs), gradient) is Value.CARRIED


def test_a_number_that_stands_for_what_came_before_is_its_total(job: Job) -> None:
    job.first_half()
    assert job.backward(torch.tensor(1.5, requires_grad=True) / 2) is Value.TOTAL


def test_a_gradient_that_came_by_a_cut_through_the_model_is_carried(job: Job) -> None:
    hidden = job.model[:2](job.inputs)
    cut = hidden.detach().requires_grad_()
    assert job.backward(job.model[2](cut).square().mean()) is Value.LOSS
    assert job.backward(hidden, cut.grad) is Value.CARRIED


ORDINARY: dict[str, Any] = {
    "plain": lambda job: [job.model(job.inputs).mean()],
    "two losses": lambda job: [job.model(job.inputs).mean(), job.model(job.inputs).square().mean()],
    "weighted": lambda job: [(job.model(job.inputs) * torch.rand(6, 3)).sum()],
    "a plain tensor is trained": lambda job: [
        (torch.ones(3, requires_grad=True) * job.model(job.inputs)).sum()
    ],
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_losses_are_losses(job: Job, name: str) -> None:
    assert [job.backward(loss) for loss in ORDINARY[name](job)] == [Value.LOSS] * len(
        ORDINARY[name](job)
    )
    assert not job.state.caches_gradients


def test_adversarial_inputs_are_no_cached_gradients(job: Job) -> None:
    attacked = job.inputs.clone().requires_grad_()
    assert job.backward(job.model(attacked).mean()) is Value.LOSS
    assert attacked.grad is not None
    assert job.backward(job.model(job.inputs + 0.1 * attacked.grad.sign()).mean()) is Value.LOSS


def test_a_job_that_has_cached_nothing_is_not_looked_at_any_more(job: Job) -> None:
    job.state.iterations = ITERATIONS
    value, gradient = job.first_half()
    assert value is Value.LOSS and not job.cached.under_way


def test_leaves_that_refuse_to_be_asked_are_none_that_gradients_are_kept_in(job: Job) -> None:
    """torch's ExpandedWeight, which computes per-sample gradients (Opacus, mode ew), refuses
    attributes.
    """
    outputs = call_for_per_sample_grads(job.model)(job.inputs)
    assert job.backward(outputs.square().mean()) is Value.LOSS
    assert all(p.grad_sample.shape == (6, *p.shape) for p in job.model.parameters())


def test_a_tensor_that_refuses_to_be_asked_holds_numbers() -> None:
    weight = ExpandedWeight(torch.ones(2, requires_grad=True), 4, "mean")
    with pytest.raises(RuntimeError):
        _ = weight.is_meta
    assert not without_data(weight) and not without_data([weight])
    assert without_data(torch.ones(2, device="meta"))
