"""A torch.profiler window over a few iterations, written as a gzipped Chrome trace, which the tuner
analyses.

    profiled: shapes, types, phases            stacks: also Python frames and memory, in a separate process

Recording Python frames makes every operator some microseconds slower, so they get a separate window
from the one whose times are read. That window has its own process, which ends with it, because
torch's recording of Python frames and memory may corrupt the memory of its process (seen with torch
2.13 on Python 3.11: lost frames, crashes in a later garbage collection; pytorch/pytorch#94013 and
#121219 report similar problems).
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

STACK_STEPS = 3  # iterations with Python frames, for people to look at


class ProfileWindow:
    """Runs torch.profiler between :meth:`start` and :meth:`stop`. Phases appear in the trace as
    ``autotune::<phase>``.
    """

    def __init__(self, torch: Any, path: str, stacks: bool = False, device: Any = None) -> None:
        """``path``: path of the trace, ending in .json.gz. ``stacks``: record Python frames.
        ``device``: the GPU that the job trains on, for whose work the profiler waits.
        """
        self.path = path
        self._on_device = torch.cuda.device(device) if device is not None else nullcontext()
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        # the trace names iterations only if there is a schedule, even a trivial one
        record = profiler.ProfilerAction.RECORD
        self._profile = profiler.profile(
            activities=activities,
            schedule=lambda _: record,
            record_shapes=True,
            profile_memory=stacks,
            with_stack=stacks,
        )

    def start(self) -> None:
        with self._on_device:
            self._profile.start()

    def step(self) -> None:
        """Mark the end of an iteration in the trace (``ProfilerStep#n``)."""
        self._profile.step()

    def stop(self) -> str:
        """End the window and write the trace; returns its path."""
        with self._on_device:
            self._profile.stop()
        temporary = f"{self.path[: -len('.json.gz')]}.{os.getpid()}.json.gz"
        self._profile.export_chrome_trace(temporary)  # may be called once only
        os.replace(temporary, self.path)
        return self.path
