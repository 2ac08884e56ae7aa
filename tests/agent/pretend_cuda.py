"""Simulates ``torch.cuda`` with two devices, of which the second trains, on a machine without any.

Work takes no time and tensors stay on the CPU. What is modelled: every stream has its own clock, an
event is recorded on one stream, and while a graph is captured, recording, waiting and freeing
raise, as in CUDA. A copy on a side stream holds zeros until the job's stream or the host has waited
for an event after it; then it holds what the host's tensor holds at that time.
"""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import Any

PINNED = True  # batches are in pinned memory
FULL = False  # True: no memory for a copy on a side stream


class Stream:
    def __init__(self, index: int, now: Any = perf_counter) -> None:
        self.index, self.now = index, now
        self.copies: list[Any] = []  # functions that fill in the copies

    def wait_event(self, event: Any) -> None:
        event.synchronize()


class Cuda:
    """The functions the agent calls.

    ``calls``: (name, device index, result of ``seen()``) of each call, except events.
    """

    def __init__(self, seen: Any = lambda: None) -> None:
        self.seen, self.calls, self.capturing = seen, [], False
        self.copies: list[bool] = []  # for each copy to the device: was it on a side stream?
        self.not_waited_for: list[bool] = []  # non_blocking of each copy the job made
        self.lent = 0  # tensors whose memory another stream may use
        # the current stream of each device; the current device is 0
        self.streams = [Stream(0), Stream(1)]
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at, self.copies = 0.0, []  # type: ignore[var-annotated]

            def record(self, stream: Stream | None = None) -> None:
                cuda.check("record")
                self.at = (stream or cuda.streams[0]).now()
                self.copies = list((stream or cuda.streams[0]).copies)

            def synchronize(self) -> None:
                for fill in self.copies:
                    fill()

            def query(self) -> bool:
                return True

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) * 1e3

        self.Event = Event

    def check(self, name: str) -> None:
        if self.capturing:
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")

    def note(self, name: str, device: Any) -> None:
        self.check(name)
        self.calls.append((name, 0 if device is None else device.index, self.seen()))

    def current_stream(self, device: Any = None) -> Stream:
        return self.streams[0 if device is None else device.index]

    @contextmanager
    def stream(self, stream: Stream) -> Any:
        before, self.streams[stream.index] = self.streams[stream.index], stream
        try:
            yield
        finally:
            self.streams[stream.index] = before

    @contextmanager
    def device(self, device: Any) -> Any:
        yield

    def synchronize(self, device: Any = None) -> None:
        self.note("synchronize", device)

    def empty_cache(self) -> None:
        self.check("empty_cache")
        self.calls.append(("empty", 1, self.seen()))  # of all devices

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self.note("reset", device)

    def max_memory_reserved(self, device: Any = None) -> int:
        self.note("peak", device)
        return 2**30

    def is_initialized(self) -> bool:
        return self.capturing  # elsewhere torch would look for a driver

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


def install(seen: Any = lambda: None) -> Cuda:
    """Call in a job with the agent, which then sees a job that trains on cuda:1."""
    import torch

    from autotune_trials import api

    cuda = Cuda(seen)
    for name in (
        "Event",
        "current_stream",
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
        "max_memory_reserved",
        "is_initialized",
        "is_current_stream_capturing",
        "stream",
        "device",
    ):
        setattr(torch.cuda, name, getattr(cuda, name))
    torch.cuda.Stream = lambda device: Stream(device.index)  # type: ignore[assignment,misc]
    install_copies(torch, cuda)
    base: Any = torch.cuda.CUDAGraph.__mro__[1]  # from torch's extension, and empty here
    base.__new__, base.__init__ = (
        lambda cls, keep_graph=False: object.__new__(cls),
        lambda self, *args: None,
    )
    base.capture_begin = lambda self, **options: setattr(cuda, "capturing", True)
    base.capture_end = lambda self: setattr(cuda, "capturing", False)
    base.replay = lambda self: None
    api.receiver.learn_device(torch.device("cuda", 1))  # type: ignore[attr-defined]
    return cuda


def install_copies(torch: Any, cuda: Cuda) -> None:
    """Let tensors move to the device, which is the CPU."""
    own, compute = torch.Tensor.to, cuda.streams[1]

    def moved(tensor: Any, *conversion: Any) -> Any:
        side = cuda.streams[1] if cuda.streams[1] is not compute else None
        cuda.copies.append(side is not None)
        if side is None:
            return own(tensor.clone(), *conversion) if conversion else tensor.clone()
        if FULL:
            raise RuntimeError("CUDA out of memory")
        copy, waiting = torch.zeros_like(tensor), [tensor]

        def fill() -> None:
            if waiting:
                copy.copy_(waiting.pop())

        side.copies.append(fill)
        return copy

    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        first, *others = args or (kwargs.get("device"),)
        if not str(first).startswith("cuda"):
            return own(tensor, *args, **kwargs)
        cuda.not_waited_for.append(bool(kwargs.get("non_blocking")))
        return moved(tensor, *others)

    def record_stream(tensor: Any, stream: Stream) -> None:
        cuda.lent += 1

    torch.Tensor.to, torch.Tensor.cuda = (
        to,
        lambda tensor, device=None, non_blocking=False: moved(tensor),
    )
    torch.Tensor.is_pinned, torch.Tensor.record_stream = (
        lambda tensor, device=None: PINNED,
        record_stream,
    )
