"""`autotune show` through the command line."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from sample_results import samples, tuned

from autotune.cli import main
from autotune.report.result_file import write_result
from autotune.report.terminal.gains import print_gains

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, result in samples().items():
        (tmp_path / "autotune-runs" / name).mkdir(parents=True)
        write_result(result, tmp_path / "autotune-runs" / name / "result.json")
    return tmp_path


@pytest.mark.parametrize(
    "run",
    ["tuned", "autotune-runs/tuned", "autotune-runs/tuned/", "autotune-runs/tuned/result.json"],
)
def test_a_run_is_found_by_name_directory_and_file(
    run: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", run]) == 0
    said = capsys.readouterr().out
    assert "2.10× faster (95% interval 1.93–2.29), loss unchanged" in said
    assert "autotune launch autotune-runs/tuned/tuned.yaml" in said


def test_trials_are_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "tuned", "--trials"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "5 num_workers=2, amp_dtype=bfloat16 2.08× ± 4% complete" in said
    assert "BackendCompilerFailed: no C++ compiler" in said
    assert main(["show", "nothing", "--trials"]) == 0
    assert "No configuration was tried." in capsys.readouterr().out


def test_gains_are_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "tuned", "--gains"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "num_workers 0 → 2 1.66× (1.58–1.74) own gains",
        "amp_dtype off → bfloat16 2.10× (1.93–2.29) confirmed",
        "num_workers 71%",
    ):
        assert words in said, words
    assert "faster (95%" not in said, "what was asked for, and nothing else"
    assert main(["show", "keep", "--gains"]) == 0
    said = capsys.readouterr().out
    assert "How the gain builds up" not in said
    assert "Not computed" in said


def test_names_and_bars_of_the_gains_are_whole_on_any_terminal() -> None:
    result, columns = tuned(), []
    *steps, last = result.explanation.build_up
    steps = (*steps, replace(last, knob="gradient_as_bucket_view"))
    result = replace(result, explanation=replace(result.explanation, build_up=steps))
    for width in (80, 100, 140):
        out = io.StringIO()
        print_gains(Console(file=out, width=width, markup=False, emoji=False), result)
        assert "gradient_as_bucket_view" in out.getvalue()
        row = next(line for line in out.getvalue().splitlines() if "confirmed" in line)
        columns.append(sum(map(row.count, "░█")))
    assert columns == [6, 26, 30]


def test_all_is_everything_in_the_order_of_the_page(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "tuned", "--all"]) == 0
    said = capsys.readouterr().out
    order = [
        "2.10× faster (95%",
        "How the gain builds up",
        "Which knobs mattered",
        "What was tried",
        "BackendCompilerFailed",
    ]
    places = [said.index(words) for words in order]
    assert places == sorted(places)


def test_json_is_the_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "hostile", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        (runs / "autotune-runs/hostile/result.json").read_text()
    )


@pytest.mark.parametrize("name", list(samples()))
def test_every_result_can_be_shown(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", name]) == 0
    assert main(["show", name, "--trials"]) == 0
    assert main(["show", name, "--all"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_an_unknown_run_names_the_known_ones(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "autotune-runs/digits").mkdir()
    (runs / "autotune-runs/digits/journal.jsonl").touch()
    assert main(["show", "digitz"]) == 2
    said = capsys.readouterr().err
    assert "digitz: there is no such run" in said
    assert "runs here: digits" in said


def test_a_directory_in_which_no_run_was_made_names_the_known_ones(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``autotune show .`` next to the job file: no run to resume here, but one is nearby."""
    (runs / "autotune-runs/digits").mkdir()
    (runs / "autotune-runs/digits/journal.jsonl").touch()
    assert main(["show", "."]) == 2
    said = capsys.readouterr().err
    assert ".: there is no run in this directory" in said
    assert "runs here: digits" in said
    assert "continues where" not in said


def test_an_unfinished_run_says_how_far_it_came(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = runs / "elsewhere"
    directory.mkdir()
    study = {"digest": "d", "name": "digits", "seed": 0}
    entries = [{"kind": "study", "key": "", "elapsed_s": 0.0, "data": study}]
    journal = directory / "journal.jsonl"
    journal.write_text("".join(json.dumps(e) + "\n" for e in entries))
    assert main(["show", str(directory)]) == 2
    assert "the job has not been fully observed yet" in capsys.readouterr().err
    entries.append({"kind": "observation", "key": "", "elapsed_s": 20.0, "data": {}})
    entries += [
        {"kind": "trial", "key": str(n), "elapsed_s": 30.0 + n, "data": {}} for n in range(3)
    ]
    journal.write_text("".join(json.dumps(e) + "\n" for e in entries) + '{"kind": "tri')
    assert main(["show", str(directory)]) == 2
    said = capsys.readouterr().err
    assert "no result yet: the job was observed and 3 trials finished, after 32.0 s" in said
    assert "autotune run" in said
    assert "--run-dir" in said


def test_a_profile_is_not_taken_for_a_run_that_stopped(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = runs / "autotune-runs/digits-profile"
    directory.mkdir()
    (directory / "journal.jsonl").touch()
    (directory / "summary.json").write_text("{}")
    assert main(["show", "digits-profile"]) == 2
    said = capsys.readouterr().err
    assert "this is a profile" in said and "profile.html" in said and "continues where" not in said
    assert main(["export", str(directory)]) == 2
    said = capsys.readouterr().err
    assert "this is a profile" in said and "continues where" not in said


def test_two_forms_at_once_are_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "tuned", "--json", "--trials"]) == 2
    assert "cannot be combined" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", '{"schema_version": 99}'])
def test_a_damaged_result_is_answered(
    content: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "autotune-runs/tuned/result.json").write_text(content)
    assert main(["show", "tuned"]) == 2
    assert "autotune-runs/tuned/result.json" in capsys.readouterr().err


def test_another_file_is_not_to_be_moved_away(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "train.py").write_text("import torch\n")
    assert main(["show", "train.py"]) == 2
    said = capsys.readouterr().err
    assert "train.py: is not JSON" in said and "move it away" not in said


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "autotune", *arguments]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(str(ROOT / p) for p in (".", "trials", "search_spaces"))
    return {**os.environ, "PYTHONPATH": path, **more}


def test_an_ascii_pipe_gets_ascii(runs: Path) -> None:
    done = subprocess.run(
        command("show", "tuned"),
        capture_output=True,
        env=environment(PYTHONIOENCODING="ascii"),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert b"2.10x faster (95% interval 1.93-2.29), loss unchanged" in done.stdout


def test_on_a_terminal_it_has_colour_and_fits(runs: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command("show", "tuned"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(TERM="xterm-256color", COLUMNS="60", PYTHONIOENCODING="utf-8"),
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            seen += os.read(master, 65536)
        except OSError:
            break
    os.close(master)
    assert process.wait(timeout=60) == 0
    text = seen.decode()
    assert "\x1b[1;32m2.10× faster" in text


def test_showing_imports_nothing_heavy(runs: Path) -> None:
    write_result(tuned(), runs / "result.json")
    code = (
        "import sys; from autotune.cli import main; main(['show', 'result.json']); print([m for m"
        " in ('torch', 'optuna', 'ray', 'mlflow', 'matplotlib', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
