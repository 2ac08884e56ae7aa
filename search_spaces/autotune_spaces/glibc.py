"""Detect whether this process uses glibc's malloc; set and restore its thresholds (mallopt(3)).

    a block of mmap_threshold or more   gets its own mapping, which is returned to the system when the block is freed
    more than trim_threshold free       at the end of the heap is returned to the system
    so each step of a training loop     may make the kernel map and clear the same pages again: page faults

By default glibc raises the first to the size of the largest such block freed so far (up to 32 MiB),
and the second to twice that. The first mallopt call disables this for good, and the thresholds
cannot be read: mmap_threshold is found beforehand by allocating blocks of different sizes.

Memory by which the heap has grown meanwhile stays in it, free, if a block in use lies above it, and
would serve large blocks without a mapping. So when the thresholds are restored, all of it that was
not there before is taken out of use (allocated, not written to).

One thing cannot be restored: blocks that the job would have freed later might have raised the
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
IS_MMAPPED = 2  # flag in the size field before each block
KIB, MIB = 2**10, 2**20
# glibc's initial values: DEFAULT_MMAP_THRESHOLD, DEFAULT_TOP_PAD in malloc.c.
FIRST_THRESHOLD, FIRST_PAD = 128 * KIB, 128 * KIB
# The largest values that mallopt accepts: an int, and half a thread's heap. The pad also keeps the
# empty heaps of threads, which are that large.
MOST_TRIM, MOST_MMAP, MOST_PAD = 2**31 - 1, 32 * MIB, 64 * MIB
PAGE = 4 * KIB
MOST_TRIES = 50_000  # most blocks of one size to look for in free memory: 6 GiB or more


def foreign() -> str | None:
    """Why this process does not allocate with glibc's malloc; None if it does."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    if match := next((found for line in lines if (found := ALLOCATOR.search(line))), None):
        return (
            f"lib{match[1]} is loaded in the job's process and allocates memory instead of"
            " the C library"
        )
    import ctypes

    lib: Any = ctypes.CDLL(None)
    if not all(hasattr(lib, name) for name in ("gnu_get_libc_version", "mallopt", "dladdr")):
        return "the C library of the job's process is not glibc"
    homes = {
        name: _home(lib, name) for name in ("malloc", "gnu_get_libc_version", "Py_IsInitialized")
    }
    # A program linked to a fixed address has its own stub for malloc, which jumps to the library's.
    if homes["malloc"] in (homes["gnu_get_libc_version"], homes["Py_IsInitialized"]):
        return None
    return "another library in the job's process allocates memory instead of the C library"


def _home(lib: Any, name: str) -> int | None:
    """Base address of the library or program that contains the symbol ``name``."""
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
    """Whether a block just below the highest threshold comes from the heap. Call it only where
    :func:`foreign` returns None.
    """
    blocks = _Blocks()
    block = blocks.get(MOST_MMAP - MIB)
    kept = bool(block) and not blocks.mapped(block)
    blocks.free([block])
    return kept


class Heap:
    """Sets and restores the thresholds; does nothing where another malloc is in use."""

    def __init__(self) -> None:
        # mmap_threshold in bytes, before we first set it
        self.own_threshold: int | None = None
        self.retaining = False
        self._own_free = 0  # number of blocks of that size that fitted into free memory then
        # blocks that fit beyond these, allocated while the thresholds are restored
        self._held: list[int] = []

    def retain(self) -> None:
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
        blocks.free(blocks.mappings)  # not earlier: that would have raised the threshold
        blocks.free(self._held)
        self._held = []

    def give_back(self) -> None:
        """Restore the original thresholds."""
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
    """Blocks allocated by malloc, never written to. ``mappings``: those that got their own mapping;
    the caller frees them.
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
        """Allocate a block and return its address; 0 on failure."""
        return self._lib.malloc(size) or 0

    def mapped(self, block: int) -> bool:
        return bool(self._size.from_address(block - self._before).value & IS_MMAPPED)

    def free(self, blocks: list[int]) -> None:
        for block in blocks:
            self._lib.free(block)

    def threshold(self) -> int:
        """mmap_threshold in bytes: always whole pages, as it is the size of a freed mapping."""
        # invariant: the smallest size that gets a mapping lies in this range
        low, high = FIRST_THRESHOLD // PAGE, MOST_MMAP // PAGE
        while low < high:
            middle = (low + high) // 2
            before = len(self.mappings)
            self.free(self.served(middle * PAGE))
            low, high = (low, middle) if len(self.mappings) > before else (middle + 1, high)
        return low * PAGE

    def trim(self) -> None:
        """Return free memory to the system, in whole pages."""
        self._lib.malloc_trim(0)

    def served(self, size: int) -> list[int]:
        """Allocate as many blocks of ``size`` as fit into free memory, until one gets a mapping or
        makes the heap grow.
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
