"""Jobs that do what jobs should not: the run ends with its verdict or one clear sentence, and they
leave nothing behind.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from faulty_runs import SEARCHED, faulty_job, tree_of, trials_of, whole_entries
from odd_jobs import CLOSES, ODD_BUT_WELL


@pytest.mark.faults  # all at once: test_odd_names.py
@pytest.mark.parametrize("job", [j for j in ODD_BUT_WELL if j != "all at once"])
def test_an_odd_job_is_tuned_like_any_other(job: str, tmp_path: Path) -> None:
    command = (
        "setsid --wait python mine.py" if job == "is a session of its own" else "python mine.py"
    )
    made = faulty_job(tmp_path / "job", *ODD_BUT_WELL[job], SEARCHED, command)
    process = made.start()
    peak_kib = jobs_kib = 0
    while process.poll() is None:
        peak_kib = max(peak_kib, memory_kib(process.pid))
        jobs_kib = max([jobs_kib, *map(memory_kib, tree_of(process))])
        time.sleep(0.2)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert [t["state"] for t in trials_of(made)] in (["complete"], ["pruned"])
    assert peak_kib < 600 << 10, "what the job wastes is not the tuner's"
    assert jobs_kib > 1 << 20 or job != "leaks"
    logs = [path.stat().st_size for path in made.run_dir.rglob("std*.log")]
    assert sum(logs) < len(logs) * (13 << 20), "of a gigabyte the first and the last part are kept"


def memory_kib(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


@pytest.mark.faults
def test_a_job_that_closes_every_file_in_the_middle_is_told_apart_from_a_hang(
    tmp_path: Path,
) -> None:
    """The agent's connection, too. The job goes on; the tuner reports it instead of waiting."""
    job = faulty_job(tmp_path / "job", "pass", f"if step == 40: {CLOSES}")
    began = time.monotonic()
    done = job.run()
    assert time.monotonic() - began < 100
    assert done.returncode in (3, 4), done.stderr
    assert "closed its connection" in done.stderr or "ended before" in done.stderr, done.stderr
    assert "bug in autotune" not in done.stderr


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_a_deadlock_in_a_worker_costs_the_trial_and_not_the_run(tmp_path: Path) -> None:
    """Workers that never deliver a batch: the trial fails as a hang."""
    job = faulty_job(tmp_path / "job")
    script = (job.folder / "mine.py").read_text()
    lock = "if torch.utils.data.get_worker_info(): LOCK.acquire()\n        time.sleep("
    script = script.replace("time.sleep(", lock, 1).replace(
        "class Slow", "import threading\nLOCK = threading.Lock()\n\nclass Slow"
    )
    (job.folder / "mine.py").write_text(script)
    done = job.run(timeout_s=380)
    assert done.returncode == 0, done.stderr
    [trial] = trials_of(job)
    assert trial["state"] == "failed" and trial["reason"].startswith("hang"), trial
    assert trial["wall_s"] < 120, "by the job's own pace, once"
    assert job.result["verdict"] == "keep-baseline"


@pytest.mark.faults
def test_exit_0_too_early_in_a_trial_is_no_measurement(tmp_path: Path) -> None:
    """The candidate's runs exit successfully before anything can be timed."""
    early = "if torch.get_num_threads() == 1 and step > 3: sys.exit(0)"
    text = SEARCHED.replace("num_workers: [0, 1]", "intra_op_threads: [1, 2]")
    job = faulty_job(tmp_path / "job", "torch.set_num_threads(2)", early, text)
    done = job.run()
    assert done.returncode == 0, done.stderr
    [trial] = trials_of(job)
    assert trial["state"] == "failed" and "ended before" in trial["reason"], trial
    assert job.result["verdict"] == "keep-baseline" and whole_entries(job)
