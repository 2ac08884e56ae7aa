"""Imports go in one direction, and heavy packages are loaded only when used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "autotune": ROOT / "autotune",
    "autotune_trials": ROOT / "trials" / "autotune_trials",
    "autotune_spaces": ROOT / "search_spaces" / "autotune_spaces",
}
ALLOWED = {  # package -> our packages that it may import
    "autotune": {"autotune", "autotune_trials", "autotune_spaces"},
    "autotune_trials": {"autotune_trials", "autotune_spaces"},
    "autotune_spaces": {"autotune_spaces"},
}
HEAVY = {
    "torch",
    "optuna",
    "ray",
    "mlflow",
    "matplotlib",
    "jinja2",
    "scipy",
    "numpy",
    "pandas",
    "sklearn",
    "nvtx",
}
# Nearly every function of these needs numpy.
WITH_NUMPY = ("autotune/search/model/", "autotune/verdict/sequential.py")
# Within the tuner the stages are on top: these packages must not import them.
BELOW_STAGES = (
    "job",
    "search",
    "verdict",
    "executors",
    "tracking",
    "report",
    "export",
    "explain",
    "findings",
    "service",
)
SOURCES = [(name, path) for name, root in PACKAGES.items() for path in sorted(root.rglob("*.py"))]


def _imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[str, int, bool]]:
    """(imported module, line, at import time) of every import statement; relative ones are
    resolved.
    """
    deferred: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or _type_checking(
            node
        ):
            body = node.body if isinstance(node.body, list) else [node.body]  # type: ignore[attr-defined]
            deferred.update(inner for part in body for inner in ast.walk(part))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, node not in deferred
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".") if is_package else module.split(".")[:-1]
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, base] if base else parts)
            yield base, node.lineno, node not in deferred
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno, node not in deferred


def _type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def _found(package: str, path: Path) -> list[tuple[str, int, bool]]:
    relative = path.relative_to(PACKAGES[package])
    parts = [package, *relative.with_suffix("").parts]
    is_package = parts[-1] == "__init__"
    module = ".".join(parts[:-1] if is_package else parts)
    return list(_imports(ast.parse(path.read_text(encoding="utf-8")), module, is_package))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


IDS = [_name(path) for _, path in SOURCES]


@pytest.mark.parametrize(("package", "path"), SOURCES, ids=IDS)
def test_packages_import_downwards_only(package: str, path: Path) -> None:
    ours = {
        (m.split(".")[0], line)
        for m, line, _ in _found(package, path)
        if m.split(".")[0] in PACKAGES
    }
    upward = [
        f"{_name(path)}:{line} imports {top}"
        for top, line in sorted(ours)
        if top not in ALLOWED[package]
    ]
    assert not upward


@pytest.mark.parametrize(("package", "path"), SOURCES, ids=IDS)
def test_nothing_heavy_is_imported_at_import_time(package: str, path: Path) -> None:
    barred = HEAVY - {"numpy"} if _name(path).startswith(WITH_NUMPY) else HEAVY
    heavy = sorted(
        {
            f"{_name(path)}:{line} imports {m}"
            for m, line, early in _found(package, path)
            if early and m.split(".")[0] in barred
        }
    )
    assert not heavy


@pytest.mark.parametrize(
    ("package", "path"),
    [s for s in SOURCES if s[0] != "autotune"],
    ids=[_name(p) for n, p in SOURCES if n != "autotune"],
)
def test_what_lives_in_the_job_needs_the_standard_library_only(package: str, path: Path) -> None:
    allowed = sys.stdlib_module_names | ALLOWED[package]
    foreign = sorted(
        {
            f"{_name(path)}:{line} imports {m}"
            for m, line, early in _found(package, path)
            if early and m.split(".")[0] not in allowed
        }
    )
    assert not foreign


@pytest.mark.parametrize("layer", BELOW_STAGES)
def test_nothing_below_calls_back_into_the_stages_or_the_command_line(layer: str) -> None:
    wrong = [
        f"{_name(path)}:{line} imports {module}"
        for path in sorted((PACKAGES["autotune"] / layer).rglob("*.py"))
        for module, line, _ in _found("autotune", path)
        if module.split(".")[:2] in (["autotune", "stages"], ["autotune", "cli"])
    ]
    assert not wrong


@pytest.mark.parametrize(("layer", "other"), [("executors", "service"), ("service", "executors")])
def test_executors_and_the_service_share_only_what_is_below_them(layer: str, other: str) -> None:
    wrong = [
        f"{_name(path)}:{line} imports {module}"
        for path in sorted((PACKAGES["autotune"] / layer).rglob("*.py"))
        for module, line, _ in _found("autotune", path)
        if module.split(".")[:2] == ["autotune", other]
    ]
    assert not wrong


class _WithoutTypes(ast.NodeTransformer):
    """Imports under TYPE_CHECKING never run."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        return node.orelse if _type_checking(node) else self.generic_visit(node)


def _needs() -> dict[str, set[str]]:
    """Module -> our modules that it imports, at any time."""
    names = set(_modules())
    found: dict[str, set[str]] = {}
    for package, path in SOURCES:
        parts = [package, *path.relative_to(PACKAGES[package]).with_suffix("").parts]
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = _WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))
        imported = {m for m, _, _ in _imports(tree, module, parts[-1] == "__init__")} & names
        # "from a.b import c" also names a.b, although only a.b.c is needed
        found[module] = {
            m for m in imported if not any(other.startswith(f"{m}.") for other in imported)
        } - {module}
    return found


def test_no_module_needs_itself() -> None:
    """Not even with late imports: two modules that import each other are really one."""
    needs = _needs()
    assert needs["autotune.report.terminal.plain"] >= {
        "autotune.report.progress",
        "autotune.report.terminal.live_table",
    }
    while free := {module for module, needed in needs.items() if not needed & needs.keys()}:
        needs = {module: needed for module, needed in needs.items() if module not in free}
    circles = {
        module: sorted(needed & needs.keys())
        for module, needed in needs.items()
        if any(module in n for n in needs.values())
    }
    assert not circles


def test_the_verdicts_are_functions_of_numbers() -> None:
    """No torch, no files, no clock: tests only need numbers."""
    barred = {
        "torch",
        "time",
        "pathlib",
        "os",
        "subprocess",
        "io",
        "tempfile",
        "shutil",
        "optuna",
        "mlflow",
        "random",
    }
    wrong = [
        f"{_name(path)}:{line} imports {module}"
        for path in sorted((PACKAGES["autotune"] / "verdict").rglob("*.py"))
        for module, line, _ in _found("autotune", path)
        if module.split(".")[0] in barred
    ]
    assert not wrong


def _loaded(code: str) -> set[str]:
    """Top-level modules of a fresh interpreter after running ``code``."""
    script = f"{code}\nimport sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "autotune",
        "autotune.cli",
        "autotune.cli.app",
        "autotune.job.load",
        "autotune.results",
        "autotune.executors.base",
        "autotune.tracking.base",
    ],
)
def test_a_fresh_interpreter_loads_nothing_heavy_with(module: str) -> None:
    assert not _loaded(f"import {module}") & HEAVY


def test_help_loads_no_command() -> None:
    loaded = _loaded("from autotune.cli import main; main(['--help']); print()")
    assert not loaded & (HEAVY | {"pydantic", "yaml", "psutil"})


def test_only_writing_a_patch_needs_a_parser_of_python() -> None:
    assert "libcst" not in _loaded("import autotune.cli.export")


def test_the_agent_is_light_enough_for_any_job() -> None:
    code = (
        "import autotune_trials.protocol.messages, autotune_trials.paths, autotune_trials.agent,"
        " autotune_spaces.base, autotune_spaces.codec"
    )
    assert not _loaded(code) & (HEAVY | {"yaml", "pydantic", "typer", "rich", "psutil", "autotune"})


def test_these_tests_see_what_they_look_for(tmp_path: Path) -> None:
    source = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ray\nimport torch.nn\ndef"
        " f():\n    import numpy\nfrom ..stages import x\n"
    )
    found = list(_imports(ast.parse(source), "autotune.job.load", False))
    assert ("torch.nn", 4, True) in found
    assert ("numpy", 6, False) in found
    assert ("ray", 3, False) in found
    assert ("autotune.stages", 7, True) in found


WITHOUT = """
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
for module in {modules!r}:
    importlib.import_module(module)
"""


def _modules() -> list[str]:
    names = []
    for package, path in SOURCES:
        parts = [package, *path.relative_to(PACKAGES[package]).with_suffix("").parts]
        if parts[-1] not in ("__main__", "sitecustomize"):
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def test_every_module_can_be_imported_without_the_heavy_libraries() -> None:
    """Without ray, mlflow, nvtx or torch, only what uses them fails, and only when it is used."""
    code = WITHOUT.format(missing=sorted(HEAVY - {"numpy"}), modules=_modules())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["check", "job.yaml"], ["knobs"], ["doctor"]])
def test_commands_that_do_not_need_them_work_without_ray_mlflow_and_nvtx(
    arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("command: python train.py\n")
    code = (
        WITHOUT.format(missing=["ray", "mlflow", "nvtx"], modules=[])
        + "from autotune.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
