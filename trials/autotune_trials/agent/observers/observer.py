"""The base class for observers: each looks at one aspect of the watched iterations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from autotune_trials.agent.bootstrap.log import write_exception

if TYPE_CHECKING:
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.observers.watch import Watch


class Observer(ABC):
    """One kind of evidence.

    All methods are called on the training thread. An exception ends only this observer:
    :meth:`finish` is then called to undo what it did, its fields are dropped, and the reason goes
    to ``Evidence.blind``.
    """

    name: ClassVar[str]  # shown to readers in ``blind``: "calls"

    def __init__(self, watch: Watch) -> None:
        """``watch``: the :class:`~autotune_trials.agent.observers.watch.Watch`, with ``agent``,
        ``torch``, ``places`` and ``index`` (of the running iteration). Touches nothing before
        :meth:`begin`.
        """
        self.watch, self.agent, self.torch = watch, watch.agent, watch.torch
        # an error where none may be raised, in the job's own call or another thread
        self.failure = ""

    def begin(self) -> None:
        """The watched window begins. May take milliseconds, which are not part of any iteration."""

    def end_iteration(self, iteration: Iteration) -> None:
        """An iteration (:class:`autotune_trials.agent.core.iteration.Iteration`) has ended. Take a
        few microseconds at most: they are part of the next one.
        """
        if self.failure:
            raise RuntimeError(self.failure)

    def fail(self, error: Exception) -> None:
        """Log ``error``, which ends this observer when the iteration ends."""
        write_exception(f"watching {self.name}")
        self.failure = f"{type(error).__name__}: {error}"

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """The window is over: undo everything first, then return fields of ``Evidence``. ``blind``
        adds to what the other observers could not see. Must work after a :meth:`begin` that failed
        half-way.
        """
