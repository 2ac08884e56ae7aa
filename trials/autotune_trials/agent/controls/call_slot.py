"""The slot in which the agent sits in the job's modules: ``_compiled_call_impl``.

``Module.__call__`` checks it first, and torch itself leaves it out of copies and pickles (EMA
copies, ``torch.save(model)``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.patch_set import UNTRACED

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

SLOT = "_compiled_call_impl"
# Patches dynamo must not trace. Those of ``Tensor`` stay: writing to that class in every compiled
# call would cost all later look-ups in it, and they let fake tensors through.
TRACED = ("Module.__call__", "autocast.__enter__")


class SlotCall:
    """What ``Module.__call__`` finds in the slot. Copied or pickled it becomes None, the slot's
    default.
    """

    _torchdynamo_disable = True
    _torchdynamo_disable_msg = UNTRACED

    def __init__(self, live: LiveJobControl) -> None:
        self._patches, self._state, self._loop = live.patches, live.state, live.loop
        self._computes_gradients = live.torch.is_grad_enabled
        self._anything_trainable = live.anything_trainable
        self._exporting = live.torch.compiler.is_dynamo_compiling
        self._tracing = live.torch.jit.is_tracing

    def _clone(self, module: Any) -> Any | None:
        """The called module if it is a clone that shares this slot because it was made from the
        module's ``__dict__`` (learn2learn, DataParallel); else None.
        """
        if self._exporting():  # torch.export traces this and cannot handle a frame
            return None
        called: Any = sys._getframe(2).f_locals.get("self")
        return called if called is not module and getattr(called, SLOT, None) is self else None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()
