"""The check behind every test of this folder detects what it is meant to."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import SIDE_BY_SIDE, Surroundings, held

from autotune_trials.supervisor import process_tags


def a_dead_process() -> tuple[int, str]:
    """Its pid, and a tag as its tuner would have made it."""
    code = "from autotune_trials.supervisor import process_tags; print(process_tags.new_mark())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env
    )
    return process.pid, process.communicate()[0].strip()


def test_processes_memory_and_sockets_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, mark = a_dead_process()
    assert process_tags.is_stale(mark)
    before = Surroundings.of(tmp_path)
    segment, copy, socket = (
        Path(f"/dev/shm/torch_{pid}_7_0"),
        Path(f"/dev/shm/autotune-{mark}-x"),
        Path(f"/tmp/autotune-{mark}-y"),
    )
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=tmp_path)
    try:
        segment.touch()
        copy.mkdir()
        socket.mkdir()
        with monkeypatch.context() as patch:  # at the end, those of other tests may be there
            patch.delenv(SIDE_BY_SIDE, raising=False)
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
    (tmp_path / "job.yaml").touch()
    for path in (tmp_path / "journal.jsonl", tmp_path / "send.lock", tmp_path):
        path.touch()
        file = os.open(path, os.O_RDONLY)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert held(tmp_path) == [f"lock on {path}"]
        os.close(file)
    assert held(tmp_path) == []


# Files in the table of README.md that are checked in another way, or that start nothing.
OTHERWISE = {
    "agent/test_loop_styles.py": "the agent in a job; there is no tuner that could leave anything",
    "cli/test_whole_run.py": "one run for all tests of the file, which look at what it leaves",
    "sessions/test_real_jobs.py": "what a session leaves: sessions/test_clean_up.py",
    "sessions/test_side_effects.py": "files alone, and each is looked at",
    "executors/test_cluster_head.py": "starts nothing",
    "executors/test_ray_faults.py": "what is left on each node: ray_runs.py",
    "executors/test_ray_several_nodes.py": "what is left on each node: ray_runs.py",
    "job/test_odd_files.py": "reads files",
    "service/test_runs_on_a_cluster.py": (
        "its cluster is there for all tests of the file, which look for their jobs in it"
    ),
    "stages/test_proposer.py": "reads files",
    "tracking/test_secrets.py": "writes files",
    "verdict/test_loss.py": "functions of numbers",
}


def test_every_row_of_the_table_is_looked_after() -> None:
    folder = Path(__file__).parents[1]
    named = set(
        re.findall(r"`(\w+/test_\w+\.py)`", (folder / "faults" / "README.md").read_text("utf-8"))
    )
    unchecked = {
        name
        for name in named
        if 'usefixtures("nothing_is_left")' not in (folder / name).read_text("utf-8")
    }
    assert len(named) > 15 and unchecked == set(OTHERWISE)
