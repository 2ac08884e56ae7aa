"""Writes settings made once at program start.

These are torch's global switches, after the imports, and environment variables, before torch is
imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from autotune.export.patch.context import Change, Context, at, change, listing, note_replaced
from autotune.export.patch.edits import Edit, Insert, Replace
from autotune.export.patch.source import Refused, SourceFile, imports, imports_torch
from autotune_spaces.sites import SettingSite

TF32 = m.Attribute(value=m.Attribute(attr=m.Name("matmul")), attr=m.Name("allow_tf32"))
# Read by the dynamic loader, malloc or Python itself before the first line of a program runs.
TOO_LATE = ("LD_", "MALLOC_", "GLIBC_", "PYTHON", "MIMALLOC_", "TCMALLOC_")


def switch(context: Context, code: str) -> Change:
    """Write one line ``torch.set_…(value)`` or ``torch.… = value``.

    If the job's own call of that function ran, its argument is changed; otherwise the line is
    inserted. The job's assignments to the same switch stay: none ran while the job was tuned, or
    the setting would not have been proven. (``allow_tf32`` may have: before training began.)

    Raises:
        Refused: the program's own file is unknown, the job's own call cannot be changed, or it
            assigns what the line sets.
    """
    name, _, rest = code.removeprefix("torch.").partition("(")
    if name == "set_float32_matmul_precision":
        for file in context.own_files():
            for own_line in m.findall(file.module, m.Assign(targets=[m.AssignTarget(TF32)])):
                if (
                    m.matches(own_line, m.Assign(value=m.Name("True")))
                    and rest.strip("\"')") == "high"
                ):
                    continue  # the same
                raise Refused(f"{at(file, file.line(own_line))} sets it in another way")
    own = [site for site in context.sites.settings if site.name == name]
    return _changed_calls(context, own, rest.removesuffix(")")) if own else _new(context, code)


def _new(context: Context, code: str) -> Change:
    file = _program(context)
    statement = after_imports(file)
    line = code.replace("torch.", f"{file.torch_name() or 'torch'}.", 1)
    return change(
        [*need_torch(file), Insert(file, statement, (line,), blank=True)],
        [at(file, file.line(statement))],
    )


def _changed_calls(context: Context, own: Sequence[SettingSite], value: str) -> Change:
    edits, where, notes = [], [], []
    for site in own:
        file = context.tree.file(site.call)
        call = file.call(site.call)
        if len(call.args) != 1 or call.args[0].star:
            raise Refused(
                f"{at(file, site.call.line)} already sets this in a form autotune cannot rewrite"
            )
        edits.append(
            Replace(
                file, call.args[0], lambda arg: arg.with_changes(value=cst.parse_expression(value))
            )
        )
        where.append(at(file, site.call.line))
        notes += note_replaced(f"{site.name}({value})", call.args[0].value)
    return change(edits, where, notes)


def environment(context: Context, variables: dict[str, str]) -> Change:
    """Write ``os.environ[…] = …`` before anything that may import torch.

    Raises:
        Refused: the program's own file is unknown, the job file already sets a variable, or a
            variable is read before the program can set it.
    """
    own = [name for name in variables if name in context.tuned.env]
    if own:
        raise Refused(
            f"the job file already sets {listing(own)}, and a line in the source would override it"
        )
    late = [name for name in variables if name.startswith(TOO_LATE)]
    if late:
        are = "is" if len(late) == 1 else "are"
        raise Refused(f"{listing(late)} {are} read before the program's first line")
    return before_torch(
        context,
        [
            f"os.environ[{json.dumps(name)}] = {json.dumps(value)}"
            for name, value in variables.items()
        ],
    )


def before_torch(context: Context, lines: Sequence[str]) -> Change:
    """Insert ``lines``, which need ``os``, before anything that may import torch.

    Raises:
        Refused: the program's own file is unknown, or it imports only the standard library.
    """
    file = _program(context)
    before, harmless = _before_torch(file)
    edits: list[Edit] = []
    if not any("os" in imports(statement) for statement in harmless):
        earlier = [
            statement
            for statement in harmless
            if imports(statement) and "__future__.*" not in imports(statement)
        ]
        edits.append(
            Insert(file, earlier[-1], ("import os",))
            if earlier
            else Insert(file, before, ("import os",), after=False)
        )
    return change(
        [*edits, *(Insert(file, before, (line,), after=False) for line in lines)],
        [at(file, file.line(before))],
    )


# ---------------------------------------------------------------------- places


def _program(context: Context) -> SourceFile:
    if not context.sites.program:
        raise Refused(
            "the job is started by a program that is not its own source, so none of your lines"
            " runs first"
        )
    return context.tree.open(context.sites.program)


def after_imports(file: SourceFile) -> cst.BaseStatement:
    """The last import at the head of ``file``.

    Raises:
        Refused: there is none.
    """
    found = [s for s in file.head() if imports(s)]
    if not found:
        raise Refused(
            f"{file.name} has no imports at the top, so there is no safe place to set torch options"
        )
    return found[-1]


def need_torch(file: SourceFile) -> list[Edit]:
    """The edit that adds ``import torch``; [] if ``file`` already has it."""
    if file.torch_name():
        return []
    parts = filter(imports_torch, file.module.body)
    return [Insert(file, next(parts, None) or after_imports(file), ("import torch",))]


def _before_torch(file: SourceFile) -> tuple[cst.BaseStatement, list[cst.BaseStatement]]:
    """(The first statement that may import torch, the statements before it)."""
    harmless: list[cst.BaseStatement] = []
    for statement in file.module.body:
        names = imports(statement)
        if not _docstring(statement) and not (
            names and all(name.split(".")[0] in sys.stdlib_module_names for name in names)
        ):
            return statement, harmless
        harmless.append(statement)
    raise Refused(f"{file.name} imports nothing but the standard library")


def _docstring(statement: cst.CSTNode) -> bool:
    return m.matches(
        statement,
        m.SimpleStatementLine(
            body=[m.Expr(value=m.OneOf(m.SimpleString(), m.ConcatenatedString()))]
        ),
    )
