"""The line of a command that a shell reads: ``sh -c LINE``, ``conda run bash -euc LINE``.

Text put into such a line is quoted for the place where it stands; elsewhere no shell reads it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_PYTHON = re.compile(r"python[\d.]*$|.*\.py$")
# {name}, but not ${name}: that is a shell's or Hydra's
_HOLE = r"""(?<!\$)\{[^{}'"\\\n]+\}"""
# parts of a line in which nothing or something else is a hole: escaped, quoted, a comment
_PARTS = r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?<!\S)#[^\n]*"""


def shell_line(argv: Sequence[str]) -> int | None:
    """The index in ``argv`` of the line that a shell reads, also if another program starts it.

    None if there is none: words can then be added to the command.
    """
    for at, word in enumerate(argv):
        name = os.path.basename(word)
        if name in SHELLS:
            return _after_options(argv, at + 1)
        if _PYTHON.match(name):  # from here on, words are the program's own
            return None
    return None


def _after_options(argv: Sequence[str], at: int) -> int | None:
    """The first word after a shell's options, if these contain -c."""
    reads_line = False
    while at < len(argv) and argv[at][:1] in ("-", "+"):
        cluster = "" if argv[at].startswith("--") else argv[at][1:]
        reads_line |= argv[at].startswith("-") and "c" in cluster
        at += 2 if "o" in cluster.lower() else 1  # -o pipefail, -O extglob
    return at if reads_line and at < len(argv) else None


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace ``{name}`` in ``text`` for the names in ``values`` only; other braces (JSON, Hydra,
    ``${x}``) stay.
    """
    return re.sub(_HOLE, lambda hole: values.get(hole[0][1:-1], hole[0]), text)


def filled_command(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Fill in all words of ``argv``. In a shell line every value stays text: a directory's name may
    contain any character.
    """

    def put(hole: str, quote: str) -> str:
        name = hole[1:-1]
        return _quoted(values[name], quote) if name in values else hole

    line = shell_line(argv)
    return [
        _substituted(word, _HOLE, put) if at == line else filled(word, values)
        for at, word in enumerate(argv)
    ]


def expanding(line: str, pattern: str, variable: str) -> str:
    """A shell line with ``variable``, which its shell expands, wherever ``pattern`` matches."""
    forms = {"": f'"${variable}"', "'": f"""'"${variable}"'""", '"': f"${{{variable}}}"}
    return _substituted(line, pattern, lambda _, quote: forms[quote])


def _substituted(line: str, pattern: str, put: Callable[[str, str], str]) -> str:
    """``line`` with ``put(match, quote)`` for what matches ``pattern``; ``quote``: ', " or ""."""

    def part(found: re.Match[str]) -> str:
        text = found[0]
        if found["pattern"] is not None:
            return put(text, "")
        if text[0] in "'\"":
            return re.sub(pattern, lambda match: put(match[0], text[0]), text)
        return text

    return re.sub(rf"{_PARTS}|(?P<pattern>{pattern})", part, line, flags=re.DOTALL)


def _quoted(text: str, quote: str) -> str:
    """``text`` as a shell reads it literally between ``quote``, or outside quotes."""
    if quote == "'":
        return text.replace("'", """'"'"'""")
    return re.sub(r'(["$`\\])', r"\\\1", text) if quote else shlex.quote(text)
