"""What the agent observed while watching a few dozen iterations: facts tied to lines of the job's
code, without judgement.

    profile run   │ warm-up │ profiled: profile_steps │ watched: watch_steps iterations, watch_seconds │
                              operators, timeline       calls, samples, pauses, compiles

None of these observers runs while iterations are timed. The tuner's rules
(:mod:`autotune.findings`) turn the evidence into findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """A line of the job's own code; of a library if no frame of the job is on the stack."""

    file: str  # as Python reports it: usually absolute
    line: int
    function: str = ""
    code: str = ""  # the line itself, stripped; "" if it cannot be read
    own: bool = True  # False: a library's line (site-packages, the standard library)


@dataclass(frozen=True)
class Calls:
    """Calls of one kind made from one line during the watched iterations."""

    # "item", "cpu", "numpy", "tolist", "bool", "print", "tensor_from_array", "made_on_host",
    # "file_write", "optimizer" …
    kind: str
    place: Place
    count: int
    seconds: float  # host time, summed over the outermost calls
    iterations: tuple[int, ...] = ()  # indexes of the watched iterations with such a call
    detail: str = ""  # of the first call, e.g. "float32[64, 3, 224, 224]"
    device: str = ""  # device of the tensor: "cpu", "cuda"; "" if there is no tensor
    nbytes: int = 0  # total bytes moved or copied
    phase: str = ""  # phase the calls were made in: one of protocol.PHASES, or "away"
    each_s: tuple[float, ...] = ()  # seconds in each of ``iterations``
    # first and last line of the statement; for a file opened in a ``with``, of the whole block
    lines: tuple[int, int] = (0, 0)
    # made by that line itself; False: by a library that it calls (``trainer.train()``)
    direct: bool = True
    noting_s: float = 0.0  # total time that noting the calls took, which their line's time includes


@dataclass(frozen=True)
class Transfer:
    """Host-to-device copies made from one line."""

    place: Place
    nbytes: int  # total
    seconds: float  # total time the host waited for them
    pinned: bool = False
    non_blocking: bool = False


@dataclass(frozen=True)
class Frames:
    """Where a sampler, running every few milliseconds, found the training thread."""

    iteration: int  # index of the watched iteration
    phase: str  # one of protocol.PHASES, or "away"
    place: Place  # innermost frame of the job's own code, else the innermost frame
    seconds: float  # number of samples times the sampling interval
    leaf: str = ""  # "module.function" of the innermost frame


@dataclass(frozen=True)
class Pause:
    """Garbage collections of one generation on the training thread, per iteration and line."""

    iteration: int
    seconds: float  # total
    generation: int
    place: Place | None = None  # the line of the job that they interrupted
    count: int = 1
    longest_s: float = 0.0


@dataclass(frozen=True)
class GraphBreak:
    """Why dynamo broke its graph or recompiled."""

    kind: str  # "break", "recompile"
    reason: str  # dynamo's own message, one line
    place: Place | None
    count: int
    seconds: float = 0.0  # spent recompiling while watched


@dataclass(frozen=True)
class Evidence:
    """Everything one rank observed. Tuples are empty if nothing happened; ``blind`` names what
    could not be watched.
    """

    times_s: tuple[float, ...] = ()  # one per watched iteration, as PhaseClock measures it
    phase_times_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    calls: tuple[Calls, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    frames: tuple[Frames, ...] = ()
    pauses: tuple[Pause, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    # class, tensors, place, and the result of trying them out
    optimizers: tuple[Mapping[str, Any], ...] = ()
    # training DataLoader: place, num_workers, pin_memory …
    loader: Mapping[str, Any] = field(default_factory=dict)
    # entry modules: dtypes of the parameters
    models: tuple[Mapping[str, Any], ...] = ()
    world_size: int = 1
    # time in collective operations, one per iteration; () if not distributed
    communication_s: tuple[float, ...] = ()
    blind: Mapping[str, str] = field(default_factory=dict)  # what was not watched -> why
    # time the training thread was runnable but had no core, one per iteration; 0.0 if unknown
    queued_s: tuple[float, ...] = ()
    fetching_s: float = 0.0  # total time workers spent fetching batches; 0 without workers
    decoding_s: float = 0.0  # part of fetching_s that PIL spent decoding JPEG images
    # padding tokens and all tokens of the batches, according to their attention_mask
    padding: tuple[int, int] = (0, 0)
