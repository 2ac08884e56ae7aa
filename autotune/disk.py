"""A disk that does not take what a run writes is nobody's defect, and no verdict: the run stops,
and the same command carries on.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.errors import InputError

ROOM = ("room on that disk", "make room")
WRITABLE = (
    "a disk that can be written to",
    "find out why it is read-only (after an error the kernel makes it so, see dmesg)",
)
REFUSALS = {errno.ENOSPC: ROOM, errno.EDQUOT: ROOM, errno.EROFS: WRITABLE}


def refused_by_disk(error: BaseException) -> bool:
    """The disk is full, a quota is used up, or it has turned read-only."""
    return isinstance(error, OSError) and error.errno in REFUSALS


@contextmanager
def told_of_the_disk(
    run_dir: Path, then: str = "the same command carries on from here"
) -> Iterator[None]:
    """A refusal of the disk, told as what it is.

    Args:
        run_dir: named where the error names no file.
        then: what may be done when the disk takes files again.

    Raises:
        InputError: the disk refused a file.
    """
    try:
        yield
    except OSError as error:
        if not refused_by_disk(error):
            raise
        expected, remedy = REFUSALS[error.errno or 0]
        where = str(error.filename or run_dir)
        raise InputError(
            error.strerror or str(error),
            where=where,
            expected=expected,
            remedy=f"{remedy}, then {then}",
        ) from error
