"""Optimizers: which there are, and when they step."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.base import Patch, PatchSet, untraced

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


def install(patches: PatchSet, torch: Any, agent: Agent) -> None:
    """Note every optimizer built, and listen to every step through torch's own global hooks."""

    def make_init(patch: Patch, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if patch.active:
                agent.on_optimizer(self, sys._getframe(1))

        return __init__

    patches.add("Optimizer.__init__", torch.optim.Optimizer, "__init__", make_init)
    hooks = sys.modules["torch.optim.optimizer"]  # torch.optim has a name of its own for it, and deletes it
    before = hooks.register_optimizer_step_pre_hook(untraced(lambda *call: agent.before_step(*call)))
    after = hooks.register_optimizer_step_post_hook(untraced(lambda *call: agent.after_step(*call)))

    def remove() -> None:
        # torch walks the hooks while it calls us: inside a step they stay, and do nothing once the agent has stopped
        if not agent.in_step:
            before.remove()
            after.remove()

    patches.on_restore(remove)
