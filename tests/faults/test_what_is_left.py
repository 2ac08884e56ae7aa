"""The check that stands behind every test of this folder sees what it looks for."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_runs import Surroundings, assert_free

from autotune_trials import marks


def a_dead_process() -> tuple[int, str]:
    """Its pid, and a mark as its tuner would have made it."""
    code = "from autotune_trials import warden; print(marks.new_mark())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    return process.pid, process.communicate()[0].strip()


def test_processes_memory_and_sockets_are_seen(tmp_path: Path) -> None:
    pid, mark = a_dead_process()
    assert marks.is_stale(mark)
    before = Surroundings.of(tmp_path)
    segment, copy, socket = Path(f"/dev/shm/torch_{pid}_7_0"), Path(f"/dev/shm/autotune-{mark}-x"), Path(f"/tmp/autotune-{mark}-y")
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=tmp_path)
    try:
        segment.touch()
        copy.mkdir()
        socket.mkdir()
        left = Surroundings.of(tmp_path).beyond(before)
        assert {segment.name, copy.name, str(socket)} <= set(left)
        assert any(f"process {idle.pid}:" in line for line in left)
    finally:
        idle.kill()
        idle.wait()
        segment.unlink()
        copy.rmdir()
        socket.rmdir()
    assert not Surroundings.of(tmp_path).beyond(before)


def test_a_lock_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            assert_free(path)
    assert_free(path)
