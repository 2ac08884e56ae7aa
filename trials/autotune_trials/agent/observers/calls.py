"""Watches notable calls made from the job's own lines on the training thread.

    readouts      tensors turned into Python numbers, lists, arrays, text; explicit waits for the device
    copies        tensors made of arrays and lists, tensors made on the host and then moved, moves to the device
    casts         half precision raised to float32
    collectives   exchanges between ranks
    outputs       prints, log lines, files written, garbage collections that the job requests

Only the outermost call counts: a ``print`` of a tensor is one print, not the forty calls that
format it.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune_trials.agent.observers.observer import Observer
from autotune_trials.agent.observers.places import Spot
from autotune_trials.agent.patches.patch_set import UNTRACED, Patch, untraced
from autotune_trials.measure.clock import NAMES
from autotune_trials.protocol.evidence import Calls

if TYPE_CHECKING:
    from autotune_trials.agent.observers.watch import Watch

PREFIX = "watching "  # prefix of our patches' names


class About(NamedTuple):
    """What a call was, as far as its arguments and result show."""

    kind: str
    device: str = ""
    detail: str = ""
    nbytes: int = 0


class Origin(NamedTuple):
    """Where a call comes from."""

    spot: Spot  # the innermost line of the job
    direct: bool  # made by that line itself, not by a library that it calls


# (args, kwargs, result); returns None if of no interest
Describe = Callable[[tuple[Any, ...], dict[str, Any], Any], "About | None"]


@dataclass
class Tally:
    """Calls of one kind from one line in one phase."""

    about: About
    origin: Origin
    phase: int
    count: int = 0
    nbytes: int = 0
    each_s: dict[int, float] = field(default_factory=dict)  # iteration -> seconds
    noting_s: float = 0.0  # what it took us to note them


class CallObserver(Observer):
    """The machinery for watching calls; :class:`.all_calls.AllCalls` adds the calls in its
    ``begin``.
    """

    name = "calls"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._thread = threading.get_ident()
        self._inside = False
        self.last_s = 0.0  # duration of the call being described
        self._direct = True  # whether the job itself made it
        self._tallies: dict[tuple[str, str, int, int, bool, int, str], Tally] = {}
        self._names: list[str] = []
        self._at_end: list[Callable[[], dict[str, Any]]] = []
        self.blind: dict[str, str] = {}

    def finish(self) -> dict[str, Any]:
        self.agent.patches.restore(*reversed(self._names))
        fields: dict[str, Any] = {
            "calls": tuple(self._calls(t) for t in self._tallies.values()),
            "blind": self.blind,
        }
        for more in self._at_end:
            fields.update(more())
        return fields

    # ------------------------------------------------------------ used by the kinds of calls

    def watch_calls(
        self,
        owner: Any,
        attribute: str,
        describe: Describe,
        of_tensor: bool = False,
        internal: bool = True,
    ) -> None:
        """Time ``owner.attribute``. Does nothing if this torch or library has no such function.

        Args:
            of_tensor: a method of Tensor. torch passes methods to ``__torch_function__`` of Tensor
                subclasses by looking them up in the class, and some subclasses compare them: they
                must find torch's own.
            internal: also watch calls that no job can change: torch's bookkeeping, and the agent's.
        """
        if getattr(owner, attribute, None) is None:
            return
        name = f"{PREFIX}{getattr(owner, '__name__', owner)}.{attribute}"
        self._names.append(name)
        plain = (self.torch.Tensor, self.torch.nn.Parameter) if of_tensor else ()

        def make(patch: Patch, original: Any) -> Any:
            def watched(*args: Any, **kwargs: Any) -> Any:
                if (
                    self._inside
                    or not patch.active
                    or threading.get_ident() != self._thread
                    or self.agent.state.stopped
                ):
                    return original(*args, **kwargs)
                self._inside = True
                began = perf_counter()
                try:
                    if of_tensor and type(args[0]) not in plain:
                        with self.agent.patches.suspended(name):
                            result = original(*args, **kwargs)
                    else:
                        result = original(*args, **kwargs)
                finally:
                    seconds = perf_counter() - began
                    self._inside = False
                caller = sys._getframe(1).f_code.co_filename
                if internal or not self.watch.places.internal(caller):
                    self._note(describe, args, kwargs, result, seconds, caller)
                return result

            return untraced(watched, UNTRACED)

        self.agent.patches.add(name, owner, attribute, make)

    def add(self, about: About, origin: Origin, seconds: float) -> Tally:
        phase = self.agent.timer.clock.phase
        (code, line), direct = origin
        # a line may write several files; numbered ones count as one
        what = re.sub(r"\d+", "#", about.detail) if about.kind == "file_write" else ""
        key = (about.kind, about.device, id(code), line, direct, phase, what)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(about, origin, phase)
        index = self.watch.index
        tally.count += 1
        tally.nbytes += about.nbytes
        tally.each_s[index] = tally.each_s.get(index, 0.0) + seconds
        return tally

    def at_end(self, fields: Callable[[], dict[str, Any]]) -> None:
        """Register further evidence fields, computed when the window is over."""
        self._at_end.append(fields)

    def tallies(self) -> tuple[Tally, ...]:
        """All tallies so far, for :meth:`at_end`."""
        return tuple(self._tallies.values())

    def here(self) -> Origin:
        """The job's current position."""
        return Origin(self.watch.places.spot(sys._getframe(1)), self._direct)

    # ------------------------------------------------------------------ internals

    def _note(
        self,
        describe: Describe,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        seconds: float,
        caller: str,
    ) -> None:
        if self.failure:
            return
        began = perf_counter()
        self.last_s, self._direct = seconds, self.watch.places.own(caller)
        self._inside = True  # tensor calls made from here on are ours
        try:
            about = describe(args, kwargs, result)
            if about is not None:
                tally = self.add(about, self.here(), seconds)
                tally.noting_s += perf_counter() - began
        except Exception as error:  # raised at the end of the iteration
            self.fail(error)
        finally:
            self._inside = False

    def _calls(self, tally: Tally) -> Calls:
        places, about, spot = self.watch.places, tally.about, tally.origin.spot
        return Calls(
            kind=about.kind,
            place=places.place(spot),
            count=tally.count,
            seconds=sum(tally.each_s.values()),
            iterations=tuple(tally.each_s),
            detail=about.detail,
            device=about.device,
            nbytes=tally.nbytes,
            phase=NAMES[tally.phase],
            each_s=tuple(tally.each_s.values()),
            lines=places.lines(spot, block=about.kind == "file_write"),
            direct=tally.origin.direct,
            noting_s=tally.noting_s,
        )


def bytes_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def shape_of(tensor: Any) -> str:
    """``float32[64, 3, 224, 224]``"""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
