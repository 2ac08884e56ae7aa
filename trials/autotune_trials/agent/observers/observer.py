"""What looks at one aspect of the watched iterations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.observers.watch import Watch


class Observer(ABC):
    """One kind of evidence.

    All methods are called on the training thread. Whatever is raised ends this observer alone:
    :meth:`finish` is then called to take back what it did, its fields are dropped, and the reason
    goes to ``Evidence.blind``.
    """

    name: ClassVar[str]  # in ``blind``, in a reader's words: "calls"

    def __init__(self, watch: Watch) -> None:
        """``watch``: the :class:`~autotune_trials.agent.observers.watch.Watch`, with ``agent``,
        ``torch``, ``places`` and ``index`` (of the iteration that is running). Nothing is touched
        before :meth:`begin`."""
        self.watch, self.agent, self.torch = watch, watch.agent, watch.torch

    def begin(self) -> None:
        """The watched window begins; may take milliseconds, they are no part of any iteration."""

    def end_iteration(self, iteration: Iteration) -> None:
        """An iteration (:class:`autotune_trials.agent.core.iteration.Iteration`) has ended. Some
        microseconds at most: this is part of the next one."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """The window is over: take everything back first, then return fields of ``Evidence``.
        ``blind`` adds to what the others could not see. Must work after a :meth:`begin` that failed
        half-way."""
