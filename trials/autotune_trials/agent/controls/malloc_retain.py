"""Makes glibc's malloc keep freed memory instead of returning it to the system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_spaces.glibc import Heap
from autotune_trials.agent.controls.control import Control

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl


class MallocRetain(Control):
    """Values: True; False restores malloc's thresholds."""

    name, own = "malloc_retain", False

    def __init__(self, live: LiveJobControl) -> None:
        super().__init__(live)
        self.heap = Heap()

    def set(self, value: Any) -> None:
        (self.heap.retain if value else self.heap.give_back)()
