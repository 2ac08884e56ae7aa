"""The state of a Mersenne Twister, kept and given back as the memory it is.

``random.getstate`` and ``numpy.random.get_state`` make a Python object of each of the 624 words: some 15 and 50 µs, and about as much
to give them back. Here the words are copied where they lie, which takes less than one:

    random   Random         │ head │ index │ word × 624 │    the spare number of gauss() is an ordinary attribute
    numpy    bit generator         │ word × 624 │ pos │      at the address its public ``ctypes`` interface tells
             RandomState    │ … │ has_gauss │ gauss │ …      the spare normal number, somewhere in the object

None of this is promised. So it is tried first on a generator made for that: what lies there must be what the public functions tell,
and after other draws, what was kept must come back. Where it does not, the public functions are used.

Memory is copied under the interpreter's lock; numpy, which draws without it, has a lock of its own.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any, Protocol

WORDS = 624
PYTHON_STATE, NUMPY_STATE, NUMPY_SPARE = f"i{WORDS}I", f"{WORDS}Ii", "id"  # as the struct module writes them
TRIAL_DRAWS = 2 * WORDS  # all words are made anew after 624


class Stream(Protocol):
    """A global random stream."""

    def keep(self) -> Any:
        """Its state now."""

    def give_back(self, kept: Any) -> None:
        """Be as when ``kept`` was kept."""


class PublicStream:
    """Kept and given back by the functions a library has for that."""

    def __init__(self, keep: Any, give_back: Any) -> None:
        self.keep, self.give_back = keep, give_back


class Memory:
    """``size`` bytes at ``address``; whoever asks for them holds the object they belong to."""

    def __init__(self, address: int, size: int) -> None:
        self._view = memoryview((ctypes.c_char * size).from_address(address)).cast("B")

    def read(self) -> bytes:
        return self._view.tobytes()

    def write(self, kept: bytes) -> None:
        self._view[:] = kept


class PythonTwister:
    """A ``random.Random``."""

    def __init__(self, generator: random.Random) -> None:
        self._generator: Any = generator
        self._memory = Memory(id(generator) + object.__basicsize__, struct.calcsize(PYTHON_STATE))

    def keep(self) -> tuple[bytes, float | None]:
        return self._memory.read(), self._generator.gauss_next

    def give_back(self, kept: tuple[bytes, float | None]) -> None:
        words, self._generator.gauss_next = kept
        self._memory.write(words)

    def as_told(self) -> bool:
        """What lies there is what ``getstate`` tells."""
        _, (*words, index), spare = self._generator.getstate()
        return self.keep() == (struct.pack(PYTHON_STATE, index, *words), spare)


class NumpyTwister:
    """A ``numpy.random.RandomState`` over an MT19937."""

    def __init__(self, state: Any, spare_at: int) -> None:
        """``spare_at``: bytes from the beginning of the object to has_gauss, see :func:`_spare_at`."""
        self._state, self.bits = state, state._bit_generator
        self._words = Memory(self.bits.ctypes.state_address, struct.calcsize(NUMPY_STATE))
        self._spare = Memory(id(state) + spare_at, struct.calcsize(NUMPY_SPARE))

    def keep(self) -> tuple[bytes, bytes]:
        with self.bits.lock:
            return self._words.read(), self._spare.read()

    def give_back(self, kept: tuple[bytes, bytes]) -> None:
        with self.bits.lock:
            self._words.write(kept[0])
            self._spare.write(kept[1])

    def as_told(self) -> bool:
        """What lies there is what ``get_state`` tells."""
        words, spare = self.keep()
        return (words, struct.unpack(NUMPY_SPARE, spare)) == _told(self._state)


def python_stream() -> Stream:
    """The global stream of ``random``."""
    try:
        generator = random.getstate.__self__  # type: ignore[attr-defined]
        if _readable() and type(generator) is random.Random and _python_holds() and (stream := PythonTwister(generator)).as_told():
            return stream
    except Exception:  # another interpreter, or a version of it that is made otherwise
        pass
    return PublicStream(random.getstate, random.setstate)


def numpy_stream(numpy: Any) -> Stream:
    """The global stream of numpy, over the bit generator it has now."""
    try:
        state = numpy.random.mtrand._rand
        if _readable() and type(state._bit_generator) is numpy.random.MT19937:
            at = _spare_at(numpy)
            if at is not None and (stream := NumpyTwister(state, at)).as_told():
                return stream
    except Exception:
        pass
    return PublicStream(lambda: numpy.random.get_state(legacy=False), numpy.random.set_state)


def _readable() -> bool:
    """An object's id is its address, and nobody else runs while its memory is copied."""
    return sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


def _python_holds() -> bool:
    """A trial of :class:`PythonTwister`."""
    if random.Random.__basicsize__ < object.__basicsize__ + struct.calcsize(PYTHON_STATE):
        return False
    own = random.Random(1)
    own.gauss(0.0, 1.0)
    stream, before = PythonTwister(own), own.getstate()
    if not stream.as_told():
        return False
    kept = stream.keep()
    for _ in range(TRIAL_DRAWS):
        own.getrandbits(32)
    own.gauss(0.0, 1.0)
    stream.give_back(kept)
    return own.getstate() == before


def _spare_at(numpy: Any) -> int | None:
    """Where in a RandomState has_gauss lies, found in a trial of :class:`NumpyTwister`; None where that failed."""
    own = numpy.random.RandomState(1)
    own.standard_normal()
    before = _told(own)
    wanted, inside = struct.pack(NUMPY_SPARE, *before[1]), Memory(id(own), type(own).__basicsize__).read()
    at = inside.find(wanted)
    if at < 0 or inside.find(wanted, at + 1) >= 0 or not (stream := NumpyTwister(own, at)).as_told():
        return None
    kept = stream.keep()
    own.standard_normal(TRIAL_DRAWS + 1)
    stream.give_back(kept)
    return at if _told(own) == before else None


def _told(state: Any) -> tuple[bytes, tuple[int, float]]:
    """(words and position, has_gauss and gauss) of a RandomState over an MT19937, by its public function."""
    told = state.get_state(legacy=False)
    return struct.pack(NUMPY_STATE, *told["state"]["key"].tolist(), told["state"]["pos"]), (told["has_gauss"], told["gauss"])
