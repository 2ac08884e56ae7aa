"""Masks secrets in everything that is stored or passed on: text, the job's output, messages, the
agent's log.

The tuner decides which texts are secrets (``autotune/secrets.py``) and passes them to the session.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MASK = "***"


class Masks:
    """Replaces each of ``secrets`` by ``***``."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        # longest first: one secret may contain another
        self.secrets = tuple(sorted({s for s in secrets if s}, key=len, reverse=True))
        self._in_json = tuple(json.dumps(secret)[1:-1].encode() for secret in self.secrets)

    def text(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text

    def data(self, data: bytes) -> bytes:
        for secret in self.secrets:
            data = data.replace(os.fsencode(secret), MASK.encode())
        return data

    def message(self, line: bytes) -> bytes:
        """Mask the strings of a JSON line; numbers are left alone even if they match a secret."""
        if not any(secret in line for secret in self._in_json):
            return line
        try:
            return json.dumps(self._data(json.loads(line))).encode()
        except ValueError:  # not JSON: the reader of the message reports it
            return line

    def _data(self, data: Any) -> Any:
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return {key: self._data(value) for key, value in data.items()}
        return [self._data(value) for value in data] if isinstance(data, list) else data

    def file(self, path: Path) -> None:
        """Mask a small file written by another process. Never raises, since it runs while a session
        ends.
        """
        try:
            before = path.read_bytes()
            if (after := self.data(before)) != before:
                path.write_bytes(after)
        except (OSError, UnicodeError):
            pass
