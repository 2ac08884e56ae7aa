"""The journal survives everything that can happen to a file."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import replayed

from autotune.errors import InputError
from autotune.journal import Journal
from autotune.report.result_file import load_result

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def no_time(before: float) -> float:
    return before


def written(path: Path, count: int = 3) -> bytes:
    journal = Journal(path, no_time)
    for number in range(count):
        journal.append("trial", str(number), {"value": number, "name": "größer\nals"})
    journal.close()
    return path.read_bytes()


@pytest.mark.parametrize("reason", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_all_the_same(
    reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(fcntl, "flock", flock)
    written(tmp_path / "j")
    with closing(Journal(tmp_path / "j", no_time)) as journal:
        assert journal.find("trial", "1")


def test_what_was_stored_is_found_again(tmp_path: Path) -> None:
    written(tmp_path / "j")
    journal = Journal(tmp_path / "j", no_time)
    assert journal.find("trial", "1") == {"value": 1, "name": "größer\nals"}
    assert journal.find("trial", "9") is None
    assert [e.key for e in journal.all("trial")] == ["0", "1", "2"]


def test_cut_at_every_byte_it_keeps_every_whole_entry_and_can_be_written_on(tmp_path: Path) -> None:
    whole = written(tmp_path / "j")
    for cut in range(len(whole) + 1):
        path = tmp_path / "cut"
        path.write_bytes(whole[:cut])
        journal = Journal(path, no_time)
        entries = list(journal.all("trial"))
        assert len(entries) == whole[:cut].count(b"\n"), f"cut at byte {cut}"
        journal.append("trial", "after", {})
        journal.close()
        journal = Journal(path, no_time)
        assert [e.key for e in journal.all("trial")] == [e.key for e in entries] + ["after"]
        journal.close()


def test_the_last_entry_of_a_key_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", no_time)
    journal.append("run", "a", 1)
    journal.append("run", "a", 2)
    assert journal.find("run", "a") == 2


def test_time_spent_adds_up_over_processes(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j", lambda before: before + 30.0)
    first.append("study", "", {})
    first.close()
    second = Journal(tmp_path / "j", lambda before: before + 12.0)
    assert second.elapsed_s == pytest.approx(42.0)


def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", no_time)
    code = (
        "import sys, pathlib\nfrom autotune.journal import Journal\nfrom autotune.errors import"
        " InputError\ntry:\n    Journal(pathlib.Path(sys.argv[1]), lambda b: b)\nexcept InputError"
        " as e:\n    print(e); sys.exit(e.exit_code)\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "j")], capture_output=True, text=True
    )
    assert other.returncode == 2
    assert f"another autotune run (process {os.getpid()}) is working" in other.stdout
    journal.close()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit files of this process to ``size`` bytes: a write that exceeds it is cut off, as on a
    full disk.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_half_an_entry_has_none_of_it(tmp_path: Path) -> None:
    """Another lane may finish its trial later, and there may be space again when the journal is
    closed.
    """
    before = written(tmp_path / "j")
    journal = Journal(tmp_path / "j", no_time)
    with room_for(len(before) + 20), pytest.raises(OSError, match="File too large"):
        journal.append("trial", "3", {"value": 3})
    assert (tmp_path / "j").read_bytes() == before
    journal.append("trial", "4", {"value": 4})
    journal.close()
    again = Journal(tmp_path / "j", no_time)
    assert (
        [e.key for e in again.all("trial")]
        == [e.key for e in journal.all("trial")]
        == ["0", "1", "2", "4"]
    )


def test_an_unwritable_directory_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Journal(tmp_path / "file" / "journal.jsonl", no_time)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("content", ["{", '{"schema_version": 1}'])
def test_what_is_said_of_a_damaged_result_helps(content: str, tmp_path: Path) -> None:
    """`autotune run` uses a finished run's file even if it is damaged, and writes it again only if
    it is missing.
    """
    machine, job = replayed.Machine(replayed.table()), replayed.job(tmp_path)
    result = replayed.run(tmp_path, machine, job)
    asked = len(machine.requests)
    path = tmp_path / "run" / "result.json"
    path.write_text(content)
    with pytest.raises(InputError, match="move it away and rerun"):
        load_result(path)
    path.unlink()
    again = replayed.run(tmp_path, machine, job)
    assert (again.knobs, again.speedup) == (result.knobs, result.speedup) and len(
        machine.requests
    ) == asked, "all of it is in the journal"


def test_a_resumed_run_records_trials_that_only_the_journal_has(tmp_path: Path) -> None:
    """It was killed between the two, or the disk was full."""
    spec = replayed.job(tmp_path, "{optimizer_impl: [fused]}")
    machine = replayed.Machine(replayed.table(factors={"optimizer_impl": {"fused": 0.8}}))
    first = replayed.run(tmp_path, machine, spec)
    spool = tmp_path / "run" / "tracking" / "spool.jsonl"
    lines = [json.loads(line) for line in spool.read_text().splitlines()]
    trials = [e["key"] for e in lines if e["kind"] == "trial"]
    assert len(trials) > 1 and first.trials
    spool.unlink()
    journal = tmp_path / "run" / "journal.jsonl"
    kept = [e for e in journal.read_text().splitlines() if json.loads(e)["kind"] != "finished"]
    journal.write_text("\n".join(kept) + "\n")
    replayed.run(tmp_path, machine, spec)
    again = [json.loads(line) for line in spool.read_text().splitlines()]
    assert {e["key"] for e in again if e["kind"] == "trial"} == set(trials)
