"""Gradients clipped, unscaled or dropped by the job: where batches are computed together, those of all batches so far must be there by then."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.base import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent

FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm")


def install(patches: PatchSet, torch: Any, agent: Agent) -> None:
    """Tell the agent before gradients are used. A job that imports the functions by name has these: we come first."""

    def make(what: str) -> Callable[[Patch, Any], Any]:
        def make(patch: Patch, original: Any) -> Any:
            @functools.wraps(original)
            def use(*args: Any, **kwargs: Any) -> Any:
                if patch.active and agent.live.micro is not None:
                    agent.live.micro.before_gradients_are_used(what)
                return original(*args, **kwargs)

            return use  # dynamo may trace it: a job that clips in a function of its own, compiled as one graph, gets one

        return make

    for name in FUNCTIONS:
        if hasattr(torch.nn.utils, name):
            patches.add(f"utils.{name}", torch.nn.utils, name, make("clips"))
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        patches.add(f"{owner.__name__}.zero_grad", owner, "zero_grad", make("drops"))
    patches.add("GradScaler.unscale_", torch.amp.GradScaler, "unscale_", make("unscales"))  # its step calls it, too
