"""A failure ends with one clear message and its own exit code, and leaves no half-written files."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import QUICK, Job, make_job
from tiers import slow

from autotune.executors.side_effects import WorkdirLock
from autotune.tracking.spool import SpoolPaths, read_events

pytestmark = pytest.mark.usefixtures("nothing_is_left")

FAILS = """\
import torch
from common import dataset, loss_function, model
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(1000):
    inputs, labels = dataset(32).tensors
    loss_function(net(inputs), labels).backward()
    optimizer.step()
    if step == 20:
        raise RuntimeError("the disk with the data is gone")
"""
SHORT = FAILS.replace("range(1000)", "range(12)").replace("if step == 20", "if False")
ONE_EPOCH = """\
import torch
from common import dataset, loss_function, model
from torch.utils.data import DataLoader
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for inputs, labels in DataLoader(dataset(800), batch_size=32):
    loss_function(net(inputs), labels).backward()
    optimizer.step()
"""
RAISED = ["RuntimeError: the disk with the data is gone", "mine.py:", "without a terminal"]
QUIET = "import torch\nprint('nothing to train today')\n"


@pytest.mark.parametrize(
    ("program", "command", "code", "words"),
    [
        slow(FAILS, "python mine.py", 3, RAISED, id="raises"),
        (SHORT, "python mine.py", 3, ["the job is too short to be timed", "epochs or steps"]),
        (QUIET, "python mine.py", 4, ["optimizer", "autotune.step("]),
        (QUIET, "python -I mine.py", 4, ["-I"]),
        (QUIET, "python missing.py", 2, ["missing.py", "job.yaml:2"]),
        (QUIET, "pyhton mine.py", 2, ["pyhton", "job.yaml:2"]),
    ],
    ids=[None, "too short", "never steps", "isolated", "no such script", "no such program"],
)
def test_a_job_that_cannot_be_tuned_says_why(
    program: str, command: str, code: int, words: list[str], tmp_path: Path
) -> None:
    job = make_job(tmp_path / "job", command)
    (job.folder / "mine.py").write_text(program)
    ends_with(job, code, words)
    if code == 2:
        assert not job.run_dir.exists(), "nothing is started, nothing is written"


def ends_with(job: Job, code: int, words: list[str]) -> str:
    """The error output of a run that has to end with ``code`` and ``words``."""
    finished = job.run()
    assert finished.returncode == code, finished.stderr
    for word in words:
        assert word in finished.stderr
    assert "bug in autotune" not in finished.stderr
    assert not (job.run_dir / "result.json").exists()
    assert not job.left_over()
    return finished.stderr


@pytest.mark.slow
def test_a_job_whose_epochs_a_live_session_stretches_is_refused_before_the_search(
    tmp_path: Path,
) -> None:
    """25 steps are enough to try settings, but too few to prove anything."""
    job = make_job(tmp_path / "job", "python mine.py")
    (job.folder / "mine.py").write_text(ONE_EPOCH)
    for _ in range(2):  # nothing measured is kept for the resumed run
        finished = job.run()
        assert finished.returncode == 3, finished.stderr
        for word in [
            "too short",
            "25 optimizer steps",
            "at least 40",
            "increase the number of epochs",
            "python mine.py",
        ]:
            assert word in finished.stderr
    assert not [entry for entry in job.journal() if entry["kind"] in ("trial", "run")]


def test_a_tracking_server_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    """The run goes on, here to the job's own error, which is still reported. For a run that goes on
    to its end, see test_resume.py.
    """
    text = QUICK.replace("uri: null", "uri: 'http://127.0.0.1:9'")
    job = make_job(tmp_path / "job", "python mine.py", text)
    (job.folder / "mine.py").write_text(FAILS)
    said = ends_with(job, 3, RAISED)
    assert said.count("MLflow at http://127.0.0.1:9 fails: Connection refused") == 1
    assert (job.run_dir / "tracking" / "spool.jsonl").exists()


def test_a_tracking_uri_that_is_none(tmp_path: Path) -> None:
    job = make_job(
        tmp_path / "job",
        "python own_modules.py",
        QUICK.replace("uri: null", "uri: 'http://host:port'"),
    )
    finished = job.run()
    assert finished.returncode == 2
    assert "'http://host:port' is not a tracking URI" in finished.stderr
    assert not job.run_dir.exists(), "nothing is started, nothing is written"


def test_a_run_directory_that_cannot_be_written(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", "python own_modules.py")
    (tmp_path / "file").write_text("in the way")
    finished = job.run("--run-dir", str(tmp_path / "file" / "run"))
    assert finished.returncode == 2
    assert "--run-dir" in finished.stderr


def test_flags_that_exclude_each_other(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", "python own_modules.py")
    finished = job.run("--json")  # job.run always adds --quiet
    assert finished.returncode == 2
    assert "--quiet" in finished.stderr


def test_a_run_that_cannot_begin_is_on_record_as_failed(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", "python own_modules.py")
    lock = WorkdirLock(job.folder)  # as held by another run
    try:
        finished = job.run()
    finally:
        lock.release()
    assert (
        finished.returncode == 2
        and "another autotune run has trials in this working directory" in finished.stderr
    )
    events = [event for event, _ in read_events(SpoolPaths(job.run_dir).spool)]
    assert [event.kind for event in events] == ["spool", "start", "finish"]
    assert events[-1].data["status"] == "FAILED"
