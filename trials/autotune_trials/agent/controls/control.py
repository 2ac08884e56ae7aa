"""The base class of all controls: one switch in the running job.

A knob in autotune_spaces names its control: ``live.control("gc").set(value)``. A new control is a
file in this folder with a line in :mod:`.switches`, plus the knob's own file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from autotune_trials.agent.core.events import Listener

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl


class Control(Listener):
    """Implements :class:`autotune_spaces.base.Control`. A control that acts on events listens only
    while switched on.
    """

    name: ClassVar[str]
    own: ClassVar[Any] = None  # the value that restores the job's own setting

    def __init__(self, live: LiveJobControl) -> None:
        """Touches nothing before :meth:`set`."""
        self.live, self.torch = live, live.torch

    def set(self, value: Any) -> None:
        """Idempotent; ``own`` restores the job exactly."""
        raise NotImplementedError

    def effect(self) -> str | None:
        """Why nothing has changed since :meth:`set`, or None."""
        return None

    def listen(self, on: bool) -> None:
        """Start or stop listening to the training loop."""
        if on:
            self.live.events.listen(self)
        else:
            self.live.events.forget(self)
