"""Optimizers: which ones exist, and when they step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.patch_set import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.core.training_loop import TrainingLoop

STEPS = "optimizer steps"


def install(patches: PatchSet, torch: Any, loop: TrainingLoop) -> None:
    """Note every optimizer built, and listen to every step."""

    def make_init(patch: Patch, original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            if not patch.active:
                original(self, *args, **kwargs)
                return
            args, kwargs = _listed(args, kwargs)
            rates = _have_rates(args[0] if args else kwargs.get("params"))
            original(self, *args, **kwargs)
            loop.tell("optimizer_built", self, sys._getframe(1), rates)

        return __init__

    patches.add("Optimizer.__init__", torch.optim.Optimizer, "__init__", make_init)
    listen_to_steps(patches, loop)


def _listed(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with an iterator of parameters as a list, as torch makes one."""
    if args and isinstance(args[0], Iterator):
        return (list(args[0]), *args[1:]), kwargs
    if isinstance(kwargs.get("params"), Iterator):
        return args, {**kwargs, "params": list(kwargs["params"])}
    return args, kwargs


def _have_rates(params: Any) -> bool:
    """Whether a parameter group states its learning rate; afterwards torch has filled it in."""
    return isinstance(params, list | tuple) and any(
        isinstance(group, dict) and "lr" in group for group in params
    )


def listen_to_steps(patches: PatchSet, loop: TrainingLoop) -> None:
    """Listen through torch's own global hooks. Idempotent."""
    # looked up by name: torch.optim deletes its attribute ``optimizer``
    hooks = sys.modules["torch.optim.optimizer"]
    if STEPS in patches:
        return
    before = hooks.register_optimizer_step_pre_hook(loop.start_step)
    after = hooks.register_optimizer_step_post_hook(loop.end_step)

    def remove() -> None:
        # torch iterates over the hooks while it calls us: inside a step they stay, and do nothing
        # once the agent has stopped
        if not loop.state.in_step:
            before.remove()
            after.remove()

    patches.on_restore(remove, STEPS)
