"""Edits to a parsed file: collected first, then applied in one pass.

That way every transformation sees the original file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from autotune.export.patch.source import Block, SourceFile


@dataclass(frozen=True)
class Replace:
    """Replace ``node`` by ``change(node)``; inner changes come first."""

    file: SourceFile
    node: cst.CSTNode
    change: Callable[[Any], cst.CSTNode]


@dataclass(frozen=True)
class Insert:
    """Insert lines before or after a statement; ``blank``: preceded by an empty line."""

    file: SourceFile
    beside: cst.BaseStatement
    lines: tuple[str, ...]
    after: bool = True
    blank: bool = False


@dataclass(frozen=True)
class Wrap:
    """Wrap the statements ``first`` to ``last`` of one block in ``with header:``."""

    file: SourceFile
    first: cst.BaseStatement
    last: cst.BaseStatement
    header: str


Edit = Replace | Insert | Wrap


def replace_call(file: SourceFile, call: cst.Call, new: Callable[[cst.Call], cst.Call]) -> Replace:
    """Replace ``call`` by ``new(call)``; what ``new`` refuses is raised now, not when it is applied."""
    new(call)
    return Replace(file, call, new)


def apply(file: SourceFile, edits: Sequence[Edit]) -> str:
    """The text of ``file`` with ``edits``, all of this file; equal edits are applied once."""
    changed = file.module.visit(_Editor(list(dict.fromkeys(edits))))
    assert isinstance(changed, cst.Module)
    return changed.code


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: Sequence[Edit]) -> None:
        super().__init__()
        self.replaces: dict[cst.CSTNode, list[Replace]] = {}
        for edit in edits:
            if isinstance(edit, Replace):
                self.replaces.setdefault(edit.node, []).append(edit)
        self.inserts = [e for e in edits if isinstance(e, Insert)]
        self.wraps = [e for e in edits if isinstance(e, Wrap)]

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        for replace in self.replaces.get(original_node, ()):
            updated_node = replace.change(updated_node)
        if isinstance(original_node, Block):
            body = self._body(original_node.body, updated_node.body)
            if body is not None:
                updated_node = updated_node.with_changes(body=body)
        return updated_node

    def _body(self, before: Sequence[Any], after: Sequence[Any]) -> list[Any] | None:
        """A block's statements with inserts and wraps applied; None if it has none."""
        here = set(before)
        inserts = [e for e in self.inserts if e.beside in here]
        wraps = [e for e in self.wraps if e.first in here]
        if not inserts and not wraps:
            return None
        pieces: list[list[Any]] = []
        for old, new in zip(before, after, strict=True):
            pieces.append([*_lines(inserts, old, False), new, *_lines(inserts, old, True)])
        for wrap in wraps:
            first, last = before.index(wrap.first), before.index(wrap.last)
            inner = [statement for piece in pieces[first : last + 1] for statement in piece]
            pieces[first : last + 1] = [
                [_within(wrap.header, inner)],
                *([] for _ in range(last - first)),
            ]
        return [statement for piece in pieces for statement in piece]


def _lines(
    inserts: Sequence[Insert], beside: cst.BaseStatement, after: bool
) -> list[cst.BaseStatement]:
    """The statements to insert there: ``blank`` ones last, with one empty line before the first."""
    mine = [e for e in inserts if e.beside is beside and e.after is after]
    plain, set_off = (
        [cst.parse_statement(line) for e in mine if e.blank is blank for line in e.lines]
        for blank in (False, True)
    )
    if set_off:
        set_off[0] = set_off[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    if (
        plain
        and not after
        and isinstance(beside, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    ):
        plain[0] = plain[0].with_changes(
            leading_lines=[line for line in beside.leading_lines if line.comment is None][:1]
        )
    return [*plain, *set_off]


def _within(header: str, statements: Sequence[Any]) -> cst.With:
    """``with header:`` around ``statements``; comments above the first one stay above the with."""
    first, *rest = statements
    wrapped = cst.ensure_type(cst.parse_statement(f"with {header}:\n    pass\n"), cst.With)
    body = [first.with_changes(leading_lines=()), *rest]
    return wrapped.with_changes(
        leading_lines=first.leading_lines, body=cst.IndentedBlock(body=body)
    )
