"""The pages made from the cards, and the two commands that show them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli import doctor, main
from autotune_spaces import docs
from autotune_spaces.knobs import names
from autotune_spaces.machine import probe

PAGE = Path(__file__).parents[2] / "docs" / "knobs.md"


def test_the_page_is_up_to_date() -> None:
    assert docs.main(["--check", str(PAGE)]) == 0, (
        "run: python -m autotune_spaces.docs docs/knobs.md"
    )


def test_an_old_page_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "knobs.md"
    assert docs.main(["--check", str(page)]) == 1
    assert docs.main([str(page)]) == 0
    assert docs.main(["--check", str(page)]) == 0
    page.write_text(page.read_text().replace("workers", "wokers", 1))
    assert docs.main(["--check", str(page)]) == 1
    assert "out of date" in capsys.readouterr().err


def test_page_has_every_knob_and_its_code() -> None:
    text = docs.render()
    for name in names():
        assert f"\n## {name}\n" in text
        assert docs.example(docs.get(name)) is not None


def test_knobs_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in names())
    assert main(["knobs", "compile_mode"]) == 0
    out = capsys.readouterr().out
    assert "When it does not" in out
    assert "torch.compile(model)" in out


@pytest.mark.parametrize("words", [["knobs"], ["knobs", "num_workers"]])
def test_the_cards_are_printed_where_no_sign_but_ascii_can_be(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "num_workers" in done.stdout and "..." in done.stdout


def test_unknown_knob_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", "compil_mode"]) == 2
    assert "did you mean 'compile_mode'?" in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["knob"] for row in report["knobs"]] == list(names())
    assert all(bool(row["values"]) != bool(row["out"]) for row in report["knobs"])
    assert report["libraries"]["torch"]
    assert report["machine"]["cores"] >= 1
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "/dev/shm" in out
    assert "num_workers" in out


def test_doctor_tells_of_a_gpu_that_only_the_jobs_torch_can_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tuner's own environment may have torch for CPUs."""
    monkeypatch.setattr(doctor, "probe", lambda: replace(probe(), device="cpu"))
    monkeypatch.setattr(doctor, "gpu_names", lambda environ: ["NVIDIA GeForce RTX 4090"])
    monkeypatch.setattr(doctor, "gpu_load", lambda environ: ("GPU 0: 6.0 GiB in use",))
    told = doctor.examine()["missing"]
    assert any("has a GPU" in line for line in told)
    assert any("6.0 GiB in use" in line for line in told)


def test_the_readme_names_every_knob() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert [name for name in names() if f"`{name}`" not in readme] == []
