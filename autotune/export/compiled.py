"""The compiled kernels that travel with a tuned.yaml, on the machine that launches it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

FILE_NAME = "compile-cache.tar.gz"
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def unpack(archive: Path, digest: str, folder: Path) -> None:
    """Put what ``archive`` holds into ``folder``; all of it or nothing.

    Raises:
        ValueError: the file is not the one that tuned.yaml was written with, or no archive.
        OSError: it cannot be read or written.
    """
    if hashlib.sha256(archive.read_bytes()).hexdigest() != digest:
        raise ValueError("it has changed since tuned.yaml was written")
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    room = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unpacking-"))
    try:
        with tarfile.open(archive) as content:
            content.extractall(room, filter="data")
        room.rename(folder)
    except tarfile.TarError as error:
        raise ValueError(f"it is no archive of ours ({error})") from None
    except OSError:
        if not folder.is_dir():  # another launch was faster
            raise
    finally:
        shutil.rmtree(room, ignore_errors=True)


def cache_variables(
    archive: Path, digest: str, cache: Path, env: Mapping[str, str]
) -> dict[str, str]:
    """What the job is started with to find its compiled kernels.

    Args:
        cache: this user's, where they are unpacked once.
        env: the job's variables; a cache of its own stays.

    Raises:
        ValueError, OSError: as :func:`unpack`.
    """
    if env.get(VARIABLE):
        return {}
    folder = cache / "autotune" / "compiled" / digest[:16]
    if not folder.is_dir():
        unpack(archive, digest, folder)
    return {VARIABLE: os.fspath(folder)}
