"""Mistakes in a file, reported in one form.

Where, what was found, what was expected, and the nearest valid word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import AutotuneError, InputError
from autotune.job.yaml_lines import Document, KeyPath
from autotune_spaces.base import nearest as nearest

LONGEST = 400  # characters quoted of what was found: a value may be as long as its file


@dataclass(frozen=True)
class Mistake:
    place: KeyPath
    found: str
    expected: str = ""
    nearest: str = ""
    remedy: str = ""


class InputErrors(InputError):
    """Several mistakes in one file; all of them are shown."""

    def __init__(self, mistakes: Sequence[InputError], file: str) -> None:
        super().__init__(
            f"{len(mistakes)} mistakes", where=file, remedy="correct them; nothing was started"
        )
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(
            [
                *(str(m) for m in self.mistakes),
                f"{len(self.mistakes)} mistakes; nothing was started",
            ]
        )


def did_you_mean(word: object, words: Iterable[str], otherwise: str = "") -> str:
    """The remedy for an unknown word: the nearest of those there are, or else ``otherwise``."""
    close = nearest(word, words)
    return f"did you mean '{close}'?" if close else otherwise


def listing(words: Iterable[str]) -> str:
    """ "a, b or c"."""
    *rest, last = list(words)
    return f"{', '.join(rest)} or {last}" if rest else last


def to_error(mistakes: Iterable[Mistake], document: Document, file: Path) -> AutotuneError:
    """One error for all ``mistakes``, in the order of the file's lines."""
    name = _shown(file)
    errors = [
        InputError(
            m.found if len(m.found) <= LONGEST else f"{m.found[:LONGEST]}…",
            where=f"{name}:{document.line(m.place)}",
            expected=m.expected,
            remedy=m.remedy or (f"did you mean '{m.nearest}'?" if m.nearest else ""),
        )
        for m in sorted(mistakes, key=lambda m: document.line(m.place))
    ]
    assert errors
    return errors[0] if len(errors) == 1 else InputErrors(errors, name)


def _shown(file: Path) -> str:
    """The path as a user would write it: relative if it lies below the current directory."""
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(file)
