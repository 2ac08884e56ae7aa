"""glibc's malloc in this process: whether it hands out the memory, and its thresholds, set and
given back (mallopt(3)).

    a block of mmap_threshold or more   gets a mapping of its own, which goes back to the system when the block is freed
    more than trim_threshold free       at the heap's end goes back to the system
    so each step of a training loop     may have the kernel map and clear the same pages again: page faults

By itself glibc raises the first to the largest such block that was freed (up to 32 MiB), and the
second to twice that. The first
mallopt call ends this for good, and there is no call to read them: what mmap_threshold was is found
by asking for blocks before it. What the heap has grown by meanwhile stays free in it where a block
in use lies above, and would serve large blocks without a mapping; so when the thresholds are given
back, as much of it is taken out of use (held, not written to) as was not there before.
One thing cannot be given back: blocks that the job would have freed later might have raised the
threshold further.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ALLOCATOR = re.compile(
    r"lib(jemalloc|tcmalloc|mimalloc|tbbmalloc|hoard|snmalloc)\w*(?:[-.][\w.-]*)?\.so[\w.]*$"
)
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
IS_MMAPPED = 2  # in the size that stands before each block
KIB, MIB = 2**10, 2**20
# What glibc starts with: DEFAULT_MMAP_THRESHOLD, DEFAULT_TOP_PAD in malloc.c.
FIRST_THRESHOLD, FIRST_PAD = 128 * KIB, 128 * KIB
# The most that mallopt takes: an int, and half a thread's heap. The pad keeps the empty heaps of
# threads, too: they are that large.
MOST_TRIM, MOST_MMAP, MOST_PAD = 2**31 - 1, 32 * MIB, 64 * MIB
PAGE = 4 * KIB
MOST_TRIES = 50_000  # blocks of one size that free memory may hold; that is 6 GiB and more


def foreign() -> str | None:
    """Why glibc's malloc does not hand out this process's memory; None if it does."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    if match := next((found for line in lines if (found := ALLOCATOR.search(line))), None):
        return (
            f"lib{match[1]} is in the job's process, and hands out memory instead of the C library"
        )
    import ctypes

    lib: Any = ctypes.CDLL(None)
    if not all(hasattr(lib, name) for name in ("gnu_get_libc_version", "mallopt", "dladdr")):
        return "the C library of the job's process is not glibc"
    homes = {
        name: _home(lib, name) for name in ("malloc", "gnu_get_libc_version", "Py_IsInitialized")
    }
    # A program that is linked to a fixed address has a stand-in for malloc of its own, which leads
    # to the library's.
    own = homes["malloc"] in (homes["gnu_get_libc_version"], homes["Py_IsInitialized"])
    return (
        None
        if own
        else "another library in the job's process hands out memory instead of the C library"
    )


def _home(lib: Any, name: str) -> int | None:
    """Where the library or program begins that ``name`` lies in."""
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = [
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("at", ctypes.c_void_p),
        ]

    info, lib.dladdr.argtypes = Info(), (ctypes.c_void_p, ctypes.c_void_p)
    found = lib.dladdr(ctypes.cast(getattr(lib, name), ctypes.c_void_p), ctypes.byref(info))
    return info.base if found else None


def retains() -> bool:
    """A block just below the highest threshold comes from the heap. Only where :func:`foreign` has
    nothing to say.
    """
    blocks = _Blocks()
    block = blocks.get(MOST_MMAP - MIB)
    kept = bool(block) and not blocks.mapped(block)
    blocks.free([block])
    return kept


class Heap:
    """The thresholds, set and given back; nothing happens where glibc's malloc does not hand out
    the memory.
    """

    def __init__(self) -> None:
        # mmap_threshold, bytes, before we set it for the first time
        self.own_threshold: int | None = None
        self.retaining = False
        self._own_free = 0  # blocks of that size that free memory had room for then
        # those that it has room for beyond that, while the thresholds are given back
        self._held: list[int] = []

    def retain(self) -> None:
        """Keep what is freed."""
        if self.retaining or foreign():
            return
        self.retaining = True
        blocks = _Blocks()
        if self.own_threshold is None:
            self.own_threshold = blocks.threshold()
            served = blocks.served(self.own_threshold)
            self._own_free = len(served)
            blocks.free(served)
        self._set(MOST_MMAP, MOST_TRIM, MOST_PAD)
        blocks.free(blocks.mappings)  # only now: freed before, they would have raised the threshold
        blocks.free(self._held)
        self._held = []

    def give_back(self) -> None:
        """The thresholds as they were."""
        if self.retaining and self.own_threshold is not None:
            self.retaining = False
            self._set(self.own_threshold, 2 * self.own_threshold, FIRST_PAD)
            blocks = _Blocks()
            blocks.trim()
            served = sorted(blocks.served(self.own_threshold))
            blocks.free(blocks.mappings)
            blocks.free(served[: self._own_free])  # the lowest: the heap grows upwards
            self._held = served[self._own_free :]

    def _set(self, mmap: int, trim: int, pad: int) -> None:
        import ctypes

        lib = ctypes.CDLL(None)
        for option, value in ((M_MMAP_THRESHOLD, mmap), (M_TRIM_THRESHOLD, trim), (M_TOP_PAD, pad)):
            lib.mallopt(option, value)


class _Blocks:
    """Blocks asked of malloc, never written to. ``mappings``: those that got one of their own, to
    be freed by who asked.
    """

    def __init__(self) -> None:
        import ctypes

        self._lib: Any = ctypes.CDLL(None)
        self._size, self._before = ctypes.c_size_t, ctypes.sizeof(ctypes.c_size_t)
        self._lib.malloc.restype, self._lib.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
        self._lib.free.restype, self._lib.free.argtypes = None, (ctypes.c_void_p,)
        self._lib.sbrk.restype, self._lib.sbrk.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t,)
        self.mappings: list[int] = []

    def get(self, size: int) -> int:
        """Its address; 0: there is none."""
        return self._lib.malloc(size) or 0

    def mapped(self, block: int) -> bool:
        return bool(self._size.from_address(block - self._before).value & IS_MMAPPED)

    def free(self, blocks: list[int]) -> None:
        for block in blocks:
            self._lib.free(block)

    def threshold(self) -> int:
        """mmap_threshold in bytes: always whole pages, for it is the size of a mapping that was
        freed.
        """
        # the lowest size that is mapped lies in here
        low, high = FIRST_THRESHOLD // PAGE, MOST_MMAP // PAGE
        while low < high:
            middle = (low + high) // 2
            before = len(self.mappings)
            self.free(self.served(middle * PAGE))
            low, high = (low, middle) if len(self.mappings) > before else (middle + 1, high)
        return low * PAGE

    def trim(self) -> None:
        """Free memory goes back to the system, as far as it is whole pages."""
        self._lib.malloc_trim(0)

    def served(self, size: int) -> list[int]:
        """Blocks that take ``size``, as many as free memory has room for. The next one gets a
        mapping, or makes the heap grow.
        """
        found: list[int] = []
        for _ in range(MOST_TRIES):
            end = self._lib.sbrk(0)
            block = self.get(size - self._before)
            if not block:
                break
            if self.mapped(block):
                self.mappings.append(block)
                break
            found.append(block)
            if self._lib.sbrk(0) != end:
                break
        return found
