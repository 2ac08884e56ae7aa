"""Reports full, read-only and failing disks as input errors, and locks files.

If a disk refuses files, the run stops, and the same command resumes it. A file that the user asked for
and that cannot be written is wrong input.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from autotune.errors import InputError

ROOM = ("free space on that disk", "free some space")
WRITABLE = (
    "a disk that can be written to",
    "find out why it is read-only (the kernel makes it so after an error, see dmesg)",
)
WORKING = ("a disk that works", "find out what is wrong with it (see dmesg)")
REFUSALS = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EROFS: WRITABLE,
    errno.EIO: WORKING,  # often the first error, before the kernel makes the disk read-only
}


def lock(file: IO[Any], how: int) -> None:
    """``flock``; nothing on a file system without locks, where one run per directory is up to the
    user.

    Raises:
        BlockingIOError: another process holds it, and ``how`` includes ``LOCK_NB``.
    """
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise


@contextmanager
def writing(where: str) -> Iterator[None]:
    """Report that the file the user named, at ``where``, cannot be written.

    Raises:
        InputError: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}",
            where=where,
            expected="a file in a directory that exists",
        ) from None


def is_disk_error(error: BaseException) -> bool:
    """Whether the disk is full, a quota is used up, or the disk fails or has become read-only."""
    if not isinstance(error, OSError) or error.errno not in REFUSALS:
        return False
    return error.errno != errno.EIO or error.filename is not None  # else of a terminal, say


@contextmanager
def disk_errors_as_input_errors(
    run_dir: Path,
    then: str = "the same command, without --fresh, continues from here",
    node: str = "",
) -> Iterator[None]:
    """Report a refusal by the disk as what it is.

    Args:
        run_dir: named if the error names no file.
        then: what can be done once the disk accepts files again.
        node: whose disk it is, if it may be another machine's.

    Raises:
        InputError: the disk refused a file.
    """
    try:
        yield
    except OSError as error:
        if not is_disk_error(error):
            raise
        expected, remedy = REFUSALS[error.errno or 0]
        where = f"{error.filename or run_dir}{f' on node {node}' if node else ''}"
        raise InputError(
            error.strerror or str(error),
            where=where,
            expected=expected,
            remedy=f"{remedy}, then {then}",
        ) from error
