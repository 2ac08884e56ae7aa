"""The history on disk: one SQLite file, one row per finished run, append-only.

SQLite locks, flushes and rolls back. It uses a rollback journal, not WAL: WAL needs shared memory,
which network file systems lack, and a file that readers may write to, which a team's store is not.
Runs are on disk when :meth:`Store.add` returns; a writer killed before that leaves nothing behind.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from autotune.history.records import RECORD_VERSION, PastRun
from autotune_spaces.codec import decode, encode, fits

APPLICATION, SCHEMA_VERSION = 0x41544E45, 1  # "ATNE": distinguishes our files from other databases
FILE_NAME = "history.sqlite"
WAIT_S = 10.0  # for other writers
MOST_RUNS = 1000  # read at once, newest first
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, at REAL NOT NULL, job TEXT NOT NULL, record TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_of_a_job ON runs (job, at);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA_VERSION};
"""


class StoreError(Exception):
    """The store cannot be used; ``str()`` is one line that says why."""


def own_path() -> Path:
    """The file of this run's history.

    AUTOTUNE_STORE; on the service's nodes one for all runs, beside them in AUTOTUNE_RUNS; else this
    user's, below XDG_DATA_HOME.

    Raises:
        StoreError: this user has no home directory.
    """
    if named := os.environ.get("AUTOTUNE_STORE"):
        return Path(named)
    if runs := os.environ.get("AUTOTUNE_RUNS"):
        return Path(runs) / FILE_NAME
    data = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data):
        return Path(data) / "autotune" / FILE_NAME
    try:
        return Path.home() / ".local" / "share" / "autotune" / FILE_NAME
    except RuntimeError:
        raise StoreError("there is no home directory: set AUTOTUNE_STORE to a file") from None


class Runs(Protocol):
    """A source of earlier runs."""

    def runs(self) -> list[PastRun]:
        """The runs, newest first.

        Raises:
            StoreError
        """
        ...


class Store:
    """Runs in one file. Every call opens it again, so that no process keeps it locked.

    Args:
        path: the file; created by the first :meth:`add`.
        read_only: nothing is ever written, not even SQLite's own files beside it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only

    def add(self, runs: Iterable[PastRun]) -> int:
        """Store ``runs``, all or none; on disk when this returns.

        Runs that are already stored are skipped.

        Returns:
            How many were new.

        Raises:
            StoreError
        """
        rows = [
            (r.id, r.at, r.keys.job, json.dumps(encode(r), separators=(",", ":"))) for r in runs
        ]
        with self._opened(write=True) as db, db:
            before = db.total_changes
            db.executemany("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?)", rows)
            return db.total_changes - before

    def runs(self, most: int = MOST_RUNS) -> list[PastRun]:
        """The newest runs first; invalid rows are left out.

        Raises:
            StoreError
        """
        try:
            if not self.path.exists():
                return []
        except OSError as error:  # in a folder that may not be searched
            raise StoreError(f"{self.path}: {_words(error)}") from error
        with self._opened() as db:
            query = "SELECT record FROM runs ORDER BY at DESC LIMIT ?"
            rows = db.execute(query, (most,)).fetchall()
        return [run for (text,) in rows if (run := readable(text)) is not None]

    def forget(self, ids: Sequence[str]) -> int:
        """Remove runs; returns how many were there.

        Raises:
            StoreError
        """
        with self._opened(write=True) as db, db:
            return db.executemany("DELETE FROM runs WHERE id = ?", [(i,) for i in ids]).rowcount

    @contextmanager
    def _opened(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        if write and self.read_only:
            raise StoreError(f"{self.path}: is read-only")
        try:
            if write:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # rw, to roll back a killed writer
            mode = "ro" if self.read_only else "rwc" if write else "rw"
            db = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, timeout=WAIT_S
            )
            try:
                self._check(db)
                if write:
                    db.execute("PRAGMA synchronous = FULL")
                    if not _has_table(db):
                        db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
                elif not _has_table(db):
                    # nothing was added yet
                    db.execute("CREATE TEMP TABLE runs (id, at, job, record)")
                yield db
            finally:
                db.close()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self.path}: {_words(error)}") from error

    def _check(self, db: sqlite3.Connection) -> None:
        """Check that the file is a history of this version.

        Raises:
            StoreError: it is not.
        """
        db.execute("BEGIN")  # another process may be creating it between two reads
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        empty = not db.execute("SELECT 1 FROM sqlite_master").fetchone()
        db.rollback()
        if empty and not application and not version:
            return  # new
        if application != APPLICATION:
            raise StoreError(f"{self.path}: belongs to another program")
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{self.path}: has version {version}, this autotune reads {SCHEMA_VERSION}"
            )


def _has_table(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone() is not None


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)  # SQLite's: "file is not a database", "database or disk is full"


def readable(text: str) -> PastRun | None:
    """The run in a row or a line; None if it is of another version, or something in it is invalid."""
    try:
        data: Any = json.loads(text)
        run = decode(PastRun, data)
        figures = [run.at, run.iteration_s, run.noise, run.log_gain, run.minutes]
        figures += run.features.values()
        figures += [f for m in run.measured for f in (m.log_ratio, m.error) if f is not None]
        sound = all(math.isfinite(f) for f in figures) and run.iteration_s > 0
        known = data["version"] == RECORD_VERSION and fits(PastRun, run)
        return run if sound and known else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
