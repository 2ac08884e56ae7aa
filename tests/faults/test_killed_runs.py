"""kill -9 of the tuner, the job, one rank or a DataLoader worker at random moments of a run; then
the same command again.

No finished trial is lost or counted twice, and the verdict is the planted one.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import wait_until
from faulty_runs import (
    PROVEN,
    SEARCHED,
    Killer,
    a_worker,
    counted_once,
    faulty_job,
    killed_and_resumed,
    one_rank,
    the_job,
    the_tuner,
    tree_of,
    trials_of,
)

BETWEEN_S = (0.5, 12.0)
WHOM: dict[str, Callable] = {
    "tuner": the_tuner,
    "job": the_job,
    "rank": one_rank,
    "worker": a_worker,
}
TORCHRUN = "torchrun --standalone --nproc-per-node 2 mine.py"
DISTRIBUTED = "torch.distributed.init_process_group('gloo')"
KILLS, ROUNDS = 10, 3  # 30 moments for each


@pytest.mark.faults
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("whom", "seed"), [(whom, seed) for whom in WHOM for seed in range(ROUNDS)]
)
def test_killed_again_and_again_it_ends_with_the_planted_verdict(
    whom: str, seed: int, tmp_path: Path
) -> None:
    ranks = whom == "rank"
    job = faulty_job(
        tmp_path / "job",
        DISTRIBUTED if ranks else "pass",
        text=PROVEN,
        command=TORCHRUN if ranks else "python mine.py",
    )
    killer = Killer(
        WHOM[whom], random.Random(f"{whom} {seed}"), BETWEEN_S, KILLS, paced=whom != "tuner"
    )
    codes = killed_and_resumed(job, killer, timeout_s=1400)
    assert killer.done, "somebody was killed"
    assert set(codes[:-1]) <= ({-9} if whom == "tuner" else {3}), (
        "ended by the kill, or told that the unchanged job was killed"
    )
    counted_once(job)
    assert job.result["verdict"] == "tuned" and job.result["knobs"] == {"num_workers": 2}, (
        job.result["reason"]
    )
    assert not job.left_over()


@pytest.mark.slow
def test_a_job_that_somebody_kills_in_a_trial_is_started_again(tmp_path: Path) -> None:
    """It is not mistaken for out of memory: its settings stay in the search."""
    job = faulty_job(tmp_path / "job", text=SEARCHED)
    killer = Killer(in_a_trial(job), random.Random(1), (0.0, 0.5), 1)
    assert killed_and_resumed(job, killer, timeout_s=120) == [0]
    assert killer.done == 1
    counted_once(job)
    [trial] = trials_of(job)
    assert trial["state"] in ("complete", "pruned"), trial


@pytest.mark.faults
def test_a_whole_tree_that_is_told_to_end_leaves_its_trial_unfinished(tmp_path: Path) -> None:
    """As service managers do, where the job gets the signal first. Tested in the default run by
    tests/stages/test_stop.py.
    """
    job = faulty_job(tmp_path / "job", text=SEARCHED)
    process = job.start()
    wait_until(lambda: in_a_trial(job)(process) or process.poll() is not None, 120, "a trial")
    for pid in tree_of(process):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "same command" in said, said
    assert not trials_of(job)
    assert job.run().returncode == 0
    counted_once(job)
    assert [t["state"] for t in trials_of(job)] in (["complete"], ["pruned"])


def in_a_trial(job) -> Callable:
    """The job's processes, once the search has begun."""

    def found(process) -> list[int]:
        began = any(entry["kind"] == "search-began" for entry in job.journal())
        return the_job(process) if began else []

    return found
