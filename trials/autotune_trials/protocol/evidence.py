"""What the agent saw while it watched a few dozen iterations closely: facts with a place in the
job's code, no judgement.

    profile run   │ warm-up │ profiled: profile_steps │ watched: watch_steps iterations, watch_seconds │
                              operators, timeline       calls, samples, pauses, compiles

Nothing of this is ever on while an iteration is timed. The tuner's rules (:mod:`autotune.findings`)
make findings of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """A line of the job's own code, or of a library the job calls where none of its own is on the
    stack.
    """

    file: str  # as Python knows it: usually absolute
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
    seconds: float  # total of the outermost calls, as the host saw it
    iterations: tuple[int, ...] = ()  # indexes of the watched iterations in which it happened
    detail: str = ""  # e.g. "float32[64, 3, 224, 224]" of the first
    device: str = ""  # of the tensor: "cpu", "cuda"; "" if there is none
    nbytes: int = 0  # moved or copied in all
    phase: str = ""  # of protocol.PHASES, or "away", in which the calls were made
    each_s: tuple[float, ...] = ()  # seconds in each of ``iterations``
    # first and last line of the statement; of a file opened in a ``with``, the whole block
    lines: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Transfer:
    """Copies from host to device made from one line."""

    place: Place
    nbytes: int  # in all
    seconds: float  # the host waited in them, in all
    pinned: bool = False
    non_blocking: bool = False


@dataclass(frozen=True)
class Frames:
    """Where the training thread was seen standing, by a sampler that looks every few milliseconds."""

    iteration: int  # index of the watched iteration
    phase: str  # of protocol.PHASES, or "away"
    place: Place  # innermost frame of the job's own code, else the innermost
    seconds: float  # samples times their distance
    leaf: str = ""  # "module.function" of the innermost frame of all


@dataclass(frozen=True)
class Pause:
    """Garbage collections of one generation on the training thread, in one iteration at one line."""

    iteration: int
    seconds: float  # in all
    generation: int
    place: Place | None = None  # of the job's own line that they interrupted
    count: int = 1
    longest_s: float = 0.0


@dataclass(frozen=True)
class GraphBreak:
    """Why dynamo left its graph, or compiled again."""

    kind: str  # "break", "recompile"
    reason: str  # dynamo's own words, one line
    place: Place | None
    count: int
    seconds: float = 0.0  # of compiling it again, while watched


@dataclass(frozen=True)
class Evidence:
    """Everything one rank saw. Lists are empty where nothing happened; what could not be watched is
    named in ``blind``.
    """

    times_s: tuple[float, ...] = ()  # one a watched iteration, as PhaseClock has it
    phase_times_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    calls: tuple[Calls, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    frames: tuple[Frames, ...] = ()
    pauses: tuple[Pause, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    # class, tensors, place, and what a trial of them gave
    optimizers: tuple[Mapping[str, Any], ...] = ()
    # place, num_workers, pin_memory … of the training DataLoader
    loader: Mapping[str, Any] = field(default_factory=dict)
    # entry modules: dtypes of the parameters
    models: tuple[Mapping[str, Any], ...] = ()
    # device_used_gib, device_total_gib, host_used_gib, host_total_gib
    memory: Mapping[str, float] = field(default_factory=dict)
    world_size: int = 1
    # in collective operations, one an iteration; () if not distributed
    communication_s: tuple[float, ...] = ()
    blind: Mapping[str, str] = field(default_factory=dict)  # what was not watched -> why
    # the training thread was ready to run and had no core, one an iteration; () if not known
    queued_s: tuple[float, ...] = ()
    # frequency governors of the CPUs this process may use; () where there is no cpufreq
    governors: tuple[str, ...] = ()
    fetching_s: float = 0.0  # that workers took to fetch batches, in all; 0 without workers
    decoding_s: float = 0.0  # of it: PIL decoding JPEG pictures
    # padded and all tokens of the batches, by their attention_mask
    padding: tuple[int, int] = (0, 0)
