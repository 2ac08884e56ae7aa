"""Selects the job's loss among all values that it differentiates."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.core.loop_state import Ending
from autotune_trials.agent.loop.autograd_graph import SCALE, listed, scale_near, unsafe_to_autocast
from autotune_trials.agent.loop.cached_gradients import ITERATIONS, CachedGradients, Value
from autotune_trials.agent.loop.sample_comparison import comparison
from autotune_trials.protocol.messages import SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.facts.job_traits import JobTraits
    from autotune_trials.agent.loop.batch_accounting import Consumption
    from autotune_trials.agent.loop.loss_meter import LossMeter

# received while the job caches gradients, or may still turn out to
JUDGED = "backward_ended", "iteration_ended"


class LossSelection(Listener):
    """Passes the values that count on to the LossMeter."""

    def __init__(
        self, live: LiveJobControl, meter: LossMeter, consumption: Consumption, traits: JobTraits
    ) -> None:
        self._torch, self._live, self._state = live.torch, live, live.state
        self._meter, self._consumption, self._traits = meter, consumption, traits
        self._cached = CachedGradients(live.torch, live.state, live.parameters)
        self._judging = True  # the job caches gradients, or may still turn out to
        self._look_for_comparison = live.config.mode == SessionMode.LIVE
        # the latest result of the job's own scaler, and its loss; None: no scaler
        self._scaled: tuple[Any, Any] | None = None
        self._scales = False  # it has scaled something
        # a parameter in which backward leaves its gradient for the step; None: the job has several
        # optimizers, puts gradients together elsewhere (gradient surgery), or it is not known yet
        self._holder: weakref.ref[Any] | None = None
        self._used = 0  # batches of this iteration that had been fetched at its latest backward

    def on_scaled(self, loss: Any, scaled: Any, scale: Any) -> None:
        """The job's own GradScaler made ``scaled`` from ``loss``: the unscaled loss counts,
        whatever the scale is by then."""
        if self._state.capturing:
            return
        try:
            if scale is not None and scaled is not loss:
                self._scales, scale = True, scale.detach().clone()
                for tensor in listed(scaled):
                    if (node := getattr(tensor, "grad_fn", None)) is not None:
                        node.metadata[SCALE] = scale  # goes when the graph goes
            if scaled is not loss and type(scaled) is type(loss) is self._torch.Tensor:
                self._scaled = (weakref.ref(scaled), loss.detach())
        except Exception:
            self._live.loop.fail("on_scaled")

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        if self._judging:
            self._look_into_first(tensors)
        if self._holder is not None:
            if self._meter.begun and self._left_out_a_step(self._holder()):
                self._meter.drop_current()
                self._consumption.drop_first(self._used)
            self._used = len(self._consumption.batches)
        state = self._state
        if state.closure_calls > 1:
            return  # in a step with a closure, only its first call counts
        by_transform = state.functional and not state.in_backward
        judging = self._judging and not by_transform
        add = self._adds(tensors, gradients) if judging else self._meter.add
        if state.functional and not by_transform and add == self._meter.add:
            # its value contains what torch.func differentiated before: MAML's outer loss
            add = self._meter.add_total
        if self._scaled is not None and tensors is self._scaled[0]():
            tensors = self._scaled[1]
        elif self._scales and isinstance(tensors, self._torch.Tensor):
            # a sum of scaled losses, one of several, or one that is not scaled
            if (scale := scale_near(tensors)) is not None:
                tensors = tensors.detach() / scale.to(tensors.device)
        if add is not None:
            add(tensors, gradients)

    def _adds(self, tensors: Any, gradients: Any) -> Callable[[Any, Any], None] | None:
        """The meter's method to record these with; None if they do not count."""
        value = self._cached.judge(tensors, gradients)
        return {Value.LOSS: self._meter.add, Value.TOTAL: self._meter.add_total}.get(value)

    def _look_into_first(self, tensors: Any) -> None:
        """Checks that are made only in the first iterations."""
        state, traits, batches = self._state, self._traits, self._consumption.batches
        if not state.iterations:
            if state.backwards and not state.in_step and self._gradients_were_dropped():
                self._meter.drop_current()  # e.g. a batch size search before training
                self._consumption.drop_others()
            return
        if state.iterations != 1:
            return
        if state.backwards == state.backwards_at_first:
            traits.keeps_gradients = any(p.grad is not None for p in self._live.parameters())
        elif self._gradients_were_dropped():
            self._holder = None  # what it drops in every iteration is of use
        if self._look_for_comparison:
            # a GAN has several losses in an iteration
            traits.unsafe_to_autocast = traits.unsafe_to_autocast or unsafe_to_autocast(tensors)
            if batches and not traits.compares_samples:
                traits.compares_samples = comparison(tensors, int(batches[-1].samples or 0))

    def _gradients_were_dropped(self) -> bool:
        """Whether no parameter has a gradient although backward ran: it ran for something other
        than training."""
        parameters = self._live.parameters()
        return (
            bool(parameters)
            and not self._cached.under_way
            and all(p.grad is None for p in parameters)
        )

    def _left_out_a_step(self, holder: Any) -> bool:
        """Whether the job has dropped the gradients of this iteration's backwards instead of making
        a step with them, because their norm was not finite, for example. Cheap while gradients are
        accumulated.
        """
        if holder is not None and holder.grad is not None:
            return False
        parameters = self._only_optimizers_parameters()
        self._holder = _first_with_gradient(parameters) or (self._holder if parameters else None)
        return bool(parameters) and self._gradients_were_dropped()

    def _only_optimizers_parameters(self) -> list[Any]:
        """The trained parameters if the job has a single optimizer and steps it in the usual way."""
        state, live = self._state, self._live
        unusual = state.functional or state.caches_gradients or state.in_step
        usual = state.ends_with is Ending.STEP and not unusual
        return live.parameters() if usual and len(live.every_optimizer()) == 1 else []

    def backward_ended(self) -> None:
        self._cached.after_backward()
        state = self._state
        if state.iterations == 1 and state.backwards == state.backwards_at_first + 1:
            self._holder = _first_with_gradient(self._only_optimizers_parameters())

    def step_failed(self, optimizer: Any) -> None:
        self._meter.drop_current()

    def manual_step(self, loss: Any) -> None:
        if loss is not None:
            self._meter.replace(loss)

    def started_over(self) -> None:
        self._meter.merge_into_current()
        self._judging, self._holder = True, None
        self._live.events.recall(self, *JUDGED)

    def iteration_ended(self, iteration: Iteration) -> None:
        self._cached.end_iteration()
        if self._state.iterations >= ITERATIONS and not self._state.caches_gradients:
            self._judging = False
            self._live.events.forget(self, *JUDGED)


def _first_with_gradient(parameters: list[Any]) -> weakref.ref[Any] | None:
    return next((weakref.ref(p) for p in parameters if p.grad is not None), None)
