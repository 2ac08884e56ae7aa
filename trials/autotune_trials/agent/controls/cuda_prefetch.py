"""Copies the next batch to the GPU on a side stream while the job computes with the current one.

    loader         batch 1, fetched ahead: 2     job asks: batch 2, fetched ahead: 3
    side stream    copy of 2 ──── event          copy of 3 ──── event
    job's stream   forward, backward of 1 …      x.to(device): waits for that event, has the copy

Only tensors in pinned memory that the job was seen to move by a plain ``.to(device)`` or
``.cuda()`` are copied ahead. Where anything differs (another device, a conversion, a tensor changed
since), the job's own call runs as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.loop.batches import tensors_of
from autotune_trials.measure.clock import DATA, FORWARD

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.events import GivenBatch
    from autotune_trials.agent.dataloader.tracked_loader import TrackedLoader


class Copy(NamedTuple):
    """A copy, in progress or done."""

    source: Any  # on the host; held so that no other tensor gets its id
    version: int  # of the source when the copy started
    copy: Any
    done: Any  # the event recorded after the copy


class Prefetch:
    """Copies ahead for the training loader. Needs memory for one more batch, on the GPU and on the
    host.
    """

    def __init__(self, live: LiveJobControl) -> None:
        self._live, self._torch = live, live.torch
        self._stream: Any = None
        self._batch: list[Any] = []  # tensors of the job's current batch, held for their ids
        self._places: dict[int, int] = {}  # tensor id -> position in the batch
        self._moved: set[int] = set()  # positions of the tensors that the job moves
        self._current: dict[int, Copy] = {}  # source id -> its copy, for the job's current batch
        self._next: dict[int, Copy] = {}
        self._pageable = False  # a tensor to be copied ahead was not pinned
        self._used = 0  # copies handed to the job

    def effect(self) -> str | None:
        """Why the job got no copy made ahead, or None."""
        if self._used:
            return None
        if not self._moved:
            return (
                "the job never moves a batch tensor with a plain .to(device) or .cuda(), or another"
                " thread reads its loader"
            )
        if self._pageable:
            return "batches are not in pinned memory, so copies cannot overlap with computation"
        return (
            "the job modifies batches before moving them, or has moved each tensor only once so far"
        )

    def on_batch(self, loader: TrackedLoader, batch: Any) -> None:
        """The job is given ``batch``: start copying the batch after it."""
        self._batch = tensors_of(batch)
        self._places = {id(tensor): place for place, tensor in enumerate(self._batch)}
        self._current, self._next = self._next, {}
        if not self._moved:
            return
        clock = self._live.timer.clock
        clock.switch(DATA)
        for coming in loader.ahead(1):
            try:
                self._next = self._started(tensors_of(coming))
            except Exception as error:  # out of memory, most likely: the job moves it itself
                text = f"cuda_prefetch: {type(error).__name__}: {str(error)[:300]}"
                self._live.loop.fail_knob(text)
        clock.switch(FORWARD)

    def _started(self, tensors: list[Any]) -> dict[int, Copy]:
        torch, device = self._torch, self._live.cuda
        wanted = [tensors[place] for place in sorted(self._moved) if place < len(tensors)]
        plain = [t for t in wanted if type(t) is torch.Tensor and not t.requires_grad]
        pinned = [t for t in plain if t.is_pinned()]
        self._pageable = len(pinned) < len(plain)
        if not pinned:
            return {}
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        move = self._live.patches["Tensor.to"].original
        # leaving a stream sets the device it began on, and makes a context there
        with torch.cuda.device(device), torch.cuda.stream(self._stream):
            copies = [move(tensor, device, non_blocking=True) for tensor in pinned]
            done = torch.cuda.Event()
            done.record(self._stream)
        made = zip(pinned, copies, strict=True)
        return {id(tensor): Copy(tensor, tensor._version, copy, done) for tensor, copy in made}

    def take(self, tensor: Any, device: Any, non_blocking: bool) -> Any | None:
        """The copy for a job that moves ``tensor`` to ``device``; None if the job must make its
        own.
        """
        place = self._places.get(id(tensor))
        if place is None or device != self._live.cuda:
            return None
        self._moved.add(place)
        made = self._current.pop(id(tensor), None)
        if made is None or made.version != tensor._version:
            return None
        stream = self._torch.cuda.current_stream(device)
        stream.wait_event(made.done)
        made.copy.record_stream(stream)  # else the side stream may reuse its memory too soon
        if not non_blocking:
            made.done.synchronize()  # from here on the job may change the tensor
        self._used += 1
        return made.copy


class CudaPrefetch(Control):
    """Values: True, False."""

    name, own = "cuda_prefetch", False

    # set while batches are copied ahead; read by the patch on Tensor.to (patches/transfer.py)
    prefetch: Prefetch | None = None

    def set(self, value: Any) -> None:
        if value != (self.prefetch is not None):
            self.prefetch = Prefetch(self.live) if value else None
            self.listen(value)

    def effect(self) -> str | None:
        return self.prefetch.effect() if self.prefetch is not None else None

    def batch_given(self, given: GivenBatch) -> None:
        # the clock, and the batch that the job moves next, are those of the thread that trains
        loader = given.loader
        if self.prefetch is not None and loader.training and not loader.read_aside:
            self.prefetch.on_batch(loader, given.batch)
