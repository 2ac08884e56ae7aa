"""``torch.jit.script`` reads all that a module holds, and cannot read the agent's objects."""

from __future__ import annotations

from typing import Any

from autotune_trials.agent.controls.call_slot import SLOT, SlotCall
from autotune_trials.agent.patches.patch_set import Patch, PatchSet


def install(patches: PatchSet, torch: Any) -> None:
    """Take the agent's objects out of a module's slots while it is scripted."""

    def make_script(patch: Patch, original: Any) -> Any:
        def script(
            obj: Any, optimize: Any = None, _frames_up: int = 0, *args: Any, **kwargs: Any
        ) -> Any:
            taken = []
            if isinstance(obj, torch.nn.Module):
                slots = ((vars(module), vars(module).get(SLOT)) for module in obj.modules())
                taken = [(held, call) for held, call in slots if isinstance(call, SlotCall)]
            for held, _ in taken:
                del held[SLOT]
            try:
                # names are looked up in the frame that calls
                return original(obj, optimize, _frames_up + 1, *args, **kwargs)
            finally:
                for held, call in taken:
                    held[SLOT] = call

        return script

    patches.add("jit.script", torch.jit, "script", make_script)
