"""Where runs are stored, what tells their directories apart, and whether one can be recorded."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from autotune.errors import InputError

RUNS = Path("autotune-runs")  # in the current directory
PROFILE_SUMMARY = "summary.json"  # only in directories that `autotune profile` made
MIN_FREE_MIB = 64  # journal, logs and two traces of a small run


def check_run_dir(path: Path, option: str = "--run-dir") -> None:
    """Check whether a run can be recorded in ``path``. Creates nothing that stays.

    Args:
        option: the command's option for choosing another directory.

    Raises:
        InputError: it is a file, cannot be written to, or its disk is full.
    """
    place, remedy = path.absolute(), f"choose another with {option}"
    if os.path.exists(place) and not os.path.isdir(place):
        raise InputError(
            "it is a file", where=str(path), expected="a directory for the run", remedy=remedy
        )
    while not os.path.exists(place):  # Path.exists() raises where a folder may not be searched
        place = place.parent
    if not os.path.isdir(place):
        raise InputError(
            f"{place} is a file", where=str(path), expected="a directory for the run", remedy=remedy
        )
    try:
        # Checking permissions is not enough: root has them even where nothing can be written.
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"autotune")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(path, place, 0, option) from None
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot write in {place}: {reason}",
            where=str(path),
            expected="a directory to write to",
            remedy=remedy,
        ) from None
    free_mib = shutil.disk_usage(place).free / 2**20
    if free_mib < MIN_FREE_MIB:
        raise _disk_full(path, place, free_mib, option)


def _disk_full(path: Path, place: Path, free_mib: float, option: str) -> InputError:
    found = f"{free_mib:.0f} MiB free on the disk of {place}"
    return InputError(
        found,
        where=str(path),
        expected=f"at least {MIN_FREE_MIB} MiB",
        remedy=f"free some space, or choose another with {option}",
    )
