"""The job's training loop as the agent sees it: what the patches call, in the order it happens.

    next(loader)                     (dataloader/switchable_iterator.py tells the listeners)
    model(x)                         call_module, or evaluate
    loss.backward()                  start_backward ── end_backward
    optimizer.step()                 start_step ── end_step ─┐
    autotune.step()                  on_manual_step ─────────┴▶ the iteration ends

See :mod:`.events` for the listeners. An iteration ends with the step of the *lead* optimizer (see
lead_optimizer.py: GANs step several), but not with another step of it after the same backward
(DeepSpeed's ZeRO steps it once per param group); in a job without torch.optim, where it continues
after updating its parameters itself (see own_updates.py). Once the job calls ``autotune.step()``,
iterations end only there.

Listeners may fail in any way: the job goes on, and the agent steps aside (``fail``).
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.core.iteration import Iteration
from autotune_trials.agent.core.loop_state import Ending
from autotune_trials.agent.dataloader.worker_ends import KILLED, was_killed
from autotune_trials.agent.loop.lead_optimizer import LeadOptimizer
from autotune_trials.agent.patches.patch_set import UNTRACED, untraced

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.core.events import Context, Events
    from autotune_trials.agent.core.loop_state import LoopState

CAPTURED = (
    "the job captures its training step in its own CUDA graph, which autotune can neither observe"
    " nor change; turn that off for tuning"
    " (compile_mode=reduce-overhead creates such graphs itself)"
)
EVALUATED = 3  # iterations in a row without training mode, after which evaluation mode trains
# where, why, and whether nothing failed but the agent can no longer see the job
StepAside = Callable[[str, str, bool], None]


class TrainingLoop:
    """Notifies the listeners and maintains the :class:`.LoopState`. An error in here stops the
    agent, not the job."""

    def __init__(
        self, events: Events, state: LoopState, fail: Callable[[str], None], step_aside: StepAside
    ) -> None:
        self.events, self.state = events, state
        self.fail, self._step_aside = fail, step_aside
        self.fail_knob: Callable[[str], None] = log.write  # a setting could not be kept
        # called with the job's errors that pass through our wrappers
        self.on_error: Callable[[BaseException], None] = lambda error: None
        self.device = ""  # type of the training device
        # called in evaluation with gradients, in this iteration
        self._evaluated: set[Entry] = set()
        self._lead = LeadOptimizer()
        self._stepping: Callable[[], Any] = lambda: None  # the optimizer that has stepped last
        # the optimizer whose step ended the last iteration, and the number of backwards then
        self._ended_by: Callable[[], Any] = lambda: None
        self._ended_at = 0
        self.steps_begun = 0  # calls of any optimizer's step
        self._skipped: Any = False  # by the job's own GradScaler, in this iteration
        self._backward_thread = 0  # the thread that called backward last
        self._captured = False  # the job has captured backward or a step in a CUDA graph

    def tell(self, event: str, *about: Any) -> None:
        """Call the listeners of ``event``."""
        try:
            for hear in getattr(self.events, event):
                hear(*about)
        except Exception:
            self.fail(event)

    def learn_device(self, device: Any) -> None:
        """The job trains on ``device``. If both a CPU and a GPU are seen, the GPU counts."""
        if self.device != device.type and self.device != "cuda":
            self.device = device.type
            for hear in self.events.device_found:
                hear(device)

    # ------------------------------------------------------------------ batches

    def on_loader_fault(self, where: str, text: str) -> None:
        """A problem in the loader hooks, which have already recovered on the job's behalf."""
        log.write(f"{where}\n{text}")
        self._step_aside(where, text, False)

    def on_loader_refusal(self, settings: str, why: str) -> None:
        """The training loader cannot take ``settings`` and keeps the job's own."""
        log.write(f"{settings}\n{why}")
        killed = f" ({KILLED})" if was_killed(sys.exc_info()[1]) else ""
        self.fail_knob(f"{settings}: {why.strip().splitlines()[-1]}{killed}")

    # ------------------------------------------------------------------ the model is called

    def go_on(self) -> None:
        """The job has finished whatever it did after the last backward."""
        if not self.state.in_backward:
            self.tell("went_on")

    def call_module(
        self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Context | None:
        """Training calls ``entry``. Returns a context the call must run in, or None."""
        state, events, context = self.state, self.events, None
        if state.capturing:
            return None
        try:
            if events.went_on:
                self.go_on()
            state.frozen = False
            for hear in events.module_called:
                context = hear(entry, args, kwargs) or context
            state.training_called = True
            if state.in_backward:
                entry.checkpointed = entry.called_gradless
        except Exception:
            self.fail("module_called")
        return context

    def evaluate(self, entry: Entry, args: tuple[Any, ...], gradless: bool) -> Context | None:
        """``entry`` is called in evaluation, without gradients (``gradless``), or while all trained
        parameters are frozen. Returns a context the call must run in, or None.

        What another thread (an actor, an evaluator) does meanwhile is no part of the loop.
        """
        context = None
        if self.state.capturing or self.state.aside:
            return None
        try:
            self.go_on()
            entry.called_gradless = gradless and entry.module.training
            self.state.frozen = not gradless and entry.module.training
            if not gradless and not entry.module.training:
                self._evaluated.add(entry)
            for hear in self.events.evaluated:
                context = hear(entry, args) or context
        except Exception:
            self.fail("evaluated")
        return context

    # ------------------------------------------------------------------ backward

    def start_backward(self, tensors: Any, gradients: Any) -> tuple[Any, Any]:
        """Returns the arguments to call backward with."""
        state, events = self.state, self.events
        if state.capturing:
            self._captured = True
            return tensors, gradients
        try:
            if events.went_on:
                self.go_on()
            state.in_backward, self._backward_thread = True, get_ident()
            for hear in events.backward_started:
                hear(tensors, gradients)
            for change in events.backward_arguments:
                tensors, gradients = change(tensors, gradients)
        except Exception:
            self.fail("backward_started")
        return tensors, gradients

    def start_functional(self, loss: Any) -> None:
        """torch.func differentiates ``loss``; end_backward follows."""
        self.state.functional = True
        self.go_on()
        self.tell("backward_started", loss, None)

    def end_backward(self) -> None:
        state = self.state
        state.in_backward = False
        if state.capturing:
            return
        state.backwards += 1
        self.tell("backward_ended")

    def note_error(self, error: BaseException) -> None:
        """``error`` passes through job code that we wrap; the caller re-raises it."""
        self.state.in_backward = False
        self.on_error(error)

    def fail_backward(self, error: BaseException) -> None:
        """Backward, between :meth:`start_backward` and :meth:`end_backward`, raises ``error``."""
        self.note_error(error)
        try:
            for hear in self.events.backward_failed:
                hear()
        except Exception:  # a device that has failed fails here, too
            log.write_exception("backward_failed")

    # ------------------------------------------------------------------ optimizer

    @functools.partial(untraced, why=UNTRACED)
    def start_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Returns changed (args, kwargs), or None."""
        state = self.state
        self.steps_begun += 1
        if state.stopped:  # the hooks cannot be removed inside a step that iterates over them
            return None
        if state.capturing:
            self._captured = True
            return None
        state.in_step = True
        if optimizer is not self._stepping():
            self._stepping = weakref.ref(optimizer)
            self.tell("stepping_changed", optimizer)
        self.tell("step_started", optimizer)
        return self._with_closure_counted(optimizer, args, kwargs)

    def _with_closure_counted(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """The step's arguments, with its closure wrapped to count calls: LBFGS calls it as often as
        its line search needs. None if there is no closure."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None

        @functools.wraps(closure)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.state.closure_calls += 1
            try:
                value = closure(*args, **kwargs)
            except BaseException:
                self._fail_step(optimizer)
                raise
            self.tell("closure_called", optimizer)
            return value

        if "closure" in kwargs:
            return args, {**kwargs, "closure": counted}
        return (args[0], counted, *args[2:]), kwargs

    def _fail_step(self, optimizer: Any) -> None:
        """The closure has raised an error: torch will not call end_step. The job may catch the error
        and go on."""
        self.state.closure_calls, self.state.in_step = 0, False
        self.tell("step_failed", optimizer)

    @functools.partial(untraced, why=UNTRACED)
    def end_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        state = self.state
        if state.stopped or state.capturing:
            return
        try:
            if state.ends_with is Ending.UPDATE:  # the job does step an optimizer
                state.ends_with = Ending.STEP
                self._start_over()
            ends = state.ends_with is Ending.STEP and self._lead.ends_iteration(
                optimizer, state.backwards
            )
            if ends and state.backwards == self._ended_at:
                ends = not self._steps_again(optimizer)
            for hear in self.events.step_ended:
                hear(optimizer, ends)
            state.closure_calls = 0
            # the job's own GradScaler leaves skipping to a fused kernel
            self._skipped = getattr(optimizer, "found_inf", self._skipped)
            if ends:
                if state.iterations == 1 and self._lead.same_turn:
                    self._start_over()
                self._ended_by, self._ended_at = weakref.ref(optimizer), state.backwards
                self._end_iteration(None)
        except Exception:
            self.fail("step_ended")
        finally:
            state.in_step = False

    def on_no_step(self, scaler: Any, optimizer: Any) -> None:
        """The job's own ``scaler`` was asked for a step of ``optimizer`` and made none: the
        iteration ends all the same if it has skipped it, because gradients overflowed.
        """
        try:
            skipped = any(
                found.item() for found in scaler._found_inf_per_device(optimizer).values()
            )
        except Exception:
            self.fail("GradScaler.step")
            return
        if skipped:
            self._skipped = True
            self.start_step(optimizer, (optimizer,), {})
            self.end_step(optimizer, (optimizer,), {})

    def _steps_again(self, optimizer: Any) -> bool:
        """Whether ``optimizer``, or one that is gone by now, ended the last iteration, and no
        training call, whose gradients ``torch.autograd.grad`` may have taken, has run since; nor
        has a backward.
        """
        state = self.state
        return (
            state.backwards > 0
            and not state.in_backward
            and not state.training_called
            and self._ended_by() in (None, optimizer)
        )

    # ------------------------------------------------------------------ iterations

    def on_manual_step(self, loss: Any, samples: float | None) -> None:
        """``autotune.step()`` in the job's loop."""
        if self.state.stopped or self.state.capturing:
            return
        try:
            if self.state.ends_with is not Ending.MARK:
                self.state.ends_with = Ending.MARK
                self._start_over()
            for hear in self.events.manual_step:
                hear(loss)
            self._end_iteration(samples)
        except Exception:
            self.fail("autotune.step")

    def on_own_update(self) -> None:
        """The job has updated its parameters itself and moved on. Called by a listener."""
        self.state.ends_with = Ending.UPDATE
        self._end_iteration(None)

    def on_metric(self, name: str, value: Any) -> None:
        """``autotune.metric()`` in the job."""
        self.tell("metric_reported", name, value)

    def _start_over(self) -> None:
        self.state.iterations = 0
        for hear in self.events.started_over:
            hear()

    def _end_iteration(self, samples: float | None) -> None:
        state, events = self.state, self.events
        iteration = Iteration()
        iteration.index = state.iterations
        iteration.skipped, self._skipped = self._skipped, False
        for fill_in in events.iteration_ending:
            fill_in(iteration, samples)
        state.iterations += 1
        # on CUDA a step from within backward runs on one of torch's threads
        state.thread = self._backward_thread if state.in_backward else get_ident()
        if state.iterations == 1:
            state.backwards_at_first = state.backwards
        if self._evaluated:
            self._count_evaluated()
        state.training_called = False
        for hear in events.iteration_ended:
            hear(iteration)

    def _count_evaluated(self) -> None:
        """Some jobs never call ``model.train()`` after their first evaluation: those calls train."""
        for entry in self._evaluated:
            entry.evaluated_iterations += 1
            if self.state.training_called:
                entry.evaluated_iterations = 0
            elif entry.evaluated_iterations >= EVALUATED:
                entry.trains_in_evaluation = True
        self._evaluated.clear()

    # ------------------------------------------------------------------ the job's own CUDA graphs

    def begin_capture(self) -> None:
        self.state.capturing = True

    def end_capture(self) -> None:
        """The capture has ended. Replaying the graph calls no hook: if it holds backward or a step,
        iterations can no longer be seen."""
        self.state.capturing = False
        self.state.captures += 1
        if self._captured and not self.state.stopped:
            self._step_aside("the job's own CUDA graph", CAPTURED, True)
