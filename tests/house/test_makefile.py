"""`make` alone lists the targets, and every listed target works."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = sorted(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))


def make(*arguments: str) -> str:
    done = subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_is_the_default_and_lists_every_target() -> None:
    listed = make()
    assert [name for name in TARGETS if f"make {name} " not in listed] == []
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert sorted(phony[1].split()) == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_target_calls_is_there(target: str) -> None:
    """A dry run; the environment and what is built in it are assumed to exist."""
    commands = make("-n", "-o", ".venv/.installed", target).replace(f"{ROOT}/", "")
    files = re.findall(r"(?:^|\s|/)((?:benchmarks|tests|examples)/[\w./-]+[\w/])", commands)
    assert [f for f in files if not (ROOT / f).exists()] == []


def test_continuous_integration_calls_the_readmes_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    assert "make test" in text


def test_no_file_of_the_build_names_where_packages_come_from() -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run"):
        assert not re.search(r"index-url|find-links|file://", (ROOT / name).read_text()), name
