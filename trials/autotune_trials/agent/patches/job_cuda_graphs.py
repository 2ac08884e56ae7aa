"""Detects that the job captures a CUDA graph: the agent keeps away from the device until the
capture ends, and knows by then what was captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.patch_set import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.core.training_loop import TrainingLoop


def install(patches: PatchSet, torch: Any, loop: TrainingLoop) -> None:
    """Hook the two methods of ``CUDAGraph`` that ``torch.cuda.graph`` and
    ``make_graphed_callables`` also call."""

    def make_begin(patch: Patch, original: Any) -> Any:
        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if patch.active:
                loop.begin_capture()

        return capture_begin

    def make_end(patch: Patch, original: Any) -> Any:
        def capture_end(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(self, *args, **kwargs)
            finally:
                if patch.active:
                    loop.end_capture()

        return capture_end

    patches.add("CUDAGraph.capture_begin", torch.cuda.CUDAGraph, "capture_begin", make_begin)
    patches.add("CUDAGraph.capture_end", torch.cuda.CUDAGraph, "capture_end", make_end)
