"""Stopped, killed or started twice: no finished work is lost, nothing counts twice, and no process
is left behind.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest
from command_line import QUICK, Job, make_job, wait_until

pytestmark = pytest.mark.usefixtures("nothing_is_left")

# Workers only slow this job down. Nothing beats the baseline in the search, so there is nothing to
# confirm.
NO_GAIN = QUICK.replace(
    "{{amp_dtype: auto, optimizer_impl: auto, intra_op_threads: auto}}",
    "{{num_workers: [0, 1, 2, 3]}}",
)


def trials(job: Job) -> list[dict]:
    return [e["data"] for e in job.journal() if e["kind"] == "trial"]


def series(job: Job) -> list[dict]:
    return [e for e in job.journal() if e["kind"] == "plot"]


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_carries_on(tmp_path: Path) -> None:
    # three trials finish with the first blocks
    job = make_job(tmp_path / "job", "python own_modules.py", QUICK.replace(", trials: 3", ""))
    process = job.start()
    wait_until(lambda: series(job), 90, "the first blocks of the search")
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "saved" in err and "same command" in err
    wait_until(lambda: not job.left_over(), 10, "the job's processes to end")
    before = job.journal()
    with (job.folder / "own_modules.py").open("a") as program:
        program.write("# edited meanwhile\n")
    again = job.start()
    wait_until(
        lambda: any(e["kind"] in ("plot", "found", "run") for e in job.journal()[len(before) :]),
        90,
        "what comes next",
    )
    os.kill(again.pid, signal.SIGINT)
    _, err = again.communicate(timeout=60)
    assert again.returncode == 130, err
    assert "own_modules.py has changed since this run began" in " ".join(err.split())
    assert job.journal()[: len(before)] == before, "what was measured is kept as it was"
    assert [e["kind"] for e in job.journal()].count("observation") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "text"), [(1, NO_GAIN), *((n, QUICK) for n in range(2, 8))], ids=range(1, 8)
)
def test_killed_at_any_moment_it_resumes(seed: int, text: str, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", "python own_modules.py", text)
    entries = random.Random(seed).randint(1, 4)
    process = job.start()
    wait_until(
        lambda: len(job.journal()) >= entries or process.poll() is not None,
        120,
        f"{entries} journal entries",
    )
    process.kill()
    process.communicate()
    wait_until(lambda: not job.left_over(), 15, "the job's processes to end with the tuner")
    before = job.journal()
    finished = job.run()
    assert finished.returncode == 0, finished.stderr
    assert job.journal()[: len(before)] == before
    keys = [str(sorted(t["config"].items())) for t in trials(job)]
    assert len(set(keys)) == len(keys), "no configuration is measured twice"
    assert len([e for e in job.journal() if e["kind"] == "observation"]) == 1


@pytest.mark.slow
def test_a_finished_run_is_shown_again_and_fresh_moves_it_aside(tmp_path: Path) -> None:
    # the server is down for the whole run, which costs one line and nothing else
    dead_server = NO_GAIN.replace("uri: null", "uri: 'http://127.0.0.1:9'")
    job = make_job(tmp_path / "job", "python own_modules.py", dead_server)
    first = job.run()
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("127.0.0.1:9") == 1 and "autotune sync" in first.stderr
    spool = (job.run_dir / "tracking" / "spool.jsonl").read_text()
    assert [json.loads(line)["kind"] for line in spool.splitlines()][-1] == "finish"
    before = job.journal()
    again = job.run()
    assert again.returncode == 0
    assert job.journal() == before
    (job.folder / "job.yaml").write_text(QUICK.format(command="python validation.py"))
    other = job.run()
    assert other.returncode == 2
    assert "--fresh" in other.stderr
    process = job.start("--fresh")
    moved = job.folder / "autotune-runs" / "job.1"
    wait_until(lambda: moved.exists() and job.journal(), 60, "the new run to have begun")
    second = job.run()  # while the first one runs
    assert second.returncode == 2
    assert "another autotune run" in second.stderr
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert (moved / "result.json").exists(), "moved aside, not deleted"
