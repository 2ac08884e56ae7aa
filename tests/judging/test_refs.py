"""The worktrees of two commits: whose code runs in them, and who may use them."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_judge_command import git

from autotune.errors import InputError
from autotune.judging.refs import checked_out
from autotune.judging.sides import load_side


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A repository whose package is in src/, with an editable installation in an environment."""
    home = tmp_path / "repository"
    (home / "job").mkdir(parents=True)
    (home / "src" / "package").mkdir(parents=True)
    git(home, "init", "--quiet")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [site] = environment.glob("lib/python*/site-packages")
    (site / "package.pth").write_text(f"{home / 'src'}\n{sysconfig.get_path('purelib')}\n")
    (home / "job" / "train.py").write_text(
        "import package, sys; print(package.VERSION, *sys.argv[1:])"
    )
    for version in ("1", "2"):
        (home / "src" / "package" / "__init__.py").write_text(f"VERSION = {version}\n")
        (home / "job" / "conf.yaml").write_text(f"version: {version}\n")
        (home / "job" / "job.yaml").write_text(
            f"command: {environment}/bin/python train.py --conf={home}/job/conf.yaml\n"
            f"env:\n  CONF: {home}/job/conf.yaml:{home}/data\n"
        )
        git(home, "add", "-A")
        git(home, "commit", "--quiet", "-m", version)
        git(home, "tag", f"v{version}")
    return home


@pytest.mark.parametrize("way", ["installed", "exported", "job file"])
def test_each_commit_imports_its_own_code(
    installed: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if way == "exported":
        monkeypatch.setenv("PYTHONPATH", f"{installed / 'src'}")
    if way == "job file":
        with open(installed / "job" / "job.yaml", "a") as file:
            file.write(f"  PYTHONPATH: {installed}/src\n")
        git(installed, "commit", "--quiet", "-am", "with PYTHONPATH")
    side = load_side("A", installed / "job" / "job.yaml")
    folder = installed / "autotune-runs" / "job-judge-worktrees"
    with checked_out(side, ("v1", "v2"), folder) as sides:
        for it, version in zip(sides, "12", strict=True):
            home = folder / it.name
            said = subprocess.run(
                it.spec.command,
                cwd=it.spec.workdir,
                env=dict(it.spec.env),
                capture_output=True,
                text=True,
            )
            assert said.stdout.split() == [version, f"--conf={home}/job/conf.yaml"], said.stderr
            assert it.spec.env["CONF"] == f"{home}/job/conf.yaml:{installed}/data"


def test_a_path_with_a_space_in_a_shell_line_is_the_commits(tmp_path: Path) -> None:
    home = tmp_path / "repository"
    (home / "my dir").mkdir(parents=True)
    git(home, "init", "--quiet")
    script = home / "my dir" / "train.py"
    line = f"{sys.executable} '{script}' {'x' * 300}"
    (home / "job.yaml").write_text(f"command: [bash, -c, {json.dumps(line)}]\n")
    for version in ("1", "2"):
        script.write_text(f"print({version})\n")
        git(home, "add", "-A")
        git(home, "commit", "--quiet", "-m", version)
        git(home, "tag", f"v{version}")
    side = load_side("A", home / "job.yaml")
    with checked_out(side, ("v1", "v2"), home / "autotune-runs" / "trees") as sides:
        said = [
            subprocess.run(it.spec.command, cwd=it.spec.workdir, capture_output=True, text=True)
            for it in sides
        ]
    assert [one.stdout for one in said] == ["1\n", "2\n"]


def test_a_second_judgement_leaves_the_worktrees_of_the_first_alone(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    side = load_side("A", installed / "job" / "job.yaml")
    folder = installed.parent / "worktrees"
    with checked_out(side, ("v1", "v2"), folder) as sides:
        with (
            pytest.raises(InputError, match="another judgement"),
            checked_out(side, ("v2", "v2"), folder),
        ):
            pass
        assert sides[0].spec.workdir.is_dir()
        # git no longer knows it, and removes nothing
        (folder / "A" / ".git").write_text("gone")
    assert "could not be removed" in capsys.readouterr().out
    with open(folder / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_worktree_that_another_clone_left_is_replaced(tmp_path: Path) -> None:
    """Its judgement was killed, and the repository cloned anew."""
    clones = []
    for name in ("first", "second"):
        clones.append(tmp_path / name)
        clones[-1].mkdir()
        git(clones[-1], "init", "--quiet")
        (clones[-1] / "job.yaml").write_text("command: echo hi\n")
        git(clones[-1], "add", "-A")
        git(clones[-1], "commit", "--quiet", "-m", "x")
    folder = tmp_path / "worktrees"
    folder.mkdir()
    git(clones[0], "worktree", "add", "--detach", str(folder / "A"), "HEAD")
    side = load_side("A", clones[1] / "job.yaml")
    with checked_out(side, ("HEAD", "HEAD"), folder) as sides:
        assert all(s.worktree and (s.worktree / "job.yaml").exists() for s in sides)
