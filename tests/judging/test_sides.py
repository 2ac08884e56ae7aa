"""The sides of a judgement, without running them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.executors.side_effects import WorkdirLock
from autotune.judging.sides import Change, changed, common, digest, load_side

TUNED = "schema_version: 2\nname: job\ncommand: [python, train.py]\nknobs: {}\n"
JOB = """\
command: python train.py
convergence: {tolerance: 2%, steps: 300}
side_effects: {put_back: false}
startup_timeout_s: 900
hang_timeout_s: 500
budget: {minutes: 7}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("train.py", ""), ("job.yaml", JOB), ("tuned.yaml", TUNED)):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("names", [("job", "tuned"), ("tuned", "job"), ("job", "job")])
def test_the_job_files_limits_hold_for_both_sides(names: tuple[str, str], folder: Path) -> None:
    first, second = (
        load_side(side, folder / f"{name}.yaml") for side, name in zip("AB", names, strict=True)
    )
    for side in common(first, second):
        spec = side.spec
        assert (spec.convergence.tolerance, spec.convergence.steps) == (0.02, 300)
        assert not spec.side_effects.put_back
        assert (spec.startup_timeout_s, spec.hang_timeout_s) == (900, 500)
        assert spec.budget.minutes == 7
    assert {side.spec.budget.minutes for side in common(first, second, 20)} == {20}


def test_a_side_may_be_a_run_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder / "autotune-runs" / "digits"
    run.mkdir(parents=True)
    (run / "tuned.yaml").write_text(f"{TUNED}workdir: {folder}\n")
    monkeypatch.chdir(folder)
    side = load_side("B", Path("digits"))
    assert side.is_tuned and side.spec.source == run / "tuned.yaml"


def test_a_key_in_the_command_is_not_told(folder: Path) -> None:
    change = Change("python train.py --api-key hunter22", ["WANDB_API_KEY=hunter33"])
    side = changed(load_side("A", folder / "job.yaml"), change)
    assert "hunter" not in side.what + side.command and "--api-key ***" in side.what


def test_a_line_for_a_shell_reads_no_secret_as_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "$(touch pwned)")
    for command, seen in (
        ("[/bin/sh, -c, 'train \"${API_KEY}\"']", 'train "${API_KEY}"'),
        ("[python, train.py, '${API_KEY}']", "$(touch pwned)"),
    ):
        text = TUNED.replace("[python, train.py]", command) + "env_from_launch: [API_KEY]\n"
        (folder / "tuned.yaml").write_text(text)
        assert load_side("A", folder / "tuned.yaml").spec.command[2] == seen


def test_a_file_with_the_depth_of_an_attack_is_a_job_file(folder: Path) -> None:
    (folder / "deep.yaml").write_text("a: " + "[" * 2000)
    with pytest.raises(InputError):
        load_side("A", folder / "deep.yaml")


def test_one_side_may_lie_in_the_directory_of_the_other(folder: Path) -> None:
    (folder / "inner").mkdir()
    locks = [WorkdirLock(folder), WorkdirLock(folder / "inner")]
    for lock in reversed(locks):
        lock.release()
    locks = [WorkdirLock(folder / "inner"), WorkdirLock(folder / "inner")]
    with pytest.raises(InputError, match="another autotune run"):
        WorkdirLock(folder)  # the other way round: a directory lock is exclusive
    for lock in locks:
        lock.release()


def test_another_version_of_torch_is_another_judgement(folder: Path) -> None:
    torch = folder / "lib" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").touch()
    side = load_side("A", folder / "job.yaml")
    side = replace(side, spec=replace(side.spec, env={"PYTHONPATH": str(torch.parent)}))
    identities = set()
    for version in ("2.7.1", "2.8.0", "2.7.1"):
        (torch / "version.py").write_text(f"__version__ = '{version}'\n")
        identities.add(digest((side, side), ""))
    assert len(identities) == 2
