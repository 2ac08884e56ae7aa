"""One switch in the running job, and how it is held there.

A knob of autotune_spaces says which: ``live.control("gc").set(value)``. A new one is a file in this
folder with a line in :mod:`.switches`, beside the knob's own file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from autotune_trials.agent.core.events import Listener

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl


class Control(Listener):
    """What :class:`autotune_spaces.base.Control` promises. One that acts at events listens while it
    is switched on, and no longer."""

    name: ClassVar[str]
    own: ClassVar[Any] = None  # the value that gives everything back to the job

    def __init__(self, live: LiveJobControl) -> None:
        """Nothing is touched before :meth:`set`."""
        self.live, self.torch = live, live.torch

    def set(self, value: Any) -> None:
        """Idempotent; ``own`` restores the job exactly."""
        raise NotImplementedError

    def effect(self) -> str | None:
        """Why nothing has changed since :meth:`set`, or None."""
        return None

    def listen(self, on: bool) -> None:
        """Hear of the training loop, or not."""
        if on:
            self.live.events.listen(self)
        else:
            self.live.events.forget(self)
