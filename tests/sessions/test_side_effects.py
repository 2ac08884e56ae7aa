"""Real training jobs that save, resume, log and track, in real sessions: each trial starts like the
first, and none of the user's files changes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from session_paths import REPO
from session_waits import wait_for

from autotune.executors.base import FixedRun, SessionFailed
from autotune.executors.local import LocalExecutor
from autotune.executors.side_effects import summary
from autotune.job.spec import JobSpec, SideEffects
from autotune.report.text.written import written_lines
from autotune_spaces.base import SearchSpace
from autotune_spaces.knobs import create
from autotune_trials.protocol.messages import Block

RESUMES = """
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
first = 0
if os.path.exists("out/ckpt.pt"):
    state = torch.load("out/ckpt.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
os.makedirs("out", exist_ok=True)
log = open("out/log.csv", "a")
step = first
while step < first + int(sys.argv[1]):
    for x, y in DataLoader(data, batch_size=16):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        log.write(f"{step},{loss.item().hex()}\\n")
        log.flush()
        if step % 4 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "out/ckpt.tmp")
            os.replace("out/ckpt.tmp", "out/ckpt.pt")
            torch.save(model.state_dict(), "out/best.pt")
"""


def files(folder: Path) -> dict[str, tuple[str, int]]:
    found = (
        p
        for p in sorted(folder.rglob("*"))
        if p.is_file() and "run" not in p.relative_to(folder).parts
    )
    return {
        str(p.relative_to(folder)): (
            hashlib.sha256(p.read_bytes()).hexdigest(),
            p.stat().st_mtime_ns,
        )
        for p in found
    }


def bare(folder: Path, steps: int) -> list[float]:
    """Losses that the program itself logs without tuning."""
    subprocess.run(
        [sys.executable, "train.py", str(steps)],
        cwd=folder,
        check=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return [
        float.fromhex(line.split(",")[1])
        for line in (folder / "out/log.csv").read_text().splitlines()
    ]


def executor(folder: Path, run: str = "run", **options: object) -> LocalExecutor:
    spec = JobSpec(
        "job",
        (sys.executable, "train.py", "100000"),
        folder,
        {"OMP_NUM_THREADS": "1"},
        SearchSpace("test", (create("num_workers", {}),)),
        hang_timeout_s=30.0,
        startup_timeout_s=60.0,
        **options,
    )
    return LocalExecutor(spec, folder / run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "resumed", [True, False], ids=["a good checkpoint is there", "none is there"]
)
def test_every_trial_starts_as_the_first_and_the_users_checkpoint_is_untouched(
    tmp_path: Path, resumed: bool
) -> None:
    (tmp_path / "train.py").write_text(RESUMES)
    ground = tmp_path.parent / f"{tmp_path.name}-ground"
    ground.mkdir()
    (ground / "train.py").write_text(RESUMES)
    for folder in (tmp_path, ground) if resumed else ():
        bare(folder, 48)
    truth = bare(ground, 32)[-32:][:24]
    before = files(tmp_path)
    tuner = executor(tmp_path)
    if resumed:
        with tuner.open_live() as live:
            live.measure([Block("b", (), 20)])
    records = [
        tuner.run_fixed(FixedRun(config, seed=0, steps=24)) for config in ({}, {"num_workers": 1})
    ]
    assert files(tmp_path) == before
    for record in records:
        assert list(record.losses) == truth
    written = summary(tmp_path / "run", tmp_path)
    if resumed:
        assert (
            set(written.restored) == {"out/best.pt", "out/ckpt.pt", "out/log.csv"}
            and not written.noticed
        )
    else:
        assert (
            written.removed == ("out",)
            and written.counts["removed"] == 1
            and not (tmp_path / "out").exists()
        )
    assert not written.unkept and not written.failed


@pytest.mark.slow
def test_trials_that_are_not_put_back_resume_from_each_other(tmp_path: Path) -> None:
    """The problem itself: without it the test above would prove nothing."""
    (tmp_path / "train.py").write_text(RESUMES)
    tuner = executor(tmp_path, side_effects=SideEffects(put_back=False))
    first, second = (tuner.run_fixed(FixedRun({}, seed=0, steps=12)) for _ in range(2))
    assert first.losses[0] != second.losses[0] and (tmp_path / "out/ckpt.pt").exists()


SECOND = """
import sys
from pathlib import Path
from autotune.errors import InputError
from autotune.executors.local import LocalExecutor
from autotune.job.spec import JobSpec, SideEffects
from autotune.report.text.written import written_lines
from autotune_spaces.base import SearchSpace
folder = Path(sys.argv[1])
spec = JobSpec("job", ("true",), folder, {}, SearchSpace("test", ()), side_effects=SideEffects(put_back=sys.argv[2] == "True"))
try:
    LocalExecutor(spec, folder.parent / "second").close()
except InputError as error:
    print(error)
"""


def test_two_runs_in_one_working_directory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "link").symlink_to("home")

    def second(put_back: bool) -> str:
        words = [sys.executable, "-c", SECOND, str(tmp_path / "link"), str(put_back)]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout

    first, again = executor(home), executor(home)
    assert (
        "put_back: false" in second(True)
        and str(tmp_path / "link") in second(True)
        and not second(False)
    )
    first.close()
    assert second(True), "the same process still holds it"
    again.close()
    assert not second(True) and not list(home.iterdir())


@pytest.mark.parametrize("inner_first", [True, False])
def test_two_runs_of_which_one_works_inside_the_others_directory(
    tmp_path: Path, inner_first: bool
) -> None:
    home, inner, beside = (
        tmp_path / "home",
        tmp_path / "home" / "deep" / "er",
        tmp_path / "home" / "deep" / "beside",
    )
    for folder in (inner, beside):
        folder.mkdir(parents=True)
    first, second = (inner, home) if inner_first else (home, inner)

    def start(folder: Path) -> str:
        words = [sys.executable, "-c", SECOND, str(folder), "True"]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout

    tuner = executor(first)
    try:
        assert ("inside it" if inner_first else f"in {home}, which contains") in start(second)
        assert bool(start(beside)) is not inner_first, "siblings do not disturb each other"
    finally:
        tuner.close()
    assert not start(second)


def test_where_directories_cannot_be_locked_a_run_goes_on(tmp_path: Path, monkeypatch) -> None:
    asked: list[object] = []

    def no_locks(*args: object) -> None:
        asked.append(args)
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("autotune.executors.side_effects.fcntl.flock", no_locks)
    executor(tmp_path).close()
    assert asked


@pytest.mark.slow
def test_a_file_that_was_changed_unseen_is_told(tmp_path: Path) -> None:
    program = RESUMES.replace(
        "        if step % 4",
        "        os.system('echo x >> unseen.log') if step == 3 else None\n        if step % 4",
    )
    (tmp_path / "train.py").write_text(program)
    tuner = executor(tmp_path)
    tuner.run_fixed(FixedRun({}, seed=0, steps=8))
    assert summary(tmp_path / "run", tmp_path).noticed == ("unseen.log",)


def test_a_write_that_could_not_be_recorded_is_told(tmp_path: Path, monkeypatch) -> None:
    from autotune_trials.agent.bootstrap import log
    from autotune_trials.agent.side_effects import file_watch

    session = tmp_path / "run" / "sessions" / "0001-live"
    session.mkdir(parents=True)
    monkeypatch.setenv("AUTOTUNE_SESSION", str(session / "session.json"))
    monkeypatch.setattr(log, "_left", set())
    monkeypatch.setattr(file_watch, "_recorder", object())  # has no methods
    file_watch.about_to_write(tmp_path / "model.pt")
    (line,) = [
        line for line, urgent in written_lines(summary(tmp_path / "run", tmp_path)) if urgent
    ]
    assert line.startswith("perhaps a file that 0001-live wrote was changed by trials")
    assert "AttributeError" in (session / "agent.log").read_text()


@pytest.mark.slow
def test_a_trial_that_crashes_is_put_back_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESUMES)
    bare(tmp_path, 12)
    (tmp_path / "train.py").write_text(
        RESUMES.replace(
            "        if step % 4", "        assert step != first + 7\n        if step % 4"
        )
    )
    before = files(tmp_path)
    with pytest.raises(SessionFailed):
        executor(tmp_path).run_fixed(FixedRun({}, seed=0, steps=100))
    assert files(tmp_path) == before


TRACKED = """
import json, mlflow
mlflow.set_tracking_uri("http://production.example:5000")
mlflow.set_experiment("theirs")
with mlflow.start_run() as run:
    mlflow.log_metric("loss", 1.0)
client = mlflow.MlflowClient(tracking_uri="sqlite:///mine.db")
found = [e.name for e in client.search_experiments()]
with open("seen.json", "w") as file:
    json.dump({"uri": mlflow.get_tracking_uri(), "artifacts": run.info.artifact_uri, "found": found}, file)
open("done", "w").close()
"""


def test_mlflow_of_the_job_stays_in_the_trials_directory_whatever_its_code_says(
    make_session, tmp_path: Path
) -> None:
    session = make_session(TRACKED, keep=("seen.json",), env={"MLFLOW_DISABLE_TELEMETRY": "true"})
    wait_for((tmp_path / "done").exists, 60)
    session.close()
    seen = json.loads((tmp_path / "seen.json").read_text())
    store = (session.paths.out / "mlruns").as_uri()
    assert (
        seen["uri"] == store and seen["artifacts"].startswith(store) and "theirs" in seen["found"]
    )
    assert not (tmp_path / "mine.db").exists() and not (tmp_path / "mlruns").exists()
    assert session.paths.agent_log.exists() is False


BOARD = """
import os, sys, torch
from torch.utils.tensorboard import SummaryWriter
default, named = SummaryWriter(), SummaryWriter("boards/mine")
for step in range(3):
    default.add_scalar("loss", 1.0, step); named.add_scalar("loss", 1.0, step)
default.flush(); named.flush()
assert len(os.listdir("runs")) == 1 and len(os.listdir("boards/mine")) == 2
open("done", "w").close()
"""
SAFE = """
import torch
from safetensors.torch import save_file
save_file({"w": torch.ones(3)}, "model.safetensors")
torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "model.ts")
open("done", "w").close()
"""
WANDB = """
import os, wandb
run = wandb.init(project="theirs", mode="online", dir=".", settings=wandb.Settings(silent=True))
run.log({"loss": 1.0})
assert run.offline and run.dir.startswith(os.environ["WANDB_DIR"]), run.dir
run.finish()
open("done", "w").close()
"""


def python_with(module: str) -> str:
    """A Python that has ``module`` and torch: this one, or the one of the compat tests."""
    for python in filter(None, (sys.executable, os.environ.get("AUTOTUNE_COMPAT_PYTHON"))):
        if (
            subprocess.run(
                [python, "-c", f"import {module}, torch"], capture_output=True, timeout=300
            ).returncode
            == 0
        ):
            return python
    pytest.skip(f"{module} is not installed; AUTOTUNE_COMPAT_PYTHON names a Python that has it")


@pytest.mark.compat
@pytest.mark.parametrize(
    ("module", "job"),
    [("tensorboard", BOARD), ("safetensors", SAFE), ("wandb", WANDB)],
    ids=["tensorboard", "safetensors", "wandb"],
)
def test_what_other_libraries_write(make_session, tmp_path: Path, module: str, job: str) -> None:
    (tmp_path / "boards" / "mine").mkdir(parents=True)
    (tmp_path / "boards" / "mine" / "events.old").write_text("the user's own")
    (tmp_path / "model.safetensors").write_bytes(b"good")
    (tmp_path / "train.py").write_text(job)
    before = files(tmp_path)
    path = os.pathsep.join(
        [os.environ.get("PYTHONPATH", ""), str(REPO / "trials"), str(REPO / "search_spaces")]
    )
    session = make_session(
        [python_with(module), "train.py"],
        keep=(),
        env={"PYTHONPATH": path},
        root=tmp_path.parent / f"{tmp_path.name}-session",
    )
    wait_for(lambda: (tmp_path / "done").exists() or session.command.exit_status is not None, 90)
    session.close()
    assert files(tmp_path) == before
    assert "done" in {Path(path).name for path in session.outcome["removed"]}, (
        session.paths.stderr.read_text()
    )
    assert not (tmp_path / "runs").exists() and not (tmp_path / "wandb").exists()
