"""docs/operations.md works as written: its blocks run in order, in one shell, as an operator would
run them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from bare_machine import ROOT, bare_machine, require_postgres

PAGE = ROOT / "docs" / "operations.md"
STUDIES = f"python {Path(__file__).parent / 'kept_studies.py'}"
FILES = f'{STUDIES} files "$AUTOTUNE_STATE/artifacts"'
# Done and checked between the page's blocks: (words of the block, before it, after it).
BETWEEN = [
    (
        "pg_dump",
        f"{STUDIES} record before-the-backup",
        f'{STUDIES} record after-the-backup\nrm -r "$AUTOTUNE_STATE"/artifacts/*',
    ),
    ("pg_restore", "", f"{STUDIES} has before-the-backup\n{STUDIES} lacks after-the-backup"),
    ("--upgrade", "", f"{STUDIES} has before-the-backup"),
    ("mlflow gc", f"{STUDIES} delete before-the-backup\n{FILES}", FILES),
]


def readme_tests() -> ModuleType:
    """The module that parses the blocks of a page."""
    spec = importlib.util.spec_from_file_location(
        "readme_blocks", ROOT / "tests" / "house" / "test_readme.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_commands_and_files_that_the_page_names_are_there() -> None:
    readme = readme_tests()
    blocks = readme.blocks_of(PAGE.read_text(encoding="utf-8"))
    assert blocks
    for block in blocks:
        assert block.language == "bash"
        for line in readme.commands_of(block.text):
            assert readme.check_autotune_line(line.replace("id=$(", "").rstrip(")")) == "", line
            for word in line.split():
                if word.startswith("docker/") and "secrets/" not in word:
                    assert (ROOT / word.rstrip(")")).exists() or word == "docker/secrets", line


@pytest.mark.faults
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_what_the_page_says_is_so(tmp_path: Path) -> None:
    require_postgres()
    blocks = [
        block
        for block in readme_tests().blocks_of(PAGE.read_text(encoding="utf-8"))
        if not block.skip
    ]
    script = "set -euxo pipefail\n" + "\n".join(block.text for block in blocks)
    with bare_machine() as machine:
        for words, before, after in BETWEEN:
            [text] = [block.text for block in blocks if words in block.text]
            script = script.replace(text, f"{before}\n{text}\n{after}\n")
        # Differences from the page: a different folder, and deleted studies count as old after a
        # second.
        for there, here in (
            ("AUTOTUNE_STATE=/srv/autotune ", f"AUTOTUNE_STATE={machine.state} "),
            ("gc --older-than 30d", "gc --older-than 1s"),
        ):
            assert script.count(there) == 1
            script = script.replace(there, here)
        done = machine.call("bash", "-c", script, cwd=ROOT, timeout_s=800)
        assert done.returncode == 0, done.stdout + done.stderr
        said = done.stdout.splitlines()
        assert "401" in said and "403" in said
        files_before_gc, files_after_gc = [
            int(line.rpartition(":")[2]) for line in said if line.startswith("files of studies:")
        ]
        assert files_after_gc == files_before_gc - 1, (
            "gc removes the files of what was deleted, and no others"
        )
        (run,) = {
            line.split()[0]
            for line in said
            if line.startswith("digits-") and line.split()[1] in ("pending", "running")
        }
        assert f"{run}: stopped" in said
        assert "examples" not in said and "train.py" in said
        kept = {path.name for path in machine.state.iterdir()}
        assert kept == {"mlflow.dump", "artifacts.tar.gz"}, "the backups, and nothing else"
        assert machine.processes() == {}
