"""Code that runs inside the user's job is typed: Any is only for torch and objects of the job."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TRIALS = Path(__file__).parents[2] / "trials" / "autotune_trials"
OURS = {  # usual names for objects of our own classes
    "agent",
    "channel",
    "config",
    "consumption",
    "entry",
    "events",
    "hooks",
    "interruptions",
    "iteration",
    "knobs",
    "live",
    "loaders",
    "loop",
    "patches",
    "run",
    "settling",
    "sites",
    "state",
    "timer",
    "traits",
    "watch",
    "window",
}
SOURCES = sorted(TRIALS.rglob("*.py"))


def untyped(source: str) -> Iterator[tuple[str, int]]:
    """(name, line) of arguments and attributes with such a name that are annotated as Any or Any |
    None.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg) and node.annotation is not None:
            name, annotation = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            name, annotation = ast.unparse(node.target).rpartition(".")[2], node.annotation
        else:
            continue
        if name.strip("_") in OURS and "Any" in ast.unparse(annotation).split(" | "):
            yield name, node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=[str(p.relative_to(TRIALS)) for p in SOURCES])
def test_nothing_of_ours_is_taken_as_any(path: Path) -> None:
    assert list(untyped(path.read_text(encoding="utf-8"))) == []


def test_this_test_sees_what_it_looks_for() -> None:
    source = (
        "def f(self, agent: Any, torch: Any) -> None:\n"
        "    self._hooks: Any | None = None\n"
        "    self.entry: Entry = agent\n"
    )
    assert set(untyped(source)) == {("agent", 1), ("_hooks", 2)}
