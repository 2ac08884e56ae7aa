"""Every code block of the README works as written; links and commands of all pages exist.

A block's language decides what happens to it, in order of appearance, in one empty directory with a
copy of ``examples/``:

    bash      run, must end with 0; lines that call make or git are checked, not run (they would
              run these very tests)
    python    run
    yaml      a mapping with `command` must be a valid job file; the rest must be YAML
    json      must be JSON
    toml      must be TOML
    text      a transcript: ignored

A comment on the line before a block changes that; its reason is required:

    <!-- file: train.py -->        the block is written to that file instead of being run
    <!-- not run: REASON -->       bash and python are only checked: commands and options must exist
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiers import slow

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LANGUAGES = ("bash", "python", "yaml", "json", "toml", "text")
QUICK = ("init", "check", "doctor", "knobs")  # commands that take seconds
BLOCK_TIMEOUT_S = 900  # a slow or busy machine measures longer and more pairs


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    text: str
    file: str = ""
    skip: str = ""


def blocks_of(markdown: str) -> list[Block]:
    """The fenced blocks of ``markdown``.

    Raises:
        ValueError: a fence is not closed, has no known language, or has an unknown comment.
    """
    blocks, lines, index = [], markdown.splitlines(), 0
    while index < len(lines):
        fence = re.match(r"^(\s*)(```+|~~~+)\s*(\S*)", lines[index])
        if not fence:
            index += 1
            continue
        start, indent, language = index + 1, len(fence[1]), fence[3]
        end = next((i for i in range(start, len(lines)) if lines[i].strip() == fence[2]), None)
        if end is None:
            raise ValueError(f"line {start}: a block that is not closed")
        if language not in LANGUAGES:
            raise ValueError(
                f"line {start}: the block's language is '{language}', not one of"
                f" {', '.join(LANGUAGES)}"
            )
        text = (
            "\n".join(
                line[indent:] if not line[:indent].strip() else line for line in lines[start:end]
            )
            + "\n"
        )
        blocks.append(Block(start, language, text, **_directive(lines, index)))
        index = end + 1
    return blocks


def _directive(lines: list[str], index: int) -> dict[str, str]:
    before = lines[index - 1].strip() if index else ""
    if not before.startswith("<!--"):
        return {}
    match = re.fullmatch(r"<!--\s*(file|not run):\s*(\S.*?)\s*-->", before)
    if not match:
        raise ValueError(
            f"line {index}: {before} is neither <!-- file: NAME --> nor <!-- not run: REASON -->"
        )
    return {"file" if match[1] == "file" else "skip": match[2]}


def commands_of(script: str) -> list[str]:
    """The command lines of a bash block, without comments and with continuation lines joined."""
    joined = script.replace("\\\n", " ")
    return [
        line.strip()
        for line in joined.splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]


def check_autotune_line(line: str) -> str:
    """Why the autotune command in ``line`` is wrong, or ""."""
    words = shlex.split(line, comments=True)
    start = next((i for i, w in enumerate(words) if Path(w).name == "autotune"), None)
    if start is None or len(words) == start + 1:
        return ""
    name = words[start + 1]
    if name.startswith("-"):
        return "" if name in ("--help", "-h", "--version") else f"autotune has no option {name}"
    from autotune.cli.app import COMMANDS

    if name not in COMMANDS:
        return f"autotune has no command '{name}'"
    options = []
    for word in words[start + 2 :]:
        if word in ("--", "|", ">", "&&", ";"):
            break
        if word.startswith("--"):
            options.append(word.partition("=")[0])
    missing = [o for o in options if o not in options_of(name)]
    return f"autotune {name} has no option {missing[0]}" if missing else ""


@functools.cache
def options_of(command: str) -> set[str]:
    """Its long options."""
    from autotune.cli.app import load

    named = {option for parameter in load(command).params for option in parameter.opts}
    return {option for option in named if option.startswith("--")} | {"--help"}


def check_make_line(line: str) -> str:
    """Why the make command in ``line`` is wrong, or "". The target must exist; nothing is run."""
    targets = [
        w for w in shlex.split(line, comments=True)[1:] if not w.startswith("-") and "=" not in w
    ]
    text = (ROOT / "Makefile").read_text()
    missing = [t for t in targets if not re.search(rf"^{re.escape(t)}:", text, re.MULTILINE)]
    return f"the Makefile has no target '{missing[0]}'" if missing else ""


def run_block(block: Block, folder: Path, quick: bool = False) -> str:
    """Execute the block; returns what went wrong, or "".

    ``quick``: only run commands that are in QUICK.
    """
    if block.file:
        target = folder / block.file
        if folder not in target.resolve().parents:
            return f"{block.file} lies outside the directory"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text)
    if block.language == "yaml":
        return _check_yaml(block, folder)
    if block.language == "json":
        return _syntax(json.loads, block.text)
    if block.language == "toml":
        return _syntax(tomllib.loads, block.text)
    if block.language == "python":
        problem = _syntax(ast.parse, block.text)
        return problem or (
            "" if block.skip or block.file else _run([sys.executable, "-c", block.text], folder)
        )
    if block.language == "bash" and not block.file:
        return _bash(block, folder, quick)
    return ""


def _syntax(parse: object, text: str) -> str:
    try:
        parse(text)  # type: ignore[operator]
    except (ValueError, SyntaxError) as error:
        return str(error)
    return ""


def _check_yaml(block: Block, folder: Path) -> str:
    from autotune.errors import AutotuneError
    from autotune.job.load import load_job
    from autotune.job.yaml_lines import YamlMistake, parse_yaml

    try:
        data = parse_yaml(block.text).data
        if (
            isinstance(data, dict)
            and "command" in data
            and "schema_version" not in data
            and "knobs" not in data
        ):
            path = folder / (block.file or "readme-block.yaml")
            path.write_text(block.text)
            load_job(path, check=False)
    except (YamlMistake, AutotuneError) as error:
        return str(error)
    return ""


def _bash(block: Block, folder: Path, quick: bool) -> str:
    kept = []
    for line in commands_of(block.text):
        if re.match(r"^(git|cd|source|\.)\s", line) and not block.skip:
            continue  # cloning and entering a repository or an environment: already done
        if line.startswith("make"):
            if problem := check_make_line(line):
                return problem
            continue
        if problem := check_autotune_line(line):
            return problem
        if not quick or line.split()[1:2] in [[name] for name in QUICK]:
            kept.append(line)
    problem = _run(["bash", "-n", "-c", block.text], folder)
    return problem or (
        ""
        if block.skip or not kept
        else _run(["bash", "-euo", "pipefail", "-c", "\n".join(kept)], folder)
    )


def _run(command: list[str], folder: Path) -> str:
    """What went wrong, or "".

    Runs in its own session, so that a block that takes too long, or a test that is stopped, leaves
    no tuning behind.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HOME": str(folder), "COLUMNS": "120"},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=BLOCK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"still running after {BLOCK_TIMEOUT_S} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return (
        ""
        if process.returncode == 0
        else f"ended with {process.returncode}\n{out[-2000:]}{err[-2000:]}"
    )


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("quick", [True, slow(False)])
def test_every_block_of_the_readme_does_what_it_says(quick: bool, tmp_path: Path) -> None:
    if (ROOT / "examples").is_dir():
        shutil.copytree(
            ROOT / "examples",
            tmp_path / "examples",
            ignore=shutil.ignore_patterns("__pycache__", "autotune-runs"),
        )
    wrong = []
    for block in blocks_of(README.read_text(encoding="utf-8")):
        if problem := run_block(block, tmp_path, quick):
            wrong.append(f"README.md:{block.line}: {problem}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [
        t
        for t in targets
        if "://" not in t and not t.startswith("mailto:") and not (page.parent / t).exists()
    ]
    assert not missing


def test_commands_of_the_documentation_are_there() -> None:
    """Commands and options exist, in blocks and in running text."""
    command = re.compile(r"^ *(autotune [a-z].*)$|`(autotune [a-z][^`]*)`", re.MULTILINE)
    wrong, lines = [], 0
    for page in PAGES:
        for match in command.finditer(page.read_text(encoding="utf-8")):
            lines += 1
            if problem := check_autotune_line((match[1] or match[2]).replace("\n", " ")):
                wrong.append(f"{page.relative_to(ROOT)}: {match[0].strip()}: {problem}")
    assert lines > 50
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("```bash\nfalse\n```\n", "ended with 1"),
        ("```bash\nmake nonsense\n```\n", "no target 'nonsense'"),
        ("```bash\nautotune rum job.yaml\n```\n", "no command 'rum'"),
        (
            "<!-- not run: takes minutes -->\n```bash\nautotune check --jsonn job.yaml\n```\n",
            "no option --jsonn",
        ),
        ("<!-- not run: takes minutes -->\n```bash\nif true; then\n```\n", "ended with 2"),
        ("```python\nprint(\n```\n", "never closed"),
        ("```python\nraise SystemExit(3)\n```\n", "ended with 3"),
        ("```yaml\na: [1\n```\n", "not valid YAML"),
        ("```yaml\ncommand: python train.py\nbuget: {}\n```\n", "did you mean 'budget'?"),
        ("```json\n{,}\n```\n", "property name"),
        ("<!-- file: ../out -->\n```text\nx\n```\n", "outside"),
    ],
)
def test_a_wrong_block_is_found(markdown: str, expected: str, tmp_path: Path) -> None:
    (block,) = blocks_of(markdown)
    assert expected in run_block(block, tmp_path)


@pytest.mark.parametrize(
    "markdown",
    [
        "```\nx\n```\n",
        "```ruby\nx\n```\n",
        "```bash\nx\n",
        "<!-- skip -->\n```bash\nx\n```\n",
        "<!-- not run: -->\n```bash\nx\n```\n",
    ],
)
def test_a_block_that_says_too_little_is_refused(markdown: str) -> None:
    with pytest.raises(ValueError, match="^line "):
        blocks_of(markdown)


def test_a_file_block_is_there_for_the_blocks_after_it(tmp_path: Path) -> None:
    first, second = blocks_of(
        "<!-- file: a/train.py -->\n```python\nprint(1)\n```\n\n```bash\n# comment\nmake test\ntest"
        " -f a/train.py\n```\n"
    )
    assert run_block(first, tmp_path) == ""
    assert run_block(second, tmp_path) == ""
