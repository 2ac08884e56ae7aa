"""The modules a job calls at top level in training, and the autocast regions it enters. Watched
only until warm-up is over, because each module call pays for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap import import_hook
from autotune_trials.agent.patches.patch_set import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.loop.module_discovery import ModuleDiscovery

CALLS = "Module.__call__"
NAMES = (CALLS, "autocast.__enter__")


def install(patches: PatchSet, torch: Any, discovery: ModuleDiscovery) -> None:
    """Notice top-level module calls, and autocast regions the job enters itself."""
    inside = threading.local()
    traced = torch.compiler.is_dynamo_compiling  # a function of the job's own, that calls modules

    def make_call(patch: Patch, original: Any) -> Any:
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if traced() or not patch.active or getattr(inside, "module", False):
                return original(self, *args, **kwargs)
            discovery.on_module(self)
            inside.module = True
            try:
                return original(self, *args, **kwargs)
            finally:
                inside.module = False

        return __call__

    def make_enter(patch: Patch, original: Any) -> Any:
        def __enter__(self: Any) -> Any:
            if not traced() and patch.active:
                discovery.on_autocast(self)
            return original(self)

        return __enter__

    call = patches.add(CALLS, torch.nn.Module, "__call__", make_call)
    patches.add("autocast.__enter__", torch.amp.autocast_mode.autocast, "__enter__", make_enter)

    def keep_original(utils: Any) -> None:
        """Dynamo goes straight to ``forward`` in modules with the ``__call__`` it found when it was
        imported.
        """
        found = utils.unpatched_nn_module_call
        if getattr(found, "__wrapped__", None) is call.original:
            utils.unpatched_nn_module_call = call.original

    import_hook.call("torch._dynamo.utils", keep_original)
