"""The store keeps what it acknowledged even if writers are killed; what it cannot use costs one
line.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.history.records import Keys, Measured, PastRun, hidden, revealed
from autotune.history.store import Store, StoreError, own_path
from autotune.history.use import History, open_history
from autotune_spaces.codec import encode

RUN = PastRun(
    "a1",
    1000.0,
    Keys("job", "machine", "software"),
    {"gpu": 0.0},
    0.02,
    0.01,
    "tuned",
    "unchanged",
    {"num_workers": 2},
    0.3,
    {"num_workers": (1.3, 1.2, 1.4)},
    (
        Measured({"num_workers": 2}, "live", -0.3, 0.01, 12),
        Measured({"amp_dtype": "float16"}, "failed"),
    ),
)
# Adds run after run, and prints each only after it is acknowledged.
WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from test_store import RUN, Store
store, name = Store(Path(sys.argv[1])), sys.argv[2]
for number in range(100_000):
    store.add([replace(RUN, id=f"{name}-{number}")])
    print(f"{name}-{number}", flush=True)
"""


def test_what_was_added_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "history.sqlite")
    assert store.runs() == []
    assert store.add([RUN, replace(RUN, id="b2", at=2000.0)]) == 2
    assert store.add([RUN]) == 0  # each run is kept once
    assert store.runs() == [replace(RUN, id="b2", at=2000.0), RUN]
    assert store.forget(["a1", "none"]) == 1
    assert [run.id for run in store.runs()] == ["b2"]


def test_first_runs_may_end_together(tmp_path: Path) -> None:
    writers = 8
    for number in range(10):
        store = Store(tmp_path / f"{number}.sqlite")
        together = threading.Barrier(writers)

        def add(writer: int, store: Store = store, together: threading.Barrier = together) -> int:
            together.wait()
            return store.add([replace(RUN, id=str(writer))])

        with ThreadPoolExecutor(writers) as pool:
            assert sum(pool.map(add, range(writers))) == writers


def _killed_writers(path: Path, moments: int, writers: int = 4) -> set[str]:
    """What was acknowledged to ``writers`` concurrent processes, which are killed at ``moments``
    random moments.
    """
    drawn, acknowledged = random.Random(7), set[str]()
    for moment in range(moments):
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path), f"{moment}-{i}"],
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
                },
            )
            for i in range(writers)
        ]
        assert processes[0].stdout
        assert processes[0].stdout.readline() == f"{moment}-0-0\n"  # all are at work
        acknowledged.add(f"{moment}-0-0")
        time.sleep(drawn.uniform(0.0, 0.25))
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            acknowledged |= {
                line.strip()
                for line in process.communicate()[0].splitlines(keepends=True)
                if line.endswith("\n")
            }
    return acknowledged


def _check_killed(path: Path, moments: int) -> None:
    acknowledged = _killed_writers(path, moments)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = dict(db.execute("SELECT id, record FROM runs").fetchall())
    assert len(acknowledged) > moments
    assert acknowledged <= rows.keys()
    whole = json.loads(json.dumps(encode(RUN)))
    # no record is incomplete
    assert all(json.loads(record) == {**whole, "id": name} for name, record in rows.items())


def test_killed_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    _check_killed(tmp_path / "history.sqlite", 3)


@pytest.mark.slow
def test_writers_killed_at_100_moments(tmp_path: Path) -> None:
    _check_killed(tmp_path / "history.sqlite", 100)


def _garbage(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 40)


def _of_another_version(path: Path) -> None:
    Store(path).add([RUN])
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")


def _of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE photos (id)")


def _torn(path: Path) -> None:
    Store(path).add([replace(RUN, id=str(i)) for i in range(200)])
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_garbage, "not a database"),
        (_of_another_version, "version 99"),
        (_of_another_program, "another program"),
        (_torn, "malformed"),
    ],
)
def test_a_store_that_cannot_be_used_costs_one_line(tmp_path: Path, spoil, why: str) -> None:
    path = tmp_path / "history.sqlite"
    spoil(path)
    with pytest.raises(StoreError, match=why):
        Store(path).runs()
    said: list[str] = []
    history = History(path, None, said.append)
    assert history._runs() == []
    (line,) = said
    assert why in line and "\n" not in line


def test_a_store_that_may_not_be_looked_for_costs_one_line(tmp_path: Path) -> None:
    """The system refuses even to look for the file, as in a folder without permission."""
    said: list[str] = []
    path = tmp_path / ("x" * 300) / "history.sqlite"
    history = History(path, None, said.append)
    assert history._runs() == [] and len(said) == 1
    assert str(path) in said[0] and "\n" not in said[0]


def test_without_a_home_directory_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(StoreError, match="AUTOTUNE_STORE"):
        own_path()
    said: list[str] = []
    assert open_history(None, said.append)._runs() == []
    assert len(said) == 1 and "no home directory" in said[0]


def test_a_full_disk_costs_one_line(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    Store(path).add([RUN])
    size, limits = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(StoreError):
            Store(path).add([replace(RUN, id=str(i)) for i in range(500)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, was)
    assert Store(path).runs() == [RUN]


def test_a_teams_store_is_read_and_never_written(tmp_path: Path) -> None:
    folder = tmp_path / "team"
    Store(folder / "history.sqlite").add([RUN])
    (folder / "history.sqlite").chmod(0o444)
    folder.chmod(0o555)
    try:
        team = Store(folder / "history.sqlite", read_only=True)
        assert team.runs() == [RUN]
        with pytest.raises(StoreError, match="read-only"):
            team.add([replace(RUN, id="c3")])
        assert [p.name for p in folder.iterdir()] == ["history.sqlite"]
    finally:
        folder.chmod(0o755)


def test_rows_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    lists: Any = (["in a hash's place"],)
    Store(path).add(
        [
            RUN,
            replace(RUN, id="slow", iteration_s=-1.0),
            replace(RUN, id="later", version=9),
            replace(RUN, id="nan", log_gain=float("nan")),
            replace(RUN, id="lists", space=lists),
        ]
    )
    assert Store(path).runs() == [RUN]


def test_words_of_the_job_are_kept_as_hashes_and_found_again() -> None:
    config = {"num_workers": 2, "secret_width": "s3cret", "amp_dtype": "bfloat16"}
    domains = {
        "num_workers": (0, 1, 2),
        "secret_width": ("small", "s3cret"),
        "amp_dtype": ("off", "bfloat16"),
    }
    kept = hidden(config)
    assert "secret" not in json.dumps(kept) and "s3cret" not in json.dumps(kept)
    assert revealed(kept, domains) == config
    assert revealed(kept, {**domains, "secret_width": ("small",)}) is None  # outdated
    assert revealed({"persistent_workers": 1}, {"persistent_workers": (False, True)}) is None


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert own_path() == tmp_path / "autotune" / "history.sqlite"
    monkeypatch.setenv("AUTOTUNE_RUNS", "/srv/runs")  # on the service's nodes
    assert own_path() == Path("/srv/runs/history.sqlite")
    monkeypatch.setenv("AUTOTUNE_STORE", "/srv/team.sqlite")
    assert own_path() == Path("/srv/team.sqlite")
