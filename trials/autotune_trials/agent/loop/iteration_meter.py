"""Measures how long each iteration took, and what it trained on.

batch_requested ── waiting ── batch_given ── the model … ── batch_requested ── … ── epoch_ended
   │ what the last batch was for is known now  │ DATA                            │ AWAY

Where another thread than the one that trains reads the loader (a prefetcher of the job's own), its
waiting is no part of the iteration, and the clock is left to the thread that trains. What such a
thread evaluates is not reported at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.core.loop_state import Ending
from autotune_trials.agent.loop.interruptions import Interruptions
from autotune_trials.agent.loop.sample_count import SampleCount
from autotune_trials.measure.clock import AWAY, BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, TURNOVER

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.core.events import GivenBatch
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.core.loop_state import LoopState
    from autotune_trials.agent.dataloader.hooks import LoaderHooks
    from autotune_trials.agent.dataloader.tracked_loader import TrackedLoader
    from autotune_trials.agent.loop.batch_accounting import Consumption
    from autotune_trials.agent.loop.timer import Timer


class IterationMeter(Listener):
    """Advances the clock and accounts for batches. Listens early, so that the time of later
    listeners counts in the right phase."""

    loaders: LoaderHooks  # set when the DataLoader is hooked

    def __init__(
        self, state: LoopState, timer: Timer, consumption: Consumption, samples: SampleCount
    ) -> None:
        self._state, self._timer = state, timer
        self._consumption, self._samples = consumption, samples
        self._interruptions = Interruptions(state, timer)
        self._pass_begun: tuple[Any, int] = (None, 0)
        self._epoch_over = False  # the training loader is exhausted
        self._other = False  # the requested batch is not from the training loader
        self._before_end: list[int] = []  # phases to return to once workers have shut down

    # ------------------------------------------------------------------ batches

    def batch_requested(self, loader: TrackedLoader) -> None:
        interruptions = self._interruptions
        if not self._state.backwards:
            self._begin_with(loader)
        loader.read_aside = self._state.aside
        if loader.read_aside:
            if loader.is_other:
                interruptions.note_other_loader()
            interruptions.batch = None
            return
        self._settle()
        phase, self._other = DATA, loader.is_other
        if self._other:
            interruptions.note_other_loader()
            if not interruptions.other_loader_counts:
                phase = AWAY
        clock = self._timer.clock
        clock.switch(phase)
        interruptions.batch = clock.mark()

    def _begin_with(self, loader: TrackedLoader) -> None:
        """Before the first backward: what preceded this pass over the data (statistics, Lightning's
        validation sanity check) was not training."""
        if self._pass_begun != (loader, loader.passes):
            self._pass_begun = (loader, loader.passes)
            self._timer.clock.resume()

    def _settle(self) -> None:
        """The job is done with the latest batch. If it was only evaluated, it is not part of the
        iteration."""
        consumption = self._consumption
        if consumption.evaluating:
            consumption.settle(left_out=self._interruptions.leave_out_batch())
        elif self._interruptions.calls:
            self._interruptions.end_look()

    def batch_given(self, given: GivenBatch) -> None:
        clock, consumption, loaders = self._timer.clock, self._consumption, self.loaders
        loader, wait_s, turnover_s = given.loader, given.wait_s, given.turnover_s
        # the first iteration, whose end tells which thread trains, may have ended while this one read
        aside = loader.read_aside = loader.read_aside or self._state.aside
        if loaders.own_s:
            if not aside:
                clock.leave_out(loaders.own_s)
            wait_s, loaders.own_s = max(0.0, wait_s - loaders.own_s), 0.0
        if aside:
            wait_s = 0.0
            if clock.phase not in (AWAY, TURNOVER):  # training does not wait for the epoch to begin
                turnover_s = None
        if loader.mark is not consumption.mark:
            self._begin_pass(loader)
        consumption.fetch(loader, loader.mark, given.samples, wait_s, turnover_s)
        if aside or (clock.phase == AWAY and self._other):
            return
        if turnover_s is not None:
            clock.note_first_batch()
        clock.switch(FORWARD)

    def _begin_pass(self, loader: TrackedLoader) -> None:
        """The batch is the first of its iterator. If nothing was trained in the previous pass over
        the same data, that pass was an evaluation."""
        if self._state.backwards and self._consumption.last_pass_untrained(loader):
            self._interruptions.leave_out_pass()
            self._consumption.leave_out_pass()
        self._interruptions.note_pass()

    def epoch_started(self, loader: TrackedLoader) -> None:
        if not loader.is_other and not self._state.aside:
            self._settle()
            clock, over = self._timer.clock, self._epoch_over
            self._epoch_over = False
            if over and clock.phase == OTHER:
                clock.relabel(AWAY)  # a loop that fetches ahead kept training after the end
            clock.note_epoch_start()

    def epoch_ended(self, loader: TrackedLoader) -> None:
        if not loader.is_other:
            aside = self._state.aside
            if not aside:
                self._settle()
            self._consumption.end_epoch(loader.mark, trained=self._state.backwards > 0)
            self._epoch_over = True
            if not aside:
                self._timer.clock.note_epoch_end()

    def workers_ending(self, loader: TrackedLoader) -> None:
        if not loader.is_other and not self._state.aside:
            self._settle()
            self._before_end.append(self._timer.clock.phase)
            self._timer.clock.note_workers_end()

    def workers_ended(self, loader: TrackedLoader) -> None:
        if self._before_end and not loader.is_other and not self._state.aside:
            self._timer.clock.switch(self._before_end.pop())

    # ------------------------------------------------------------------ model, backward, step

    def module_called(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        clock, consumption = self._timer.clock, self._consumption
        if self._interruptions.calls:
            self._interruptions.end_look()
        if clock.phase == AWAY and consumption.untouched:
            clock.relabel(DATA)  # this batch was not fetched for an evaluation
        if clock.phase in (OTHER, DATA, OPTIMIZER, AWAY, TURNOVER):
            clock.switch(FORWARD)
        consumption.trained = True

    def evaluated(self, entry: Entry, args: tuple[Any, ...]) -> None:
        self._consumption.evaluated = True
        self._interruptions.note_gradless_call()

    def other_evaluated(self) -> None:
        self._consumption.evaluated = True

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        clock, consumption = self._timer.clock, self._consumption
        if self._interruptions.calls:
            self._interruptions.end_look()
        consumption.trained = True
        if clock.phase == OTHER and not self._state.training_called and not consumption.batches:
            # a job without loader and modules: everything before backward is forward
            clock.relabel(FORWARD)
        clock.switch(BACKWARD)

    def backward_ended(self) -> None:
        self._timer.clock.switch(OPTIMIZER if self._state.in_step else OTHER)

    def step_started(self, optimizer: Any) -> None:
        self._timer.clock.switch(OPTIMIZER)

    def step_ended(self, optimizer: Any, ends_iteration: bool) -> None:
        if not ends_iteration:
            self._timer.clock.switch(OTHER)

    # ------------------------------------------------------------------ iterations

    def iteration_ending(self, iteration: Iteration, samples: float | None) -> None:
        interruptions, clock = self._interruptions, self._timer.clock
        if interruptions.calls:
            interruptions.end_look()
        iteration.wall, iteration.spent = clock.cut()
        iteration.counted = clock.counted
        trained = self._consumption.take(interruptions)
        if self.loaders.choice.cycled:
            # soon the job trains on batches that it has kept, whose samples no one sees
            trained = trained._replace(counted=False, first_fetched_ahead=0.0)
        self._samples.add(iteration, trained, samples)
        if trained.in_turn:
            interruptions.note_turn()
        if interruptions.noted:
            iteration.interrupted = interruptions.end_iteration()

    def started_over(self) -> None:
        self._samples.start_over()
        if self._state.ends_with is Ending.MARK:
            self._consumption.start_over()
        else:
            self._consumption.go_on_with_first()
