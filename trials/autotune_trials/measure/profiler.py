"""A torch.profiler window over a few iterations, written as a gzipped Chrome trace. What it means
is read from the trace, in the tuner.

    profiled: shapes, types, phases            stacks: Python frames and memory as well, in a process of its own

Python frames make every operator some microseconds slower, so they have a window apart from the one
whose times are read. It has a process
of its own, which ends with it: torch's recording of Python frames and of memory may corrupt the
memory of its process (seen with torch 2.13 on
Python 3.11: frames lost, crashes in a later garbage collection; pytorch/pytorch#94013, #121219
report the like).
"""

from __future__ import annotations

import os
from typing import Any

STACK_STEPS = 3  # iterations with Python frames, for a person to look at


class ProfileWindow:
    """torch.profiler between :meth:`start` and :meth:`stop`. Phases show up in the trace as
    ``autotune::<phase>``.
    """

    def __init__(self, torch: Any, path: str, stacks: bool = False) -> None:
        """``path``: where the trace goes, ending in .json.gz. ``stacks``: with Python frames."""
        self.path = path
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        # with a schedule, even this one, the trace names the iterations
        record = profiler.ProfilerAction.RECORD
        self._profile = profiler.profile(
            activities=activities,
            schedule=lambda _: record,
            record_shapes=True,
            profile_memory=stacks,
            with_stack=stacks,
        )

    def start(self) -> None:
        self._profile.start()

    def step(self) -> None:
        """Mark the end of an iteration in the trace (``ProfilerStep#n``)."""
        self._profile.step()

    def stop(self) -> str:
        """End the window and write the trace; returns its path."""
        self._profile.stop()
        temporary = f"{self.path[: -len('.json.gz')]}.{os.getpid()}.json.gz"
        self._profile.export_chrome_trace(temporary)  # may be called once only
        os.replace(temporary, self.path)
        return self.path
