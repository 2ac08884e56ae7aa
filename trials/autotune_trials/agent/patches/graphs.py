"""The end of a capture: until then the agent keeps away from the device, and by then it knows what the job has captured."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.base import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


def install(patches: PatchSet, torch: Any, agent: Agent) -> None:
    """Listen to ``CUDAGraph.capture_end``, which ``torch.cuda.graph`` and ``make_graphed_callables`` call, too."""

    def make(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def capture_end(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if patch.active:
                agent.after_capture()

        return capture_end

    patches.add("CUDAGraph.capture_end", torch.cuda.CUDAGraph, "capture_end", make)
