"""Whether something other than training happened in an iteration: an evaluation, batches of another loader.

What happens in most iterations (a teacher, a second loader) is part of training.
"""

from __future__ import annotations

from typing import Any

USUAL_SHARE = 0.5  # what happens in more iterations than this is part of training, not an interruption


class Interruptions:
    """Of the running iteration, and in how many there were any."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._evaluated = self._other_loader = False
        self._evaluated_in = self._other_in = 0  # iterations

    @property
    def evaluates_usually(self) -> bool:
        return self._usual(self._evaluated_in)

    @property
    def other_loader_usual(self) -> bool:
        return self._usual(self._other_in)

    def note_evaluation(self) -> None:
        """A module is called without gradients or in evaluation."""
        self._evaluated = True

    def note_other_loader(self) -> None:
        """A batch is asked of another loader than the one trained on."""
        self._other_loader = True

    def note_turn(self) -> None:
        """That batch was trained on: loaders take turns."""
        self._other_loader = False

    def judge(self) -> bool:
        """The iteration ends: was it interrupted?"""
        if not (self._evaluated or self._other_loader):
            return False
        self._evaluated_in += self._evaluated
        self._other_in += self._other_loader
        interrupted = (self._evaluated and not self.evaluates_usually) or (self._other_loader and not self.other_loader_usual)
        self._evaluated = self._other_loader = False
        return interrupted

    def _usual(self, count: int) -> bool:
        return count > USUAL_SHARE * max(1, self._agent.iterations)
