"""A torch.profiler trace as a small record: iterations, phases, operators, kernels, copies.

    trace.json.gz ── 4 MiB at a time ──▶ events (only the fields used are decoded) ──▶ Trace

A trace of 200 iterations is 150 MB of JSON; decoding it whole into dictionaries would take a
gigabyte. torch writes every event on lines of its own, so the text is cut between two events and no
more than one piece is ever in memory. A trace in another layout is read as well, in one piece.
Times are seconds since the first iteration of the trace began.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

PIECE_BYTES = 1 << 22
# how torch separates two events; a newline inside a string would be escaped
BETWEEN_EVENTS = b"\n  },\n  {"
PHASE_PREFIX = "autotune::"  # see autotune_trials.measure.nvtx.ProfilerRanges
STEP_PREFIX = "ProfilerStep#"

Shape = tuple[int, ...]
DTYPES = {  # C++ names, as the trace has them
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short unsigned int": "uint16",
    "unsigned int": "uint32",
    "long unsigned int": "uint64",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    name: str
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator with its arguments, one entry per argument; identical calls share it."""

    name: str  # "aten::addmm"
    # for a list of tensors one shape each; () for other arguments
    shapes: tuple[Shape | tuple[Shape, ...], ...] = ()
    # "float32"; "list" for a list of tensors; "" for other arguments
    dtypes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # plain arguments as text: "[2, 2]", "True"; "" for tensors
    sparse: bool = False  # a tensor among them is sparse: its shape does not tell its size

    @property
    def tensors(self) -> tuple[tuple[Shape, str], ...]:
        """Shape and type of each tensor argument (scalar tensors: ``()``), without lists."""
        return tuple(
            (shape, dtype)  # type: ignore[misc]
            for shape, dtype in zip(self.shapes, self.dtypes)
            if dtype and dtype != "list"
        )


@dataclass(slots=True)
class Op:
    """One call of an operator on the host.

    Operators of a thread are nested; :attr:`Trace.ops` is sorted by start.
    """

    signature: Signature
    start_s: float
    duration_s: float
    thread: int
    self_s: float = 0.0  # without the operators it called
    parent: int = -1  # index of the operator that called it
    device_s: float = 0.0  # of the kernels it launched itself

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Kernel(Stretch):
    op: int = -1  # index of the operator that launched it; -1: unknown


@dataclass(frozen=True, slots=True)
class Copy(Stretch):
    """A copy to, from or on the device, e.g. "Memcpy HtoD (Pageable -> Device)"."""

    nbytes: int
    op: int = -1

    @property
    def to_device(self) -> bool:
        return "HtoD" in self.name


Launched = TypeVar("Launched", Kernel, Copy)


@dataclass(frozen=True)
class Trace:
    iterations: tuple[Stretch, ...] = ()  # named "0", "1" …
    phases: tuple[Stretch, ...] = ()  # named as protocol.PHASES
    ops: tuple[Op, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    copies: tuple[Copy, ...] = ()

    @property
    def on_device(self) -> bool:
        return bool(self.kernels)

    @property
    def away(self) -> tuple[Stretch, ...]:
        """When the job was not training, e.g. evaluated."""
        return tuple(phase for phase in self.phases if phase.name == "away")

    def training(self) -> Trace:
        """The trace without the operators started while the job was away, and what they launched."""
        if not self.away:
            return self

        def kept(start_s: float) -> bool:
            return not any(away.start_s <= start_s < away.end_s for away in self.away)

        places = [place for place, op in enumerate(self.ops) if kept(op.start_s)]
        moved = {-1: -1, **{place: new for new, place in enumerate(places)}}
        ops = (self.ops[place] for place in places)

        def launched(all_: Iterable[Launched]) -> tuple[Launched, ...]:
            return tuple(
                replace(each, op=moved[each.op])
                for each in all_
                if (each.op in moved if each.op >= 0 else kept(each.start_s))
            )

        return replace(
            self,
            ops=tuple(replace(op, parent=moved.get(op.parent, -1)) for op in ops),
            kernels=launched(self.kernels),
            copies=launched(self.copies),
        )


def read_trace(path: Path) -> Trace:
    """Read a Chrome trace, gzipped or not.

    Raises:
        OSError: it cannot be read.
        ValueError: it is cut off, or not a trace.
    """
    reader = _Reader()
    try:
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else open(path, "rb") as stream:
            for piece in _pieces(stream):  # type: ignore[arg-type]
                reader.read(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: the trace is cut off or damaged: {error}") from None
    return reader.trace()


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """The events of a trace as JSON arrays of a few thousand each."""
    rest, begun = b"", False
    while block := stream.read(PIECE_BYTES):
        rest += block
        if not begun:
            found = re.search(rb'"traceEvents"\s*:\s*\[', rest)
            if found is None:
                continue
            rest, begun = rest[found.end() :], True
        cut = rest.rfind(BETWEEN_EVENTS)
        if cut >= 0:
            yield b"[" + rest[: cut + 4] + b"]"
            rest = rest[cut + 5 :]
    if not begun:
        raise ValueError('not a trace: it has no "traceEvents"')
    end = rest.rfind(b"]")
    if end < 0:
        raise ValueError("the trace is cut off")
    yield b"[" + rest[:end] + b"]"


class _Arguments(msgspec.Struct, gc=False):
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="Input Dims")
    strides: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="Input Strides")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="Input type")
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="Concrete Inputs")
    external: int = msgspec.field(default=-1, name="External id")
    nbytes: int = msgspec.field(default=0, name="bytes")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: _Arguments = msgspec.UNSET  # type: ignore[assignment]


_EVENTS = msgspec.json.Decoder(list[_Event])
_EVENT = msgspec.json.Decoder(_Event)
_NO_ARGUMENTS = _Arguments()


class _Reader:
    """Takes in events in any order and builds the trace."""

    def __init__(self) -> None:
        self._signatures: dict[tuple[str, tuple[bytes, ...]], Signature] = {}
        self._names: dict[str, str] = {}
        self._ops: list[Op] = []
        self._externals: list[int] = []
        # name, start, duration, external id, bytes or -1
        self._device: list[tuple[str, float, float, int, int]] = []
        self._annotations: list[Stretch] = []

    def read(self, piece: bytes) -> None:
        for event in self._decoded(piece):
            if event.ph != "X":
                continue
            arguments = event.args if event.args is not msgspec.UNSET else _NO_ARGUMENTS
            match event.cat:
                case "cpu_op":
                    thread = event.tid if isinstance(event.tid, int) else 0
                    self._ops.append(
                        Op(
                            self._signature(event.name, arguments),
                            event.ts * 1e-6,
                            event.dur * 1e-6,
                            thread,
                        )
                    )
                    self._externals.append(arguments.external)
                case "kernel" | "gpu_memcpy" | "gpu_memset":
                    nbytes = arguments.nbytes if event.cat == "gpu_memcpy" else -1
                    name = self._names.setdefault(event.name, event.name)
                    self._device.append(
                        (name, event.ts * 1e-6, event.dur * 1e-6, arguments.external, nbytes)
                    )
                case "user_annotation":
                    name = self._names.setdefault(event.name, event.name)
                    self._annotations.append(Stretch(name, event.ts * 1e-6, event.dur * 1e-6))

    def _decoded(self, piece: bytes) -> Iterable[_Event]:
        try:
            return _EVENTS.decode(piece)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._one_by_one(piece)

    def _one_by_one(self, piece: bytes) -> Iterator[_Event]:
        """The readable events of a piece: C++ names are not always escaped as JSON requires."""
        for text in piece[1:-1].replace(BETWEEN_EVENTS, b"\n  }\0{").split(b"\0"):
            try:
                yield _EVENT.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue

    def _signature(self, name: str, arguments: _Arguments) -> Signature:
        parts = (arguments.dims, arguments.types, arguments.values, arguments.strides)
        key = (name, tuple(map(bytes, parts)))
        found = self._signatures.get(key)
        if found is None:
            dims, types, values, strides = map(msgspec.json.decode, parts)
            shapes, dtypes = tuple(map(_shape, dims)), tuple(map(_dtype, types))
            found = self._signatures[key] = Signature(
                self._names.setdefault(name, name),
                shapes,
                dtypes,
                tuple(map(str, values)),
                any(
                    shape and dtype and dtype != "list" and not stride
                    for shape, dtype, stride in zip(shapes, dtypes, strides)
                ),
            )
        return found

    def trace(self) -> Trace:
        annotations = sorted(self._annotations, key=lambda s: s.start_s)
        steps = [s for s in annotations if s.name.startswith(STEP_PREFIX)]
        starts = [
            *(s.start_s for s in steps),
            *(op.start_s for op in self._ops[:1]),
            *(d[1] for d in self._device[:1]),
        ]
        zero = starts[0] if starts else 0.0

        def moved(stretches: Iterable[Stretch], prefix: str) -> tuple[Stretch, ...]:
            return tuple(
                Stretch(s.name.removeprefix(prefix), s.start_s - zero, s.duration_s)
                for s in stretches
            )

        index = self._nest(zero)
        if steps and not any(op.start_s + zero >= steps[-1].start_s for op in self._ops):
            del steps[-1]  # torch opens another iteration when the last one ends
        kernels, copies = [], []
        for name, start_s, duration_s, external, nbytes in sorted(self._device, key=lambda d: d[1]):
            op = index.get(external, -1) if external >= 0 else -1
            if op >= 0:
                self._ops[op].device_s += duration_s
            if nbytes >= 0:
                copies.append(Copy(name, start_s - zero, duration_s, nbytes, op))
            else:
                kernels.append(Kernel(name, start_s - zero, duration_s, op))
        return Trace(
            iterations=moved(steps, STEP_PREFIX),
            phases=moved((s for s in annotations if s.name.startswith(PHASE_PREFIX)), PHASE_PREFIX),
            ops=tuple(self._ops),
            kernels=tuple(kernels),
            copies=tuple(copies),
        )

    def _nest(self, zero: float) -> dict[int, int]:
        """Sort the operators and set their parents and self times.

        Returns the index of the operator with each external id.
        """
        order = sorted(
            range(len(self._ops)), key=lambda i: (self._ops[i].start_s, -self._ops[i].duration_s)
        )
        self._externals = [self._externals[i] for i in order]
        self._ops = [self._ops[i] for i in order]
        open_: dict[int, list[int]] = {}
        for place, op in enumerate(self._ops):
            outer = open_.setdefault(op.thread, [])
            op.self_s = op.duration_s
            # earlier operators are already on the trace's clock
            while outer and self._ops[outer[-1]].end_s <= op.start_s - zero:
                outer.pop()
            op.start_s -= zero
            if outer:
                op.parent = outer[-1]
            outer.append(place)
        for op in self._ops:
            if op.parent >= 0:
                self._ops[op.parent].self_s = max(self._ops[op.parent].self_s - op.duration_s, 0.0)
        return {external: place for place, external in enumerate(self._externals) if external >= 0}


def _shape(dims: Any) -> Any:
    return (
        tuple(_shape(d) if isinstance(d, list) else int(d) for d in dims)
        if isinstance(dims, list)
        else ()
    )


def _dtype(name: str) -> str:
    if "List" in name:
        return "list" if name in ("TensorList", "GenericList") else ""
    return "" if name in ("", "Scalar") else DTYPES.get(name, name)
