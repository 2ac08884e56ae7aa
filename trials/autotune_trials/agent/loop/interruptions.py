"""Whether something other than training happened in an iteration: an evaluation, batches of another
loader.

What happens in most iterations (a second loader, a look at a batch before it is trained on) is part
of training, unless there is many times more of it than usual: a whole evaluation is not, whatever
the loop does with single batches. Often this is known only afterwards; the time is then taken back.

    batch │ model(x) without gradients │ model(x) ── backward │ step      a look: the batch is trained on
    batch │ model(x) without gradients │ batch │ model(x) …               an evaluation: the batch is not
          └──────── taken back ────────┘
    step  │ model(x) model(x) model(x) … without gradients │ …            a rollout: data from no loader
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from autotune_trials.measure.clock import AWAY, DATA, Mark

if TYPE_CHECKING:
    from autotune_trials.agent.core.loop_state import LoopState
    from autotune_trials.agent.loop.timer import Timer

# what happens in more iterations than this is part of training, not an interruption
USUAL_SHARE = 0.5
EXCESS = 4.0  # more than this many times the usual number in one iteration is an interruption
REMEMBERED = 31  # iterations from which the usual number is taken


class Habit:
    """One activity that is not training, counted per iteration: is it usual, and is its count as
    usual?
    """

    def __init__(self, state: LoopState) -> None:
        self._state = state
        self.now = 0  # times in the running iteration
        self._iterations = 0  # iterations in which it happened
        self._counts: deque[int] = deque(maxlen=REMEMBERED)
        self._most = float("inf")  # highest count per iteration that is still usual

    @property
    def usual(self) -> bool:
        return self._iterations > USUAL_SHARE * max(1, self._state.iterations)

    @property
    def in_bounds(self) -> bool:
        """Whether what has happened so far is part of training."""
        return self.usual and self.now <= self._most

    def note(self, times: int = 1) -> None:
        self.now += times

    def forget(self) -> None:
        """Drop the count of the running iteration: it was something else."""
        self.now = 0

    def end_iteration(self) -> bool:
        """End an iteration in which it happened. Returns whether that interrupted the iteration."""
        self._iterations += 1
        interrupted = not self.in_bounds
        self._counts.append(self.now)
        self.now, self._most = 0, EXCESS * median(self._counts)
        return interrupted


class Interruptions:
    """Interruptions of the running iteration, and what is usual in this job."""

    def __init__(self, state: LoopState, timer: Timer) -> None:
        self._state, self._timer = state, timer
        self._looks = Habit(state)  # calls without gradients on batches that are trained on
        self._evaluated = Habit(state)  # batches used for such calls only
        self._others = Habit(state)  # batches of another loader
        self.noted = False  # anything in the running iteration
        self._habits = (self._looks, self._evaluated, self._others)
        self.calls = 0  # calls without gradients since training was last seen
        self._since: Mark | None = None  # where those calls began
        self.batch: Mark | None = None  # where the latest batch was requested
        self._pass: Mark | None = None  # where the latest pass requested its first batch

    @property
    def other_loader_counts(self) -> bool:
        """Whether batches of another loader are part of training."""
        return self._others.in_bounds

    def note_other_loader(self) -> None:
        """A batch is requested from a loader other than the one trained on."""
        self.noted = True
        self._others.note()

    def note_turn(self) -> None:
        """The other loader's batch was trained on: loaders take turns."""
        self._others.forget()

    def note_pass(self) -> None:
        """The latest batch is the first of its pass over the data."""
        self._pass = self.batch

    def note_gradless_call(self) -> None:
        """A trained model is called without gradients or in evaluation."""
        self.calls += 1
        clock = self._timer.clock
        if self._looks.usual:
            if self._since is None:
                clock.switch(clock.phase)
                self._since = clock.mark()
        elif not self._state.training_called and clock.phase != DATA:
            clock.switch(AWAY)

    def end_look(self) -> None:
        """Training goes on after calls without gradients."""
        self.noted = True
        self._looks.note(self.calls)
        since, self._since, self.calls = self._since, None, 0
        if since is not None and not self._looks.in_bounds:
            self._take_back(since)

    def leave_out_batch(self) -> bool:
        """The latest batch was used only for calls without gradients. Returns whether it is left
        out of the iteration.
        """
        self._since, self.calls = None, 0
        self.noted = True
        self._evaluated.note()
        if self.batch is None or self._evaluated.in_bounds:
            return False
        self._take_back(self.batch)
        return True

    def leave_out_pass(self) -> None:
        """A whole pass over the data was not trained on; the first batch of the next pass has just
        arrived.
        """
        self.noted = True
        self._evaluated.note()
        if self._pass is not None:
            self._timer.clock.take_back(self._pass)

    def _take_back(self, since: Mark) -> None:
        self._timer.clock.switch(AWAY)
        self._timer.clock.take_back(since)

    def end_iteration(self) -> bool:
        """Whether the iteration that has ended was interrupted."""
        self.noted = False
        verdicts = [habit.end_iteration() for habit in self._habits if habit.now]
        return any(verdicts)
