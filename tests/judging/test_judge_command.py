"""`autotune judge` on two commits of a small repository: by the command line, the GitHub Action and
from Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.judging.refs import checked_out
from autotune.judging.sides import digest, load_side

ROOT = Path(__file__).parents[2]
TRAIN = """\
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
centres, labels = torch.randn(8, 64), torch.randint(0, 8, (4096,))
data = TensorDataset(centres[labels] + 2 * torch.randn(4096, 64), labels)
loader = DataLoader(data, batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for epoch in range(1000):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
"""
CHANGES = {
    # tenfold: found even while other tests compute beside it
    "slowdown": TRAIN + "        time.sleep(0.03)\n",
    "fault": TRAIN.replace("lr=0.02", "lr=0.021"),
    "harmless": TRAIN.replace("targets", "wanted"),
    "larger": TRAIN.replace("batch_size=64", "batch_size=128"),
    "broken": TRAIN.replace("loader:", "loader2:"),
}
PLAIN = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return made(tmp_path / "repository")


def made(home: Path, more: str = "") -> Path:
    """A repository with the job in a folder, and one commit and tag per change."""
    (home / "job").mkdir(parents=True)
    git(home, "init", "--quiet")
    (home / "job" / "job.yaml").write_text(f"command: python train.py\n{more}")
    commit(home, TRAIN, "base")
    for name, text in CHANGES.items():
        git(home, "checkout", "--quiet", "base")
        commit(home, text, name)
    git(home, "checkout", "--quiet", "base")
    return home


def git(home: Path, *words: str) -> str:
    owner = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(
        ["git", *owner, *words],
        cwd=home,
        env={**os.environ, **PLAIN},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def commit(home: Path, text: str, tag: str) -> None:
    (home / "job" / "train.py").write_text(text)
    git(home, "add", "-A")
    git(home, "commit", "--quiet", "-m", tag)
    git(home, "tag", tag)


def judge(
    home: Path, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["autotune", "judge", "job/job.yaml", *words],
        cwd=home,
        text=True,
        capture_output=True,
        timeout=280,
        env={**os.environ, **PLAIN, **(env or {})},
    )


def judgement(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (home / "autotune-runs" / "job-judge" / "judgement.json").read_text()
    )
    return found


# A venv that already has autotune, and whose Python has none of the job's packages.
PYTHON = """\
#!/bin/sh
mkdir -p "$3/bin"
ln -s /bin/true "$3/bin/pip"
printf '#!/bin/sh\nexec {bin}/python {shorter} "$@"\n' > "$3/bin/autotune"
printf '#!/bin/sh\ncase "$1" in -) exec {bin}/python "$@";; *) exit 9;; esac\n' > "$3/bin/python"
chmod +x "$3/bin/autotune" "$3/bin/python"
"""
SHORTER = Path(__file__).parents[1] / "shorter.py"


def test_the_action_finds_a_slowdown(tmp_path: Path) -> None:
    """Runs the scripts of action.yml like a runner."""
    repository = made(tmp_path / "repository", more="convergence: {steps: 60}\n")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    install, step = action["runs"]["steps"]
    # the first look decides, unless other tests compute at the same time
    given = {"job": "job/job.yaml", "base-ref": "base", "head-ref": "slowdown", "minutes": "3"}
    values = {
        name: given.get(name, str(entry.get("default", "")))
        for name, entry in action["inputs"].items()
    }
    inputs = {name: values[text.split(".")[1].rstrip(" }")] for name, text in step["env"].items()}
    names = ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH")
    places = {name: str(tmp_path / name) for name in names}
    environment = {**os.environ, **PLAIN, **inputs, **places, "RUNNER_TEMP": str(tmp_path)}
    python = tmp_path / "python"
    python.write_text(PYTHON.format(bin=Path(sys.executable).parent, shorter=SHORTER))
    python.chmod(0o755)
    subprocess.run(
        ["bash", "-e", "-c", install["run"]],
        env={**environment, "PYTHON": str(python), "GITHUB_ACTION_PATH": str(ROOT)},
        check=True,
    )
    (tmp_path / "autotune-judge").mkdir()  # of an earlier use, which the step removes
    (tmp_path / "autotune-judge" / "judgement.json").write_text("{}")
    first = Path(places["GITHUB_PATH"])  # first on the PATH of later steps
    if first.exists():
        environment["PATH"] = f"{first.read_text().strip()}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        cwd=repository,
        env=environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 10, done.stdout + done.stderr
    outputs = dict(line.split("=") for line in Path(places["GITHUB_OUTPUT"]).read_text().split())
    assert (
        outputs["speed"] == "slower"
        and outputs["loss"] == "unchanged"
        and float(outputs["speedup"]) < 0.8
    )
    assert "B is slower" in Path(places["GITHUB_STEP_SUMMARY"]).read_text()
    assert "job/train.py" in (tmp_path / "autotune.sarif").read_text(), (
        "the line that sleeps, in the repository"
    )
    assert git(repository, "worktree", "list").count("\n") == 1 and not git(
        repository, "status", "--porcelain"
    )


def test_other_commits_are_another_judgement(repository: Path) -> None:
    side = load_side("A", repository / "job" / "job.yaml")
    identities = set()
    for head in ("slowdown", "harmless", "slowdown"):
        with checked_out(side, ("base", head), repository.parent / "worktrees") as sides:
            identities.add(digest(sides, ""))
    assert len(identities) == 2
    before = digest((side, side), "")
    (repository / "job" / "train.py").write_text(CHANGES["fault"])
    assert digest((side, side), "") != before, "the code has changed"


@pytest.mark.slow
def test_a_fault_a_harmless_change_and_a_resumed_judgement(repository: Path) -> None:
    changed = judge(
        repository,
        "--base-ref",
        "base",
        "--head-ref",
        "fault",
        "--minutes",
        "1",
        "--fail-if",
        "loss-changed",
    )
    assert changed.returncode == 10, changed.stderr
    assert "lr" in judgement(repository)["loss_verdict"]["reason"]
    again = judge(
        repository, "--base-ref", "base", "--head-ref", "fault", "--minutes", "1", "--json"
    )
    assert json.loads(again.stdout)["loss"] == "changed", "the finished judgement is shown"
    other = judge(repository, "--base-ref", "base", "--head-ref", "harmless")
    assert other.returncode == 2 and "--fresh" in other.stderr
    same = judge(
        repository,
        "--base-ref",
        "base",
        "--head-ref",
        "harmless",
        "--minutes",
        "3",
        "--margin",
        "0.3",
        "--fresh",
    )
    it = judgement(repository)
    assert it["speed"] == "same" and it["loss"] == "unchanged" and same.returncode == 0, it[
        "speed_reason"
    ]


@pytest.mark.slow
def test_from_python_and_with_a_tuned_file(repository: Path) -> None:
    tuned = (
        "schema_version: 2\nname: job\ncommand: [python, train.py]\nknobs: {optimizer_impl: {value:"
        " fused}}\n"
    )
    (repository / "job" / "tuned.yaml").write_text(tuned)
    code = (
        "import autotune, threading\ndef work(): print(autotune.judge('job/job.yaml',"
        " 'job/tuned.yaml', minutes=1, margin=0.3).loss)\nthread = threading.Thread(target=work);"
        " thread.start(); thread.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, text=True, capture_output=True, timeout=280
    )
    assert done.stdout == "unchanged\n", done.stderr


# simulated in every run by test_played_judgement.py
@pytest.mark.slow
def test_sides_that_do_other_work_are_refused(repository: Path) -> None:
    done = judge(repository, "--base-ref", "base", "--head-ref", "larger")
    assert done.returncode == 2 and "samples per iteration: 64.0 in A, 128.0 in B" in done.stderr, (
        done.stderr
    )
    assert "judge: side=" not in done.stdout, "before anything is timed"


@pytest.mark.slow
def test_a_side_that_fails_is_named(repository: Path) -> None:
    done = judge(repository, "--base-ref", "base", "--head-ref", "broken")
    assert done.returncode == 3 and "loader2" in done.stderr, done.stderr
    assert "B, broken: the job fails" in done.stderr and "tune" not in done.stderr.split("do:")[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["nothing to compare A with", "--base-ref"]),
        (["job/job.yaml", "--base-ref", "base"], ["cannot be combined"]),
        (["--base-ref", "nowhere"], ["nowhere", "no such commit"]),
        (["--base-ref", "-h"], ["-h", "no such commit"]),
        (["--b-env", "OMP"], ["--b-env OMP", "NAME=VALUE"]),
        (["--b-python", "/nowhere/python"], ["not an executable file", "/nowhere/python"]),
        (["--b-command", "python nowhere.py"], ["nowhere.py"]),
        (["--b-command", "python 'train.py"], ["quotes do not match"]),
        (["--b-env", "A=1", "--loss", "alike"], ["--loss", "random-stream"]),
        (["--b-env", "A=1", "--fail-if", "slow"], ["--fail-if slow", "slower:2%"]),
        (["--b-env", "A=1", "--junit", "nowhere/j.xml"], ["--junit nowhere/j.xml", "a directory"]),
        (["nowhere.yaml"], ["nowhere.yaml", "no such file"]),
    ],
)
def test_bad_input_is_one_message(repository: Path, words: list[str], said: list[str]) -> None:
    done = judge(repository, *words)
    assert done.returncode == 2, done.stderr
    assert all(word in done.stderr for word in said), done.stderr
    assert not (repository / "autotune-runs").exists()


def test_uncommitted_changes_are_refused(repository: Path) -> None:
    (repository / "job" / "train.py").write_text("# mine\n")
    done = judge(repository, "--base-ref", "slowdown")
    assert (
        done.returncode == 2 and "job/train.py" in done.stderr and "commit or stash" in done.stderr
    )
    assert (repository / "job" / "train.py").read_text() == "# mine\n"
