"""What of all that the job differentiates is its loss."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.loop.cached_gradients import CachedGradients, Value
from autotune_trials.agent.loop.objective import comparison

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


class LossEvents:
    """Hands on to the LossMeter what counts."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.cached = CachedGradients(agent.torch, agent)
        self._scaled: tuple[Any, Any] = (lambda: None, None)  # what the job's own scaler made last, and of what

    def on_scaled(self, loss: Any, scaled: Any) -> None:
        """The job's own GradScaler made ``scaled`` of ``loss``: the loss is what counts, whatever the scale is by then."""
        if not self._agent.stopped and scaled is not loss and type(scaled) is type(loss) is self._agent.torch.Tensor:
            self._scaled = (weakref.ref(scaled), loss.detach())

    def on_backward(self, tensors: Any, gradients: Any) -> None:
        """``tensors`` are differentiated: the loss, or what stands for it."""
        value = self.cached.judge(tensors, gradients)
        if not self._agent.measures:
            return
        scaled, true_loss = self._scaled
        differentiated = true_loss if tensors is scaled() else tensors
        if value is Value.TOTAL:
            self._agent.loss.add_total(differentiated, gradients)
        elif value is Value.LOSS:
            self._agent.loss.add(differentiated, gradients)

    def look_for_comparison(self, tensors: Any) -> None:
        """Whether the loss compares the samples of its batch."""
        agent = self._agent
        if agent.consumption.batches and not agent.compares_samples:
            agent.compares_samples = comparison(tensors, int(agent.consumption.batches[-1].samples or 0))

    def gradients_were_dropped(self) -> bool:
        """No parameter has a gradient although backward ran: what it was computed for was no training."""
        parameters = self._agent.live.parameters()
        return bool(parameters) and not self.cached.under_way and all(p.grad is None for p in parameters)

    def end_iteration(self) -> None:
        self.cached.end_iteration()
