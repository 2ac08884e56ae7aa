"""The wheel contains what the installed tool needs, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("autotune_torch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_three_packages_are_in_it(names: set[str]) -> None:
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {
        "autotune",
        "autotune_trials",
        "autotune_spaces",
    }


@pytest.mark.parametrize(
    "name",
    [
        "autotune_trials/agent/bootstrap/inject/sitecustomize.py",
        "autotune_spaces/presets/auto.yaml",
    ],
)
def test_files_that_are_not_imported_are_in_it(names: set[str], name: str) -> None:
    assert name in names


def test_every_source_file_is_in_it(names: set[str]) -> None:
    roots = (
        ROOT / "autotune",
        ROOT / "trials" / "autotune_trials",
        ROOT / "search_spaces" / "autotune_spaces",
    )
    sources = {
        str(path.relative_to(root.parent))
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert sources - names == set()


def test_nothing_else_is_in_it(names: set[str]) -> None:
    assert not [
        n
        for n in names
        if "__pycache__" in n or n.startswith(("tests", "trials", "search_spaces", "examples"))
    ]


def test_the_inject_directory_holds_one_file_only(names: set[str]) -> None:
    """It is on the job's import path: a second file could shadow a module of the job."""
    assert [n for n in names if "/bootstrap/inject/" in n] == [
        "autotune_trials/agent/bootstrap/inject/sitecustomize.py"
    ]


def test_the_tested_set_fits_what_the_package_asks_for() -> None:
    from packaging.requirements import Requirement

    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    pinned = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for need in map(Requirement, [*project["dependencies"], *extras["service"], *extras["dev"]]):
        if need.name == project["name"]:  # one of our own extras
            continue
        assert need.name.lower() in pinned, f"{need.name} is not in constraints.txt"
        assert need.specifier.contains(pinned[need.name.lower()]), (
            f"{need} against {pinned[need.name.lower()]}"
        )


def test_the_tested_set_names_versions_and_nothing_else() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or (line.count("==") == 1 and not set("/@+: ") & set(line)), (
            line
        )
