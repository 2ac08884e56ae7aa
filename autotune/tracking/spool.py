"""The study's record on disk: what is sent to MLflow, now or later.

    <run>/tracking/spool.jsonl      one event per line, in the order things happened, with their time
    <run>/tracking/target.json      where it is meant to be sent
    <run>/tracking/sent-<id>.json   how far it was sent to one store (mlflow.py)

Every event has its own key and time, so sending one again repeats it and adds nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune_trials.paths import append_whole

SPOOL_SCHEMA_VERSION = 1


class SpoolPaths:
    """Every file name of a run's tracking directory."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.root = run_dir / "tracking"
        self.spool = self.root / "spool.jsonl"
        self.target = self.root / "target.json"
        self.lock = self.root / "send.lock"

    def cursor(self, uri: str, experiment: str) -> Path:
        return self.root / f"sent-{_digest([uri, experiment])[:12]}.json"


@dataclass(frozen=True)
class Event:
    """One line of the spool.

    ``kind``: spool, start, trial, trial_artifact, trial_series, metrics, artifact, finish. ``key``:
    what it is about, e.g. the trial.
    """

    kind: str
    key: str
    time_ms: int  # since 1970; also the timestamp of the metrics in it
    data: Mapping[str, Any]


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def finite_or_words(numbers: Mapping[Any, float | None]) -> dict[str, float | str]:
    """Numbers as JSON can hold them.

    None is left out; NaN and infinities become words, which ``float()`` reads.
    """
    known = {str(k): float(v) for k, v in numbers.items() if v is not None}
    return {k: v if math.isfinite(v) else str(v) for k, v in known.items()}


class Spool:
    """The writer. One process per run writes; anyone may read with :func:`read_events`.

    It knows what is already in the file, so a resumed run that records something again adds no
    line.
    """

    def __init__(self, run_dir: Path) -> None:
        self.paths = SpoolPaths(run_dir)
        self.paths.root.mkdir(parents=True, exist_ok=True)
        self._said: dict[tuple[str, str], str] = {}  # (kind, key) -> digest of its latest data
        _cut_torn_line(self.paths.spool)
        self.id = ""
        for event, _ in read_events(self.paths.spool):
            self._remember(event)
        if not self.id:
            self.append("spool", uuid.uuid4().hex, {"schema_version": SPOOL_SCHEMA_VERSION})

    def _remember(self, event: Event) -> None:
        if event.kind == "spool":
            self.id = event.key
        elif event.kind in ("start", "finish"):
            # These two alternate: a study that was stopped, resumed and stopped again records all
            # three.
            self._said.pop(("finish" if event.kind == "start" else "start", event.key), None)
        self._said[event.kind, event.key] = _digest(event.data)

    def append(self, kind: str, key: str, data: Mapping[str, Any]) -> bool:
        """Write an event and wait until it is on disk; False if it is nothing new.

        A trial is recorded once: the first record stands. Everything else is recorded again when it
        has changed.

        Raises:
            OSError: the disk is full or the directory is gone.
        """
        said = self._said.get((kind, key))
        if said is not None and (kind == "trial" or said == _digest(data)):
            return False
        event = Event(kind, key, time.time_ns() // 1_000_000, data)
        line = json.dumps(
            {"kind": kind, "key": key, "time_ms": event.time_ms, "data": data},
            separators=(",", ":"),
            allow_nan=False,
        )
        with open(self.paths.spool, "ab", buffering=0) as file:
            append_whole(file, line.encode() + b"\n")
        self._remember(event)
        return True

    def append_file(self, kind: str, key: str, path: Path, folder: str) -> bool:
        """Record an artifact, a file in the run directory, by its path."""
        data = {
            "trial": key,
            "path": str(path.relative_to(self.paths.run_dir)),
            "folder": folder,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        return self.append(kind, f"{key}|{folder}/{path.name}", data)


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """The events from byte ``offset`` on, each with the offset after it.

    An unterminated last line (the writer was killed, or is still writing) is not an event yet. A
    line that is not JSON is skipped: only a failing disk leaves one, and the other lines are still
    useful.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed by the with below
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                data = json.loads(line)
                event = Event(data["kind"], data["key"], data["time_ms"], data["data"])
            except (ValueError, KeyError, TypeError):
                continue
            yield event, offset


def _cut_torn_line(path: Path) -> None:
    """Remove an unterminated last line, so that the next event does not continue it."""
    if not path.exists():
        return
    with open(path, "rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
