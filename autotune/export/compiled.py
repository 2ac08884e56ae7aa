"""Unpacks the compiled kernels shipped with a tuned.yaml on the machine that launches it."""

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
    """Unpack ``archive`` into ``folder``, atomically.

    Raises:
        ValueError: the file has changed since tuned.yaml was written, or is not a tar archive.
        OSError: reading or writing failed.
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
        raise ValueError(f"it is not an autotune archive ({error})") from None
    except OSError:
        if not folder.is_dir():  # else another launch unpacked it first
            raise
    finally:
        shutil.rmtree(room, ignore_errors=True)


def cache_variables(
    archive: Path, digest: str, cache: Path, env: Mapping[str, str]
) -> dict[str, str]:
    """Environment variables that let the job find its compiled kernels.

    Args:
        cache: the user's cache directory; the kernels are unpacked there once.
        env: the job's variables; if they already name a cache, nothing is changed.

    Raises:
        ValueError, OSError: as :func:`unpack`.
    """
    if env.get(VARIABLE):
        return {}
    folder = cache / "autotune" / "compiled" / digest[:16]
    if not folder.is_dir():
        unpack(archive, digest, folder)
    return {VARIABLE: os.fspath(folder)}
