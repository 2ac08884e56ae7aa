"""benchmarks/gpu_compare.py with two tools, small and on the CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_gpu_jobs import BENCHMARKS, PLAIN, RESULT

SMALL = {
    "resnet50": ["--size", "32", "--batch", "2", "--width", "4"],
    "resnet18": ["--size", "32", "--batch", "2", "--width", "4"],
    "transformer": ["--layers", "1", "--width", "16", "--size", "8", "--batch", "4"],
}
# Stands in for the other tool: finds the settings "seven", and only those give its rate.
OTHER = """
import os, pathlib, sys
phase, workload, *words = sys.argv[1:]
kept = pathlib.Path(os.environ["AUTOTUNED_FOLDER"]) / workload
if phase == "tune":
    assert words[-2:] == ["--budget", "fast"]
    kept.write_text("seven")
    print("searching\\nseven")
else:
    assert words[-4:] == ["--steps", "6", "--timed", "4"]
    print("training\\n" + {"seven": "700.0"}[kept.read_text()] + " samples/s")
"""


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/gpu_compare.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_compare

    return gpu_compare


@pytest.fixture
def place(compare: ModuleType, tmp_path: Path) -> Any:
    other = tmp_path / "other_tool.py"
    other.write_text(OTHER)
    words = ("transformer", *SMALL["transformer"])
    return compare.Place(words, tmp_path / "transformer", sys.executable, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_each_workload_trains_and_says_its_rate(name: str, tmp_path: Path) -> None:
    more = ["--loader"] if name == "resnet18" else []
    program = str(BENCHMARKS / "gpu_jobs" / "published.py")
    command = [sys.executable, program, name, "--steps", "4", "--timed", "2", *SMALL[name], *more]
    done = subprocess.run(
        command, cwd=tmp_path, env=PLAIN, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[\d.]+ samples/s", done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_both_winners_run_in_turns_with_the_bare_program(compare: ModuleType, place: Any) -> None:
    from autotune.export.tuned import TunedConfig, TunedKnob, write_tuned

    command = (sys.executable, "published.py", *place.words)
    place.run_dir.mkdir(parents=True)
    tuned = TunedConfig(
        "transformer",
        command,
        BENCHMARKS / "gpu_jobs",
        {"PYTHONPATH": ""},
        knobs={"optimizer_impl": TunedKnob("fused", "default")},
    )
    write_tuned(tuned, place.run_dir / "tuned.yaml")
    found = compare.tune_other(place, "fast")
    assert found["settings"] == "seven"
    (rates,) = compare.turns(place, 1, 6, 4)
    assert list(rates) == ["bare", "ours", "other"]
    assert rates["other"] == 700.0 and rates["bare"] > 0 and rates["ours"] > 0


def test_who_was_last_is_first_in_the_next_round(
    compare: ModuleType, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def rate(command: list[str], env: dict[str, str]) -> float:
        kind = {"autotune": "ours", "run": "other"}.get(command[2], "bare")
        ran.append(kind)
        return 1.0

    monkeypatch.setattr(compare, "rate", rate)
    compare.turns(place, 2, 6, 4)
    assert ran == ["bare", "ours", "other", "other", "ours", "bare"]


def test_the_page_compares_the_winners(compare: ModuleType, place: Any) -> None:
    rates = [
        {"bare": 100.0, "ours": 198.0, "other": 200.0},
        {"bare": 100.0, "ours": 202.0, "other": 200.0},
        {"bare": 100.0, "ours": 200.0, "other": 200.0},
    ]
    found = compare.figures(place, RESULT, {"settings": "seven", "wall_s": 90.0}, rates)
    lines = compare.page([json.loads(json.dumps(found))]).splitlines()
    assert lines[-1] == (
        f"| {' '.join(place.words)} | 100 | 200 (2.00x) | 200 (2.00x) "
        "| 6.65x | 1.000 (0.990 to 1.010) | yes | none | seven | 3.0 | 1.5 |"
    )
    assert {line.count("|") for line in lines[-3:]} == {12}


def test_the_package_is_asked_for_where_it_is_missing(tmp_path: Path) -> None:
    program = str(BENCHMARKS / "gpu_jobs" / "pytorch_autotuned.py")
    command = [sys.executable, program, "tune", "transformer", *SMALL["transformer"]]
    done = subprocess.run(
        command, cwd=tmp_path, env=PLAIN, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "pip install --no-deps pytorch-autotune==2.0.0" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ours_is_tuned_and_launched(compare: ModuleType, place: Any) -> None:
    result = compare.tune_ours(place, 1.0)
    assert result["name"] == "transformer"
    compare.tune_other(place, "fast")
    (rates,) = compare.turns(place, 1, 6, 4)
    assert rates["ours"] > 0
