"""Ten thousand odd files of each kind (short version: tests/job/test_odd_files.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "job"))
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from fuzzing import (
    fuzz_checked_job_files,
    fuzz_job_files,
    fuzz_results,
    fuzz_tuned_commands,
    fuzz_tuned_files,
)
from sample_results import samples

from autotune.report.result_file import to_json

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_job_files(tmp_path: Path) -> None:
    fuzz_job_files(tmp_path, 10_000)


def test_job_files_on_the_command_line(tmp_path: Path) -> None:
    fuzz_checked_job_files(tmp_path, 500)


def test_tuned_files(tmp_path: Path) -> None:
    fuzz_tuned_files(tmp_path, 10_000)


def test_tuned_files_on_the_command_line(tmp_path: Path) -> None:
    fuzz_tuned_commands(tmp_path, 1_000)


@pytest.mark.parametrize("name", sorted(samples()))
def test_results(name: str, tmp_path: Path) -> None:
    fuzz_results(tmp_path, 1_500, to_json(samples()[name]))
