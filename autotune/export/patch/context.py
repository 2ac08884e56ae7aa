"""The input and output of every transformation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from autotune.export.patch.edits import Edit, Replace
from autotune.export.patch.expressions import shown
from autotune.export.patch.source import Refused, SourceFile, SourceTree
from autotune.export.tuned import TunedConfig
from autotune_spaces.base import Value
from autotune_spaces.sites import JobSites


@dataclass(frozen=True)
class Context:
    """The input of a transformation. ``tree``: the job's files as they are now."""

    tuned: TunedConfig
    tree: SourceTree

    @property
    def sites(self) -> JobSites:
        return self.tuned.provenance.sites

    def value(self, knob: str) -> Value:
        return self.tuned.knobs[knob].value

    def own_files(self) -> list[SourceFile]:
        """The program's file and the job's files with recorded calls, if they can be read."""
        sites = self.sites
        calls = [
            *(b.call for b in sites.optimizers),
            *([sites.loader.call] if sites.loader else []),
            *(c for f in sites.forwards for c in f.stack),
        ]
        found = []
        for name in dict.fromkeys(
            [
                *([sites.program] if sites.program else []),
                *(call.file for call in calls if call.own),
            ]
        ):
            try:
                found.append(self.tree.open(name))
            except Refused:
                continue
        return found


@dataclass(frozen=True)
class Change:
    """Edits that are applied together or not at all.

    ``where`` ("train.py:12") and ``notes`` are shown to the user.
    """

    edits: tuple[Edit, ...]
    where: tuple[str, ...]
    notes: tuple[str, ...] = ()


def change(edits: Iterable[Edit], where: Iterable[str], notes: Iterable[str] = ()) -> Change:
    """A Change without duplicates: a call recorded for two objects is changed only once."""
    distinct = {
        (edit.node if isinstance(edit, Replace) else edit): edit for edit in reversed(list(edits))
    }
    return Change(
        tuple(reversed(distinct.values())), tuple(dict.fromkeys(where)), tuple(dict.fromkeys(notes))
    )


def note_replaced(setting: str, node: cst.BaseExpression) -> list[str]:
    """Notes for replacing ``node`` by ``setting``; none for a literal, which the diff shows."""
    literal = isinstance(node, (cst.Integer, cst.Float, cst.SimpleString)) or m.matches(
        node, m.Name("True") | m.Name("False") | m.Name("None")
    )
    if literal:
        return []
    return [f"{setting} replaces `{shown(node)}`, which no longer has any effect there"]


def at(file: SourceFile, line: int) -> str:
    return f"{file.name}:{line}"


def listing(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c" """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
