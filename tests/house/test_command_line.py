"""The command line as a whole: every command answers, and errors end with the documented codes."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import autotune.errors
from autotune.cli import main
from autotune.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
AUTOTUNE = str(Path(sys.executable).parent / "autotune")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_help(name: str) -> None:
    done = subprocess.run([AUTOTUNE, name, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"autotune {name}" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    function = getattr(importlib.import_module(f"autotune.cli.{name}"), name)
    assert (inspect.getdoc(function) or "").strip()
    assert COMMANDS[name].endswith(".") and len(COMMANDS[name]) <= 68, "the list cuts it"


def test_every_file_of_the_command_line_is_a_command() -> None:
    files = {path.stem for path in (ROOT / "autotune" / "cli").glob("*.py")} - {"__init__", "app"}
    assert files == COMMANDS.keys()


def test_a_wrong_command_is_a_usage_error() -> None:
    done = subprocess.run([AUTOTUNE, "tune"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "tune" in done.stderr
    assert done.stdout == ""


def test_a_wrong_option_is_a_usage_error() -> None:
    assert (
        subprocess.run([AUTOTUNE, "check", "--bogus"], capture_output=True, timeout=60).returncode
        == 2
    )


def test_the_package_runs_as_a_module_and_tells_the_version_of_the_distribution() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "--version"], capture_output=True, text=True, timeout=60
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert done.stdout == f"autotune {project['version']}\n"


def test_an_unforeseen_error_is_one_message_and_a_saved_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("autotune.job.schema.json_schema", lambda: 1 / 0)
    assert main(["schema"]) == 1
    said = capsys.readouterr().err
    (saved,) = tmp_path.glob("autotune-error-*.txt")
    assert "unexpected ZeroDivisionError: division by zero" in said
    assert str(saved) in said
    assert "Traceback" not in said
    assert "Traceback" in saved.read_text()


def test_an_interrupt_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.job.schema.json_schema", stop)
    assert main(["schema"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_an_interrupt_before_the_command_starts_does_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.core.TyperGroup.make_context", stop)
    assert main(["schema"]) == 130
    assert "interrupted" in capsys.readouterr().err


def _tree() -> list[type[autotune.errors.AutotuneError]]:
    found: list[type[autotune.errors.AutotuneError]] = []
    waiting = [autotune.errors.AutotuneError]
    while waiting:
        cls = waiting.pop()
        found.append(cls)
        waiting += cls.__subclasses__()
    return [cls for cls in found if cls.__module__ == "autotune.errors"]


def test_exit_codes_are_unique_and_documented() -> None:
    codes = {cls.__name__: cls.exit_code for cls in _tree()}
    assert codes == {
        "AutotuneError": 1,
        "InputError": 2,
        "BaselineError": 3,
        "HookError": 4,
        "ClusterLost": 5,
        "Interrupted": 130,
    }
    told = [
        {int(number) for number in re.findall(r"\b\d+\b", text)}
        for text in (autotune.errors.__doc__ or "", inspect.getdoc(autotune.cli) or "")
    ]
    judged = {10, 11}  # exit codes of `autotune judge` that are no errors
    assert told == [{0, *codes.values()}, {0, *codes.values(), *judged}]


def test_an_error_says_where_what_and_what_to_do() -> None:
    error = autotune.errors.InputError(
        "found", where="job.yaml:3", expected="wanted", remedy="do this"
    )
    assert str(error) == "job.yaml:3: found\n  expected: wanted\n  what to do: do this"


def test_errors_are_printed_in_one_place_only() -> None:
    """Only main() prints tracebacks or ends the tuner's process."""
    wrong = []
    for path in sorted((ROOT / "autotune").rglob("*.py")):
        if path.name == "__main__.py" or path == ROOT / "autotune" / "cli" / "__init__.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # A module that is its own program (python -m …) ends its process, but only under this
        # guard.
        guarded = {
            n
            for g in tree.body
            if isinstance(g, ast.If) and "__main__" in ast.unparse(g.test)
            for n in ast.walk(g)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and node not in guarded
                and ast.unparse(node.func)
                in ("sys.exit", "exit", "quit", "os._exit", "traceback.print_exc")
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong
