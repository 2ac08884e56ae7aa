"""Parses the user's source files to locate the calls recorded while the job ran.

This module only reads; transformations express changes as the edits of :mod:`.edits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import libcst as cst
import libcst.matchers as m
from libcst.metadata import (
    CodePosition,
    CodeRange,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
)

from autotune.export.patch.expressions import shown
from autotune.export.patch.libraries import owner_of
from autotune.words import clean
from autotune_spaces.sites import BuiltSite, SourceCall

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Block = cst.Module | cst.IndentedBlock
Function = cst.Module | cst.FunctionDef


class Refused(Exception):
    """A setting cannot be written into the source; ``str()`` is the reason, a lower-case clause."""


class SourceFile:
    """One source file.

    ``name`` is relative to the job's directory, with slashes; ``mark`` is the byte order mark
    before ``text``, or "".
    """

    def __init__(self, name: str, data: bytes) -> None:
        """Parse the file.

        Raises:
            Refused: it is not valid Python in UTF-8.
        """
        self.name = name
        try:
            whole = data.decode("utf-8")
            self.text = whole.removeprefix("\ufeff")
            self.mark = whole[: len(whole) - len(self.text)]
            wrapper = MetadataWrapper(cst.parse_module(self.text))
        except UnicodeDecodeError:
            raise Refused(f"{name} is not UTF-8") from None
        except (cst.ParserSyntaxError, SyntaxError, ValueError) as error:
            raise Refused(f"{name} cannot be parsed: {str(error).splitlines()[0]}") from None
        self.module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)

    # ------------------------------------------------------------------ nodes

    def call(self, site: SourceCall) -> cst.Call:
        """The call expression that was recorded as ``site``.

        Raises:
            Refused: the file has changed since the job ran, no columns were recorded, or there is
                no call expression at the place.
        """
        where = f"{site.file}:{site.line}"
        if site.column < 0:
            raise Refused(
                f"the run recorded only the line of {where}: Python recorded no columns"
                " (PYTHONNODEBUGRANGES, -X no_debug_ranges)"
            )
        around = [
            (place, node)
            for node, place in self._positions.items()
            if isinstance(node, cst.Call) and _encloses(place, site)
        ]
        if self._between(site)[: len(site.text)] != site.text or not site.text:
            raise Refused(
                f"{where} has changed since the run, or is already patched:"
                f" `{clean(site.text, 60)}` was there"
            )
        if not around:  # e.g. a loop fed by one of the job's generators
            raise Refused(
                f"{where} runs it implicitly, with no call to edit: `{clean(site.text, 60)}`"
            )
        # The innermost enclosing call: for a method call over several lines, Python records only
        # the part from the method's name on.
        return max(around, key=lambda item: (item[0].start.line, item[0].start.column))[1]

    def calls(self, *names: str) -> list[cst.Call]:
        """The calls of ``name(…)`` and ``x.name(…)`` in this file."""
        named = m.OneOf(*(m.Name(name) for name in names))
        found = m.findall(self.module, m.Call(func=named | m.Attribute(attr=named)))
        return [cst.ensure_type(node, cst.Call) for node in found]

    def _between(self, site: SourceCall) -> str:
        lines = self.text.replace("\r\n", "\n").split("\n")[site.line - 1 : site.end_line]
        if len(lines) != site.end_line - site.line + 1:
            return ""
        lines[-1] = lines[-1][: site.end_column]
        return "\n".join(lines)[site.column :]

    def line(self, node: cst.CSTNode) -> int:
        return self._positions[node].start.line

    def start(self, node: cst.CSTNode) -> tuple[int, int]:
        place: CodePosition = self._positions[node].start
        return place.line, place.column

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around ``node``, innermost first."""
        while node is not self.module:
            node = self._parents[node]
            yield node

    # ------------------------------------------------------------------ statements

    def blocks(self, node: cst.CSTNode) -> list[tuple[Block, Statement]]:
        """The blocks around ``node`` within its function, innermost first.

        Each comes with its statement that contains ``node``.
        """
        found: list[tuple[Block, Statement]] = []
        below: cst.CSTNode = node
        for parent in self.parents(node):
            if isinstance(parent, Block) and isinstance(below, Statement):
                found.append((parent, below))
            if isinstance(parent, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
                break
            below = parent
        return found

    def statement(self, node: cst.CSTNode) -> Statement:
        """The innermost statement of a block that contains ``node``.

        Raises:
            Refused: there is none (in a lambda).
        """
        found = self.blocks(node)
        if not found:
            raise Refused(
                f"{self.name}:{self.line(node)} is not part of a statement that can be changed on"
                " its own"
            )
        return found[0][1]

    def parameters(self, site: BuiltSite) -> tuple[str, ...]:
        """The parameters of ``site`` that its call can still pass.

        If it calls a ``functools.partial(…)`` from this file, the first ones are already bound.

        Raises:
            Refused: it is unclear how many are bound.
        """
        func = self.call(site.call).func
        partial = m.Call(func=m.Name("partial") | m.Attribute(attr=m.Name("partial")))
        found = [
            cst.ensure_type(node, cst.Assign)
            for node in m.findall(self.module, m.Assign(value=partial))
        ]
        made = [
            node.value
            for node in found
            if any(target.target.deep_equals(func) for target in node.targets)
        ]
        given = [
            arg
            for node in made[-1:]
            for arg in cst.ensure_type(node, cst.Call).args
            if arg.keyword is None
        ]
        if any(arg.star for arg in given):
            raise Refused(
                f"{self.name}:{site.call.line} calls a functools.partial whose bound arguments"
                " are unclear"
            )
        return site.parameters[max(len(given) - 1, 0) :]

    def function(self, node: cst.CSTNode) -> Function:
        """The function around ``node``, or the module."""
        return next((p for p in self.parents(node) if isinstance(p, cst.FunctionDef)), self.module)

    def head(self) -> Sequence[cst.BaseStatement]:
        """The module's statements before the first compound one after its import of torch.

        Import guards (``try``) do not count as compound.
        """
        body = list(self.module.body)
        torch = self._torch_import()[0] or next(filter(imports_torch, body), None)
        begin = next((i for i, statement in enumerate(body) if statement is torch), 0)
        compound = (cst.FunctionDef, cst.ClassDef, cst.If, cst.For, cst.While, cst.With)
        return body[
            : next((i for i in range(begin, len(body)) if isinstance(body[i], compound)), len(body))
        ]

    def torch_name(self) -> str:
        """The name of torch at the top level of this file; "" if it is not imported by name."""
        return self._torch_import()[1]

    def _torch_import(self) -> tuple[cst.BaseStatement | None, str]:
        """The top-level statement of this file that imports torch by name, and that name."""
        for statement in self.module.body:
            for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
                for alias in small.names if isinstance(small, cst.Import) else ():
                    if alias.evaluated_alias and alias.evaluated_name == "torch":
                        return statement, alias.evaluated_alias
                    if not alias.evaluated_alias and alias.evaluated_name.split(".")[0] == "torch":
                        return statement, "torch"
        return None, ""


class SourceTree:
    """The job's own files by name; each is read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, SourceFile] = {}

    def file(self, site: SourceCall) -> SourceFile:
        """The file of ``site``.

        Raises:
            Refused: it belongs to a library, is outside the job's directory, or cannot be read.
        """
        if not site.own:
            raise Refused(
                f"`{clean(site.text, 60)}` is in {owner_of(site.file)} ({site.file}:{site.line}),"
                " not in your own source"
            )
        return self.open(site.file)

    def open(self, name: str) -> SourceFile:
        """The file ``name``. Raises Refused as :meth:`file` does."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise Refused(
                f"{name} is outside the job's directory {self.root}; set `workdir` in the job"
                " file to one that contains it"
            )
        if set(name) & set('"\\\n\t'):
            raise Refused(f"a patch cannot name the file {name!r}")
        if name not in self.files:
            try:
                data = (self.root / name).read_bytes()
            except OSError as error:
                raise Refused(f"{self.root / name}: {error.strerror or error}") from None
            self.files[name] = SourceFile(name, data)
        return self.files[name]


def _encloses(place: CodeRange, site: SourceCall) -> bool:
    start, end = (place.start.line, place.start.column), (place.end.line, place.end.column)
    return start <= (site.line, site.column) and (site.end_line, site.end_column) <= end


def imports(statement: cst.CSTNode) -> list[str]:
    """Names of the modules that ``statement`` imports; "os" only for a plain ``import os``."""
    found: list[str] = []
    for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
        if isinstance(small, cst.Import):
            found += [
                f"{a.evaluated_name}.{a.evaluated_alias}" if a.asname else a.evaluated_name
                for a in small.names
            ]
        elif isinstance(small, cst.ImportFrom):
            module = "" if small.module is None else shown(small.module)
            found.append(f"{'.' * len(small.relative)}{module}.*")
    if isinstance(statement, cst.Try):
        found += [name for inner in statement.body.body for name in imports(inner)]
    return found


def imports_torch(statement: cst.CSTNode) -> bool:
    """Whether ``statement`` imports torch or something of it."""
    return any(name.split(".")[0] == "torch" for name in imports(statement))
