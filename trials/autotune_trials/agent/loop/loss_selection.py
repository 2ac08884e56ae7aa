"""What of all that the job differentiates is its loss."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.loop.cached_gradients import ITERATIONS, CachedGradients, Value
from autotune_trials.agent.loop.sample_comparison import comparison
from autotune_trials.protocol.messages import SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.facts.job_traits import JobTraits
    from autotune_trials.agent.loop.batch_accounting import Consumption
    from autotune_trials.agent.loop.loss_meter import LossMeter

# heard as long as it is open whether the job caches gradients
JUDGED = "backward_ended", "iteration_ended"


class LossSelection(Listener):
    """Hands on to the LossMeter what counts."""

    def __init__(
        self, live: LiveJobControl, meter: LossMeter, consumption: Consumption, traits: JobTraits
    ) -> None:
        self._torch, self._live, self._state = live.torch, live, live.state
        self._meter, self._consumption, self._traits = meter, consumption, traits
        self._cached = CachedGradients(live.torch, live.state, live.parameters)
        self._judging = True  # whether the job caches gradients is not settled, or it does
        self._look_for_comparison = live.config.mode == SessionMode.LIVE
        # what the job's own scaler made last, and of what; None: it has none
        self._scaled: tuple[Any, Any] | None = None

    def on_scaled(self, loss: Any, scaled: Any) -> None:
        """The job's own GradScaler made ``scaled`` of ``loss``: the loss is what counts, whatever
        the scale is by then."""
        try:
            if scaled is not loss and type(scaled) is type(loss) is self._torch.Tensor:
                self._scaled = (weakref.ref(scaled), loss.detach())
        except Exception:
            self._live.loop.fail("on_scaled")

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        if self._judging:
            self._look_into_first(tensors)
        if self._state.closure_calls > 1:
            return  # of a step with a closure the first evaluation counts
        add = self._adds(tensors, gradients) if self._judging else self._meter.add
        if self._scaled is not None and tensors is self._scaled[0]():
            tensors = self._scaled[1]
        if add is not None:
            add(tensors, gradients)

    def _adds(self, tensors: Any, gradients: Any) -> Callable[[Any, Any], None] | None:
        """What the meter is told of that with; None: nothing."""
        value = self._cached.judge(tensors, gradients)
        return {Value.LOSS: self._meter.add, Value.TOTAL: self._meter.add_total}.get(value)

    def _look_into_first(self, tensors: Any) -> None:
        """What only the first iterations are asked."""
        state, batches = self._state, self._consumption.batches
        if (
            not state.iterations
            and state.backwards
            and not state.in_step
            and self._gradients_were_dropped()
        ):
            self._meter.drop_current()  # a search for the batch size, say, that ran before training
            self._consumption.drop_others()
        if state.iterations == 1 and state.backwards == state.backwards_at_first:
            self._traits.keeps_gradients = any(p.grad is not None for p in self._live.parameters())
        if (
            state.iterations == 1
            and self._look_for_comparison
            and batches
            and not self._traits.compares_samples
        ):
            self._traits.compares_samples = comparison(tensors, int(batches[-1].samples or 0))

    def _gradients_were_dropped(self) -> bool:
        """No parameter has a gradient although backward ran: what it was computed for was no
        training."""
        parameters = self._live.parameters()
        return (
            bool(parameters)
            and not self._cached.under_way
            and all(p.grad is None for p in parameters)
        )

    def backward_ended(self) -> None:
        self._cached.after_backward()

    def manual_step(self, loss: Any) -> None:
        if loss is not None:
            self._meter.replace(loss)

    def started_over(self) -> None:
        self._meter.merge_into_current()
        self._judging = True
        self._live.events.recall(self, *JUDGED)

    def iteration_ended(self, iteration: Iteration) -> None:
        self._cached.end_iteration()
        if self._state.iterations >= ITERATIONS and not self._state.caches_gradients:
            self._judging = False
            self._live.events.forget(self, *JUDGED)
