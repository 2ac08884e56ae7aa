"""The command that a cluster receives: run by a real shell, with names that need quoting."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.job.load import load_job
from autotune.job.package import survey
from autotune.service.runs import _run
from autotune.service.submission import DIRECTORY_KEY, Reserve, Submission, job_root, prepare

ECHO = """#!/usr/bin/env python3
import json, os, sys
names = {"threads": "OMP_NUM_THREADS", "submission": "AUTOTUNE_SUBMISSION", "name": "AUTOTUNE_JOB_NAME", "gpus": "CUDA_VISIBLE_DEVICES"}
seen = {word: os.environ.get(name) for word, name in names.items()}
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), **seen}))
"""


def told(submission: Submission, cwd: Path, tmp_path: Path, **env: str) -> dict[str, object]:
    """What a program named autotune receives when the entrypoint runs as in Ray."""
    program = tmp_path / "bin" / "autotune"
    program.parent.mkdir(exist_ok=True)
    program.write_text(ECHO)
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **env}
    environment.pop("AUTOTUNE_RUNS", None) if "AUTOTUNE_RUNS" not in env else None
    done = subprocess.run(
        submission.entrypoint,
        shell=True,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def job_in(folder: Path, name: str = "job.yaml", more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"name: tiny\ncommand: python train.py\n{more}")
    return folder / name


@pytest.mark.parametrize(
    "name", ["job.yaml", "my job.yaml", "it's $HOME.yaml", '"; echo hacked; ".yaml', "-x.yaml"]
)
def test_the_words_arrive_as_they_are(name: str, tmp_path: Path) -> None:
    spec = load_job(job_in(tmp_path / "job", name), check=False)
    submission = prepare(spec, survey(job_root(spec)), Reserve(), run_options=["--minutes", "3"])
    seen = told(submission, tmp_path / "job", tmp_path)
    assert seen["argv"] == [
        "run",
        f"./{name}" if name.startswith("-") else name,
        "--minutes",
        "3",
        "--run-dir",
        f"autotune-runs/{submission.id}",
    ]
    assert seen["threads"] is None and seen["submission"] == submission.id


def test_a_job_without_a_name_is_called_after_its_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's folder for it has another name."""
    file = job_in(tmp_path / "my digits")
    file.write_text("command: python train.py\n")
    spec = load_job(file, check=False)
    name = told(prepare(spec, None, Reserve()), file.parent, tmp_path)["name"]
    assert name == spec.name == "my-digits"
    monkeypatch.setenv("AUTOTUNE_JOB_NAME", str(name))
    there = job_in(tmp_path / "_ray_pkg_1")
    assert load_job(there, check=False).name == "tiny"
    there.write_text("command: python train.py\n")
    assert load_job(there, check=False).name == "my-digits"
    assert "AUTOTUNE_JOB_NAME" not in os.environ


def test_runs_lie_where_the_service_says(tmp_path: Path) -> None:
    spec = load_job(job_in(tmp_path / "job"), check=False)
    submission = prepare(spec, survey(job_root(spec)), Reserve())
    seen = told(submission, tmp_path / "job", tmp_path, AUTOTUNE_RUNS=str(tmp_path / "all runs"))
    assert seen["argv"][-1] == f"{tmp_path}/all runs/{submission.id}"  # type: ignore[index]


@pytest.mark.parametrize(
    ("reserve", "seen"),
    [(Reserve(4.0, hides_gpus=True), ""), (Reserve(4.0), "3"), (Reserve(), "3")],
)
def test_a_run_that_reserves_cores_and_no_gpus_sees_none(
    reserve: Reserve, seen: str, tmp_path: Path
) -> None:
    """Ray hides GPUs only from those that reserve some."""
    spec = load_job(job_in(tmp_path / "job"), check=False)
    submission = prepare(spec, survey(job_root(spec)), reserve)
    at = tmp_path / "job"
    assert told(submission, at, tmp_path, CUDA_VISIBLE_DEVICES="3")["gpus"] == seen


def test_a_resumed_run_has_its_old_directory_and_a_new_id(tmp_path: Path) -> None:
    spec = load_job(job_in(tmp_path / "job"), check=False)
    package = survey(job_root(spec))
    first = prepare(spec, package, Reserve())
    second = prepare(spec, package, Reserve(), resume=first.id)
    assert second.id != first.id
    unknown = subprocess.run(
        second.entrypoint, shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert unknown.returncode == 2 and f"nothing to resume: no {first.id} in" in unknown.stdout
    (tmp_path / "job" / "autotune-runs" / first.id).mkdir(parents=True)
    assert told(second, tmp_path / "job", tmp_path)["argv"][-1] == f"autotune-runs/{first.id}"  # type: ignore[index]
    # and so has one that is resumed by the new ID
    assert second.metadata[DIRECTORY_KEY] == first.id
    asked = SimpleNamespace(
        submission_id=second.id,
        metadata=second.metadata,
        start_time=0,
        end_time=0,
        status=SimpleNamespace(value="STOPPED"),
        driver_exit_code=0,
        message="",
    )
    assert _run(asked).directory == first.id


def test_nothing_sent_means_the_folder_is_entered(tmp_path: Path) -> None:
    spec = load_job(job_in(tmp_path / "on the share"), check=False)
    submission = prepare(spec, None, Reserve())
    seen = told(submission, tmp_path, tmp_path)
    assert seen["cwd"] == str(tmp_path / "on the share")
    assert seen["argv"][:2] == ["run", str(tmp_path / "on the share" / "job.yaml")]  # type: ignore[index]


def test_a_job_file_below_the_folder_it_works_in(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("")
    spec = load_job(job_in(tmp_path / "project" / "tuning", more="workdir: ..\n"), check=False)
    package = survey(job_root(spec))
    assert package.files == ("train.py", "tuning/job.yaml")
    assert (
        told(prepare(spec, package, Reserve()), tmp_path / "project", tmp_path)["argv"][1]
        == "tuning/job.yaml"
    )  # type: ignore[index]


def test_what_ray_shows_of_a_run_holds_no_value_of_its_environment(tmp_path: Path) -> None:
    spec = load_job(job_in(tmp_path / "job", more="env: {API_KEY: hunter2hunter2}\n"), check=False)
    submission = prepare(spec, survey(job_root(spec)), Reserve())
    assert (
        "hunter2"
        not in submission.entrypoint + json.dumps(dict(submission.metadata)) + submission.id
    )
