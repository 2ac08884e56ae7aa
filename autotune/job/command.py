"""The job's command: split into words, placeholders found, checked before anything starts."""

from __future__ import annotations

import glob
import itertools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from autotune.errors import HookError, InputError
from autotune.job.mistakes import listing, nearest
from autotune_trials.diagnosis.unhooked import python_arguments

OWN_PLACEHOLDERS = ("seed", "trial_dir")
# {name}, but neither ${name} (a shell's or Hydra's) nor {"json": 1}.
PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
# at the start of a word: what a shell takes for an assignment
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# what a shell expands, also in double quotes; what it reads outside quotes
_EXPANDED = re.compile(r"`|\$(?:\(|[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")
_READ = re.compile(rf"[|&;<>`]+|(?<!\S)~(?=/|\s|$)(?:/\S*)?|{_EXPANDED.pattern}")
_REFERENCE = re.compile(r"\$(\{)?([A-Za-z_][A-Za-z0-9_]*)(?(1)\})")
_QUOTED = r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\""""  # parts of a command
# in a shell line: what is no command, and a file to which a command sends what it prints
_NO_COMMAND = re.compile(r"\$?\(\(.*?\)\)|\[\[.*?\]\]|(?<!\S)#[^\n]*", re.DOTALL)
_SENT_TO = re.compile(
    r"(?:&?>>?|>&(?![\d-])|\|&?\s*tee(?:\s+-\S+)*(?!\S))\s*(?!&|/dev/|-)(?P<file>[^\s;&|<>()]+)"
)
_WORD = re.compile(rf"(?:{_QUOTED}|\S)+", re.DOTALL)
_LINE_BREAK = r"\\\r?\n"
_PYTHON = re.compile(r"^(?:python|pypy)(?:\d+(?:\.\d+)?)?$")
_RENDEZVOUS = re.compile(
    r"^--(?:nnodes|node[-_]rank|master[-_](?:addr|port)|rdzv[-_][a-z_-]+|standalone)(?:=|$)"
)
OLDEST_PYTHON = 3, 11  # that the agent runs in
_PROBE = (
    "import importlib.util as u, platform, sys; print(platform.python_version());"
    f" sys.exit(4 if sys.version_info < {OLDEST_PYTHON} else 0 if u.find_spec('torch') else 3)"
)
LINES = "the command has several lines, which without a shell would be one command"


def split(command: str, workdir: Path | None = None) -> tuple[str, ...]:
    """Split ``command`` into words by a shell's quoting rules, but without a shell.

    Args:
        workdir: where a shell would look for files that match ``*.txt``.

    Raises:
        ValueError: unbalanced quotes, an empty command, or something only a shell understands;
            ``str()`` says what.
    """
    command = re.sub(rf"{_LINE_BREAK}|{_QUOTED}", _joined, command, flags=re.DOTALL)
    # an indented line, and one of options, continues the one before
    if any(
        line[0] not in " \t-"
        for line in re.sub(_QUOTED, "''", command.strip()).split("\n")[1:]
        if line
    ):
        raise ValueError(LINES)
    operator = shell_operator(command)
    if operator:
        raise ValueError(
            f"'{operator}' in the command: no shell reads it, so the program would get it literally"
        )
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ValueError(f"the command's quotes do not match ({str(error).lower()})") from None
    if workdir and (pattern := file_pattern(command, workdir)):
        raise ValueError(
            f"'{pattern}' in the command matches files in {workdir}: no shell reads it, so the"
            " program would get it literally"
        )
    if not words:
        raise ValueError("the command is empty")
    if VARIABLE.match(words[0]):
        raise ValueError(
            f"'{words[0]}' before the command: no shell reads it; environment variables belong"
            " under 'env'"
        )
    return words


def _joined(part: re.Match[str]) -> str:
    """A part of a command without line breaks after a backslash, which count in single quotes."""
    text = part[0]
    if text[0] == "'":
        return text
    return re.sub(rf"{_LINE_BREAK}|(\\.)", lambda m: m[1] or "", text, flags=re.DOTALL)


def shell_operator(command: str) -> str:
    """The first thing that only a shell would understand where it stands, or ""."""
    quote, index = "", 0
    while index < len(command):
        char = command[index]
        if char == "\\" and quote != "'":
            index += 2
            continue
        if char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif quote != "'" and (match := (_EXPANDED if quote else _READ).match(command, index)):
            return match[0]
        index += 1
    return ""


def redirected_output(line: str) -> str:
    """The first file to which the last command of a shell line sends what it prints, except in
    ``{trial_dir}``, or "".
    """
    if "<<" in line:  # a here-document is text
        return ""
    plain = re.sub(_QUOTED, lambda part: re.sub(r"[^\w./${}-]", "_", part[0][1:-1]), line)
    *_, last = re.split(r";|&&|\|\||\n", _NO_COMMAND.sub("", plain).strip("; \n"))
    files = (match["file"] for match in _SENT_TO.finditer(last))
    return next((file for file in files if "{trial_dir}" not in file), "")


def file_pattern(command: str, workdir: Path) -> str:
    """The first word that a shell would replace by files in ``workdir``; "" if there is none."""
    for word in _WORD.findall(command):
        pattern = re.sub(_QUOTED, lambda part: glob.escape("".join(shlex.split(part[0]))), word)
        if glob.has_magic(re.sub(_QUOTED, "", word)) and glob.glob(pattern, root_dir=workdir):
            return word
    return ""


def shell_reference(value: str, variables: Collection[str]) -> str:
    """The first of ``variables`` that a shell would replace in ``value``; "" if there is none."""
    found = (match[0] for match in _REFERENCE.finditer(value) if match[2] in variables)
    return next(found, "")


def placeholders(command: Sequence[str]) -> list[str]:
    """Names in braces, in order of appearance, each once."""
    return list(dict.fromkeys(name for word in command for name in PLACEHOLDER.findall(word)))


def is_torchrun(command: Sequence[str]) -> bool:
    """Whether the command starts torchrun, by its name or as a module."""
    return (
        any(os.path.basename(word) == "torchrun" for word in command)
        or "torch.distributed.run" in command
    )


def rendezvous_words(command: Sequence[str]) -> str:
    """The first option that tells torchrun how nodes find each other; "" if there is none."""
    own = itertools.takewhile(lambda word: not word.endswith(".py") and word != "--module", command)
    return next((word.partition("=")[0] for word in own if _RENDEZVOUS.match(word)), "")


def check_command(
    command: Sequence[str], workdir: Path, env: Mapping[str, str], where: str = ""
) -> None:
    """Check the command without running it: does the program exist, can its python find torch?

    Raises:
        InputError: the program or script does not exist, or its interpreter has no torch.
        HookError: a flag makes python ignore its environment, so the agent could not get in.
    """
    word = command[0]
    if PLACEHOLDER.search(word):
        return
    environment = {**os.environ, **env}
    program = _find_program(word, workdir, environment, where)
    if _PYTHON.match(Path(word).name):
        _check_python(command, program, workdir, environment, where)


def _find_program(word: str, workdir: Path, environment: Mapping[str, str], where: str) -> str:
    if "/" in word:
        path = workdir / word
        if not os.path.isfile(path):  # Path.is_file() raises where a folder may not be searched
            raise InputError(
                f"the command '{word}' does not exist in {workdir}, or may not be read",
                where=where,
                expected="a program",
                remedy=_like_file(path),
            )
        if not os.access(path, os.X_OK):
            how = f"write 'python {word}'" if path.suffix == ".py" else f"chmod +x {path}"
            raise InputError(
                f"the command '{word}' is not executable",
                where=where,
                expected="a program",
                remedy=how,
            )
        return str(path)
    found = shutil.which(word, path=environment.get("PATH"))
    if found:
        return found
    if (workdir / word).is_file():
        how = f"write 'python {word}'" if word.endswith(".py") else f"write './{word}'"
    elif close := nearest(word, _programs(environment.get("PATH", ""))):
        how = f"did you mean '{close}'?"
    else:
        how = "install it, or activate the environment that has it"
    raise InputError(
        f"the command '{word}' was not found", where=where, expected="a program on PATH", remedy=how
    )


def _programs(path: str) -> Collection[str]:
    names: set[str] = set()
    for folder in filter(None, path.split(os.pathsep)):
        try:
            names.update(os.listdir(folder))
        except OSError:
            continue
    return names


def _like_file(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
        alike = (name for name in names if Path(name).suffix in (".py", path.suffix))
        close = nearest(path.name, alike)
    except OSError:
        return "check 'workdir'; paths in the command are relative to it"
    return (
        f"did you mean '{close}'?"
        if close
        else "check 'workdir'; paths in the command are relative to it"
    )


def _check_python(
    command: Sequence[str], program: str, workdir: Path, environment: Mapping[str, str], where: str
) -> None:
    script, _, flag = python_arguments(command[1:])
    if flag:
        raise HookError(
            f"the command runs python with -{flag}, which keeps the agent out of the job",
            where=where,
            expected="a python that reads PYTHONPATH and sitecustomize",
            remedy=f"leave out -{flag}",
        )
    if script and not PLACEHOLDER.search(script) and not (workdir / script).exists():
        raise InputError(
            f"the script '{script}' does not exist in {workdir}",
            where=where,
            expected="a file",
            remedy=_like_file(workdir / script),
        )
    _check_torch(program, workdir, environment, where)


def _check_torch(program: str, workdir: Path, environment: Mapping[str, str], where: str) -> None:
    """Look torch up instead of importing it: about 50 ms instead of a second."""
    try:
        probe = subprocess.run(
            [program, "-c", _PROBE],
            cwd=workdir,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"{program} does not run: {error}", where=where, expected="a working Python interpreter"
        ) from None
    if probe.returncode == 4:
        raise InputError(
            f"{program} is Python {probe.stdout.decode(errors='replace').strip()}",
            where=where,
            expected=f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer in the job's environment",
            remedy="make an environment with a newer Python, and torch, for the job",
        )
    if probe.returncode == 3:
        raise InputError(
            f"{program} has no torch",
            where=where,
            expected="the Python you normally run the job with",
            remedy=(
                "activate the job's environment first, or write the path of its python in 'command'"
            ),
        )
    if probe.returncode != 0:
        last = probe.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise InputError(
            f"{program} does not run: {last[0]}",
            where=where,
            expected="a working Python interpreter",
        )


def unknown_placeholders(
    command: Sequence[str], knobs: Collection[str]
) -> list[tuple[str, str, str]]:
    """(name, nearest, expected) of every placeholder that looks mistyped.

    Other names in braces are the program's own: ``--filename '{epoch}-{step}'``.
    """
    valid = [*OWN_PLACEHOLDERS, *knobs]
    expected = listing(f"{{{v}}}" for v in valid)
    return [
        (name, close, expected)
        for name in placeholders(command)
        if name not in valid and (close := nearest(name, valid))
    ]
