"""Messages to the user: each error says what, where and what to do, names existing flags, and
writes figures consistently.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli.app import COMMANDS, load

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "autotune").rglob("*.py"))
ERRORS = {"InputError", "BaselineError", "HookError"}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# flags of other programs that a remedy may name
OTHERS = {"--depth", "--local-rank", "--use-env", "--workers"}


def raised() -> Iterator[tuple[Path, ast.Call]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ERRORS
            ):
                yield path, node


def texts(node: ast.AST) -> str:
    """All literal text in ``node``."""
    return " ".join(
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def named(call: ast.Call) -> dict[str | None, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords}


def in_our_words(call: ast.Call) -> bool:
    """Whether the message is our own, not one passed on from git, a cluster or the system."""
    found = call.args[0] if call.args else None
    if isinstance(found, ast.JoinedStr):
        found = found.values[-1]
    return isinstance(found, ast.Constant)


def test_an_error_says_where_and_what_was_expected_or_what_to_do() -> None:
    calls = [(path, call) for path, call in raised() if None not in named(call)]
    assert len(calls) > 100
    poor = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, call in calls
        if "where" not in named(call)
        or (in_our_words(call) and not {"expected", "remedy"} & named(call).keys())
    ]
    assert poor == []


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """The flags of all commands."""
    found, waiting = {"--help", "--version"}, [load(name) for name in COMMANDS]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        found |= {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    return found


def test_an_error_names_flags_that_exist(flags: set[str]) -> None:
    unknown = {
        f"{path.relative_to(ROOT)}:{call.lineno} {flag}"
        for path, call in raised()
        for flag in FLAG.findall(texts(call))
        if flag not in flags | OTHERS
    }
    assert unknown == set()


def test_a_factor_is_written_with_a_multiplication_sign() -> None:
    """1.30× everywhere except in files for other programs; `words.factor_words` writes it."""
    others = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        if path.parent.name != "export"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r":\.\d[fg]}x\b", line)
    ]
    assert others == []
