"""What a slot answers: a value, how a session failed, or what the user has to put right."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autotune.disk import disk_errors_as_input_errors
from autotune.errors import InputError
from autotune_spaces.codec import decode, encode
from autotune_spaces.facts import Machine
from autotune_trials.protocol.failures import SessionFailed

T = TypeVar("T")
CHUNK_BYTES = 8 << 20  # of a packed directory, per answer


@dataclass(frozen=True)
class Answer:
    value: Any = None
    error: SessionFailed | InputError | None = None

    def get(self) -> Any:
        """Return the value or raise the error.

        Raises:
            SessionFailed, InputError
        """
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True)
class SlotFacts:
    """What a slot reports about itself once it has started."""

    pid: int
    machine: Machine
    version: str  # of autotune there
    # the working directory's own files, where it is shared (workdir.files_in)
    files: Mapping[str, tuple[int, int]] | None
    cores: tuple[int, ...]
    gpu_load: tuple[str, ...] = ()  # of other programs, see Executor.gpu_load
    others: tuple[SlotFacts, ...] = ()  # of its other nodes


def answered(do: Callable[[], Any]) -> Answer:
    """Wrap what ``do`` returns or raises in an answer."""
    scratch, node = Path(tempfile.gettempdir()), os.uname().nodename
    try:
        with disk_errors_as_input_errors(scratch, "run the same command again", node):
            return Answer(do())
    except (SessionFailed, InputError) as error:
        return Answer(error=error)


def relocated(value: T, names: Mapping[str, str]) -> T:
    """Return a record with the slot's directories renamed to their names where the tuner runs."""
    text = json.dumps(encode(value))
    for there, here in names.items():
        text = text.replace(json.dumps(there)[1:-1], json.dumps(here)[1:-1])
    return decode(type(value), json.loads(text))


def first_line(error: Exception) -> str:
    """First line of an error of Ray's, which can be pages long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
