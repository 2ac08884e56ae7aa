"""Copies of tensors to the GPU: they are timed, and knobs change them."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.cuda_prefetch import CudaPrefetch
from autotune_trials.agent.controls.non_blocking import NonBlocking
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.patches import transfer
from autotune_trials.protocol.messages import SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.events import GivenBatch
    from autotune_trials.agent.facts.call_sites import SiteRecorder


class Transfers(Listener):
    """Hooks the copies once the job is known to train on a GPU, if they are measured or changed."""

    def __init__(self, live: LiveJobControl, sites: SiteRecorder) -> None:
        self._live, self._sites = live, sites
        self._non_blocking, self._prefetch = live.get(NonBlocking), live.get(CudaPrefetch)
        if not sites.open:
            live.events.forget(self, "batch_given")

    def device_found(self, device: Any) -> None:
        changed = self._non_blocking.wanted is not None or self._prefetch.prefetch is not None
        if device.type == "cuda" and (self._live.config.mode != SessionMode.LAUNCH or changed):
            transfer.install(self._live.patches, self._live.torch, self)

    def batch_given(self, given: GivenBatch) -> None:
        if not self._sites.open or self._live.device == "cpu":
            self._live.events.forget(self, "batch_given")
            return
        with contextlib.suppress(Exception):  # whatever a batch of the job's own raises
            self._non_blocking.note(given.batch)

    def copy(
        self, original: Any, method: str, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Carry out the job's call of ``original``, torch's own ``method``, and return its result:
        a copy of a host tensor on the device."""
        timer, moved = self._live.timer, None
        before: int | None = None
        try:
            if self._sites.open:
                self._sites.on_transfer(sys._getframe(1), self._may_be_refilled(tensor))
            wanted = self._non_blocking.wanted_for(tensor)
            if wanted is not None:
                flagged = transfer.with_flag(args, kwargs, wanted)
                self._non_blocking.used |= flagged != (args, kwargs)
                args, kwargs = flagged
            before = timer.begin_transfer()
            if self._prefetch.prefetch is not None:
                moved = self._made_ahead(method, tensor, args, kwargs)
        except Exception:
            self._live.loop.fail(f"Tensor.{method}")
        try:
            return original(tensor, *args, **kwargs) if moved is None else moved
        finally:
            if before is not None:
                timer.end_transfer(before)

    def _may_be_refilled(self, tensor: Any) -> bool:
        try:
            return bool(tensor.is_pinned()) and not self._non_blocking.was_given(tensor)
        except Exception:  # a class of the job's own
            return False

    def _made_ahead(
        self, method: str, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any | None:
        """What the call would return, if it is a plain copy that was made ahead; else None."""
        prefetch, torch = self._prefetch.prefetch, self._live.torch
        assert prefetch is not None
        if type(tensor) is not torch.Tensor:  # a subclass may give its copies a class of their own
            return None
        positional = ("device",) if method == "to" else ("device", "non_blocking")
        call = {**dict(zip(positional, args, strict=False)), **kwargs}
        if len(args) > len(positional) or not call.keys() <= {"device", "non_blocking"}:
            return None
        target = call.get("device", "cuda")
        if isinstance(target, torch.Tensor):  # its dtype may differ
            return None
        number = isinstance(target, int)
        device = torch.device("cuda", target) if number else torch.device(target or "cuda")
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return prefetch.take(tensor, device, bool(call.get("non_blocking")))
