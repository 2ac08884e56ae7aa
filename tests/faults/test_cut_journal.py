"""A run that is cut short at any byte of its journal, or killed at any moment, ends with the result
it would have had.

Whole runs on the replay executor: every stage is real; the job and its time are simulated. There is
no noise, so the result must be the same in every figure.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from noiseless_runs import entries_of, figures, journal_of, tuned

from autotune.journal import Journal

PROCESS = """
import json, sys
from pathlib import Path
from noiseless_runs import figures, tuned
print(json.dumps(figures(tuned(Path(sys.argv[1])))))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A finished run, and its figures."""
    folder = tmp_path_factory.mktemp("finished") / "job"
    found = figures(tuned(folder))
    assert found["verdict"] == "tuned"
    return folder, found


def copy_with(folder: Path, journal: bytes, to: Path) -> Path:
    shutil.copytree(folder, to)
    (to / "run" / "journal.jsonl").write_bytes(journal)
    return to


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.faults)])
def test_cut_at_every_byte_the_whole_entries_before_it_are_there(
    finished: tuple[Path, Any], step: int, tmp_path: Path
) -> None:
    """So the outcome depends only on the line of the cut, and one cut per line is enough in the
    next test.
    """
    whole = journal_of(finished[0])
    path = tmp_path / "journal.jsonl"
    for cut in range(0, len(whole) + 1, step):
        path.write_bytes(whole[:cut])
        Journal(path, lambda before: before).close()
        assert path.read_bytes() == whole[: whole[:cut].rfind(b"\n") + 1], f"cut at byte {cut}"


def cuts(seed: int, step: int) -> list[Any]:
    """(line, share of the next line that is present)."""
    return [(line, random.Random(seed + line).random()) for line in range(0, 48, step)]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        pytest.param(*cut, marks=() if number % 9 == 4 else pytest.mark.faults)
        for number, cut in enumerate(cuts(5, 1))
    ],
)
def test_resumed_from_each_cut_the_run_ends_with_the_same_result(
    finished: tuple[Path, Any], line: int, part: float, tmp_path: Path
) -> None:
    folder, expected = finished
    lines = journal_of(folder).splitlines(keepends=True)
    torn = lines[line][: int(part * len(lines[line]))] if line < len(lines) else b""
    resumed = copy_with(folder, b"".join(lines[:line]) + torn, tmp_path / "job")
    assert figures(tuned(resumed)) == expected
    assert entries_of(resumed) == entries_of(folder), "nothing is done twice, and nothing left out"


@pytest.mark.parametrize(
    "what", ["no record", "half a record", "half of Optuna's file", "no Optuna file"]
)
def test_files_beside_the_journal_may_be_gone_or_torn(
    finished: tuple[Path, Any], what: str, tmp_path: Path
) -> None:
    """Because of a disk failure or a clean-up: what they contained is measured again."""
    folder, expected = finished
    lines = journal_of(folder).splitlines(keepends=True)
    resumed = copy_with(
        folder, b"".join(lines[: 4 if "Optuna" in what else len(lines)]), tmp_path / "job"
    )
    path = (
        resumed / "run" / "optuna.log"
        if "Optuna" in what
        else sorted((resumed / "run" / "records").iterdir())[3]
    )
    if what.startswith("no"):
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
    assert figures(tuned(resumed)) == expected


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.faults)])
def test_killed_at_random_moments_it_ends_with_the_same_result(
    finished: tuple[Path, Any], kills: int, tmp_path: Path
) -> None:
    moments = random.Random(kills)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    before: list[bytes] = []
    left = kills
    while True:
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path / "job")],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        if left:
            _kill_after(process, moments.uniform(0, 1.5))
        out, _ = process.communicate(timeout=120)
        lines = (
            journal_of(tmp_path / "job").splitlines(keepends=True)
            if (tmp_path / "job" / "run" / "journal.jsonl").exists()
            else []
        )
        whole = [line for line in lines if line.endswith(b"\n")]
        assert whole[: len(before)] == before, "what was finished is kept as it was"
        before = whole
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        left -= 1
    assert json.loads(out) == json.loads(json.dumps(finished[1]))


def _kill_after(process: subprocess.Popen[str], seconds: float) -> None:
    """Kill the process ``seconds`` after it has opened the journal."""
    while process.poll() is None and not _holds_journal(process.pid):
        time.sleep(0.005)
    time.sleep(seconds)
    process.kill()


def _holds_journal(pid: int) -> bool:
    try:
        return any(
            os.readlink(entry).endswith("journal.jsonl")
            for entry in Path(f"/proc/{pid}/fd").iterdir()
        )
    except OSError:
        return False
