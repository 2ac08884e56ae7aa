"""Run directories that are not what they seem: another user's, the user's own files, a mount point."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.errors import InputError
from autotune.export.load import load_tuned
from autotune.export.tuned import TunedConfig, write_tuned
from autotune.job.load import load_job
from autotune.run_directory import check_run_dir, find_result, move_aside, require_run_directory

STUDY = '{"kind":"study","key":"","elapsed_s":0.0,"data":{"digest":"","name":"digits"}}\n'


def a_run(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "journal.jsonl").write_text(STUDY)
    (place / "result.json").write_text("{}")
    return place


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that may not be searched; tests may run as root, who may search all."""
    folder, stat = tmp_path / "private", os.stat
    folder.mkdir()

    def refusing(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if isinstance(path, (str, os.PathLike)) and f"{folder}/" in os.fspath(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refusing)
    yield folder
    monkeypatch.undo()


def test_a_folder_that_may_not_be_searched_is_a_mistake_of_the_user(private: Path) -> None:
    job = private.parent / "job.yaml"
    job.write_text(f"command: {private}/python train.py\n")
    with pytest.raises(InputError, match="does not exist in .* or may not be read"):
        load_job(job)
    with pytest.raises(InputError):
        find_result(str(private / "digits"))
    with pytest.raises(InputError):
        load_tuned(private / "tuned.yaml")
    check_run_dir(private / "runs" / "x")  # root may write there


@pytest.mark.parametrize("place", [".", "..", "link"])
def test_a_run_directory_that_holds_the_job_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What trials write there would not be put back, and --fresh would move the job."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "link").symlink_to(tmp_path)
    (home / "train.py").touch()
    (home / "job.yaml").write_text("command: python train.py\n")
    monkeypatch.chdir(home)
    for words in (
        ["run", "job.yaml", "--fresh", "--run-dir"],
        ["run", "job.yaml", "--run-dir"],
        ["judge", "job.yaml", "job.yaml", "--run-dir"],
        ["profile", "job.yaml", "--out"],
    ):
        assert main([*words, place]) == 2
        assert "contains the job's working directory" in capsys.readouterr().err
    assert (home / "train.py").exists() and not (home / "journal.jsonl").exists()


def test_a_run_is_found_beside_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    run = a_run(tmp_path / "autotune-runs" / "digits")
    assert find_result("digits").resolve() == run / "result.json"


def test_a_run_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "autotune-runs" / "digits")
    (run / "tracking").mkdir()
    (run / "tracking" / "spool.jsonl").touch()
    write_tuned(TunedConfig("digits", ("python", "train.py"), tmp_path), run / "tuned.yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "digits", "--dry-run"]) == 0
    assert main(["export", "digits", "--format", "shell"]) == 0
    for command in ("sync", "ui"):
        assert main([command, "digits"]) == 2
        assert "digits: this run was recorded without MLflow" in capsys.readouterr().err
        assert main([command, "digitz"]) == 2
        assert "digitz: there is no such run" in capsys.readouterr().err


@pytest.mark.parametrize("reason", [errno.EBUSY, errno.EACCES])
def test_a_directory_that_cannot_be_renamed(
    reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(self: Path, target: Path) -> None:
        raise OSError(reason, os.strerror(reason), str(self))

    run = a_run(tmp_path / "runs")
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(InputError, match="cannot be renamed to runs.1"):
        move_aside(run)


def test_the_users_own_files_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text("command: echo hi\ntracking: {uri: none}\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "loss.png").write_text("mine")
    words = ["run", f"{tmp_path}/job.yaml", "--run-dir", f"{tmp_path}/results", "--no-history"]
    assert main(words) == 2 and "loss.png" in capsys.readouterr().err
    assert os.listdir(tmp_path / "results") == ["loss.png"]
    (tmp_path / "results" / "result.json").write_text("{}")
    assert main(words[:-1]) == 2 and "result.json" in capsys.readouterr().err, "with the history"
    assert sorted(os.listdir(tmp_path / "results")) == ["loss.png", "result.json"]
    require_run_directory(a_run(tmp_path / "run"), "run")


def test_a_run_does_not_continue_a_profile(tmp_path: Path) -> None:
    """It would take the profile's records for its own."""
    journal = tmp_path / "journal.jsonl"
    journal.write_text('{"kind":"run","key":"profile-baseline|{}","elapsed_s":1.0,"data":{}}\n')
    with pytest.raises(InputError, match="directory of a profile"):
        require_run_directory(tmp_path, "run")
    require_run_directory(tmp_path, "profile")
    (tmp_path / "summary.json").touch()  # may be of the user's own
    journal.write_text('{"kind":"study","key":"","elapsed_s":0.1,"data":{"name":"job"}}\n')
    require_run_directory(tmp_path, "run")
    journal.write_text("")  # it has only begun
    require_run_directory(tmp_path, "judgement")


def test_a_run_that_is_refused_does_not_move_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")  # MLflow has given up plain directories
    (tmp_path / "job.yaml").write_text("command: echo hi\nname: job\n")
    run = a_run(tmp_path / "autotune-runs" / "job")
    assert main(["run", "job.yaml", "--fresh", "--no-history"]) == 2
    assert (run / "result.json").exists() and os.listdir(run.parent) == ["job"]
