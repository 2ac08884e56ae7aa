"""Small records in the ledger that several processes write and read: each is there whole or not at all, and some only one can make."""

from __future__ import annotations

import itertools
import os
from typing import Any

_count = itertools.count()


def digest(text: str) -> str:
    import hashlib

    return hashlib.blake2b(os.fsencode(text), digest_size=12).hexdigest()


def claim(path: str, entry: dict[str, Any], durable: bool = False) -> bool:
    """Make the record ``path``; False if somebody has made it already.

    Args:
        durable: on the disk when this returns. A power cut must not leave a moved file without word of where it is.
    """
    mine = _take_name(_temporary(path, entry, durable), path)
    if mine and durable:
        _flush_directory(os.path.dirname(path))
    return mine


def write_json(path: str, entry: dict[str, Any]) -> None:
    """Make the record ``path``, or write it anew."""
    os.replace(_temporary(path, entry, durable=False), path)


def read_json(path: str) -> dict[str, Any]:
    """The record ``path``; {} if there is none, or none that can be read."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            entry: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return {}
    return entry


def _temporary(path: str, entry: dict[str, Any], durable: bool) -> str:
    import json

    temporary = os.path.join(os.path.dirname(path), f".{os.getpid()}-{next(_count)}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(entry, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    return temporary


def _take_name(temporary: str, name: str) -> bool:
    """Give the file ``temporary`` its final name, unless that is taken."""
    try:
        os.link(temporary, name)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.exists(name):
            return False
        os.rename(temporary, name)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return True


def _flush_directory(path: str) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
