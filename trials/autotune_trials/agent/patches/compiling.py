"""What the job already does itself: ``torch.compile`` and gradient scaling."""

from __future__ import annotations

import functools
from typing import Any

from autotune_trials.agent.patches.base import Patch, PatchSet


def install(patches: PatchSet, torch: Any, agent: Any) -> None:
    """Watch ``torch.compile`` and the construction of a GradScaler."""

    def make_compile(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not patch.active or model is None:
                return original(model, *args, **kwargs)
            agent.before_own_compile(model)
            compiled = original(model, *args, **kwargs)
            agent.after_own_compile(compiled)
            return compiled

        return compile

    def make_scaler(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if patch.active and self.is_enabled():
                agent.own_scaler = True

        return __init__

    patches.add("torch.compile", torch, "compile", make_compile)
    patches.add("GradScaler.__init__", torch.amp.GradScaler, "__init__", make_scaler)
