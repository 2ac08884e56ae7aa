"""Wraps ``torch.autocast`` around the forward region: from a model's first call to its backward.

This is the region the agent used. If the two calls are in different functions, the region is in the
function that makes both, directly or not; if in different blocks, in the block that contains both.

    out = model(x)                        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
    loss = criterion(out, y)                  out = model(x)
    loss.backward()                           loss = criterion(out, y)
                                          loss.backward()
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from autotune.export.patch.context import Change, Context, at, change
from autotune.export.patch.edits import Edit, Wrap
from autotune.export.patch.scaling import scaled
from autotune.export.patch.source import Block, Refused, SourceFile, Statement
from autotune.export.patch.start import need_torch
from autotune_spaces.sites import SourceCall


@dataclass(frozen=True)
class Region:
    """Statements of one block: ``first`` to ``last`` make the forward, whose backward follows."""

    file: SourceFile
    block: Block
    first: Statement
    last: cst.BaseStatement
    backward: cst.Call


def autocast(context: Context) -> Change:
    """A ``with`` for every region, and gradient scaling for float16.

    Raises:
        Refused: a region is not a run of statements in one block, two regions overlap, or
            gradients cannot be scaled.
    """
    regions = _regions(context)
    edits: list[Edit] = []
    where = []
    for region in regions:
        torch = region.file.torch_name() or "torch"
        header = (
            f'{torch}.autocast(device_type="{context.tuned.provenance.job_device}",'
            f" dtype={torch}.{context.value('amp_dtype')})"
        )
        edits += [*need_torch(region.file), Wrap(region.file, region.first, region.last, header)]
        where.append(at(region.file, region.file.line(region.first)))
    notes = [
        *_also_inside(context),
        "where the same lines evaluate, they do so under autocast, too; in the trials they did not",
    ]
    _refuse_overlaps(regions)
    if context.value("amp_dtype") == "float16":
        backwards = {(b.stack[0].file, b.stack[0].line) for b in context.sites.backwards if b.stack}
        if len(regions) > 1 or len(backwards) > 1:
            raise Refused(
                "backward() is called in several places; gradient scaling must be written by hand"
                " for each"
            )
        [region] = regions
        file = region.file
        function = file.function(region.backward)
        found = m.findall(function, m.Call(func=m.Attribute(attr=m.Name("backward"))))
        if sum(file.function(call) is function for call in found) > 1:
            raise Refused(
                f"{at(file, file.line(region.backward))} is not the only backward() there; gradient"
                " scaling must be written by hand for each"
            )
        edits += scaled(context, file, region.block, region.backward)
    return change(edits, where, notes)


def _also_inside(context: Context) -> list[str]:
    """What comes under autocast though it did not in the trials: lines before the model's call, in
    a function that is called as a whole.

    Raises:
        Refused: they call a model without gradients, whose casts of the weights would be reused.
    """
    notes = []
    for backward in context.sites.backwards:
        if not 0 <= backward.forward < len(context.sites.forwards):
            continue
        forward = context.sites.forwards[backward.forward].stack
        begin, _ = _where_stacks_part(context, forward, backward.stack)
        for site in forward[: forward.index(begin)] if begin in forward else ():
            if not site.own:
                continue
            try:
                file = context.tree.file(site)
                call = file.call(site)
            except Refused:  # a file elsewhere, which need not be changed
                notes.append(f"all of {site.function} in {site.file} runs under autocast")
                continue
            inside = _before(file, call)
            if any(m.findall(part, GRADLESS) for part in inside):
                raise Refused(
                    f"{site.function} ({at(file, site.line)}) computes without gradients before it"
                    " calls the model, which must stay outside: write the `with` in it by hand"
                )
            if any(m.findall(part, m.Call(args=[m.AtLeastN(m.Arg(), n=1)])) for part in inside):
                notes.append(
                    f"all of {site.function} ({at(file, site.line)}) runs under autocast; in the"
                    " trials, autocast began at the model's call"
                )
    return notes


def _before(file: SourceFile, call: cst.Call) -> list[cst.CSTNode]:
    """The statements of the function around ``call`` that may run before it, innermost first."""
    return [
        before
        for block, statement in file.blocks(call)
        for before in block.body[: list(block.body).index(statement)]
    ]


def _regions(context: Context) -> list[Region]:
    sites = context.sites
    pairs = [
        (sites.forwards[b.forward].stack, b.stack)
        for b in sites.backwards
        if 0 <= b.forward < len(sites.forwards)
    ]
    if not pairs:
        raise Refused("the run recorded no call of the model followed by a backward")
    found = {}
    for forward, backward in pairs:
        region = _region(context, forward, backward)
        found[region.first] = region
    return list(found.values())


def _refuse_overlaps(regions: Sequence[Region]) -> None:
    for one, other in itertools.combinations(regions, 2):
        if one.block is other.block:
            body = list(one.block.body)
            begin = max(body.index(one.first), body.index(other.first))
            end = min(body.index(one.last), body.index(other.last))
            if begin <= end:
                raise Refused(
                    f"two forward regions overlap at {at(one.file, one.file.line(body[begin]))}"
                )


def _region(
    context: Context, forward: Sequence[SourceCall], backward: Sequence[SourceCall]
) -> Region:
    begin, end = _where_stacks_part(context, forward, backward)
    file = context.tree.file(begin)
    model, gradient = file.call(begin), file.call(end)
    _refuse_computation_below(context, backward[: backward.index(end)])
    block, first, last = _common(file, model, gradient)
    if isinstance(first, (cst.For, cst.While)) and m.findall(first, GRADLESS):
        raise Refused(
            f"the loop at {at(file, file.line(first))} computes without gradients, too, which must"
            " stay outside: write the `with` in it by hand"
        )
    where = f"{at(file, begin.line)} and {at(file, end.line)}"
    if first is last:
        raise Refused(
            f"forward and backward are one statement at {at(file, begin.line)}; give the loss a"
            " line of its own"
        )
    body = list(block.body)
    if body.index(first) > body.index(last):
        raise Refused(
            f"backward comes before the forward in the source ({where}), so the region spans"
            " loop iterations"
        )
    if last is not file.statement(gradient) and not _leads(last, gradient, file):
        raise Refused(f"the forward and its backward are in different blocks ({where})")
    if _computes(file, gradient):
        raise Refused(
            f"the loss is computed in the line of its backward, at {at(file, end.line)}; give it a"
            " line of its own"
        )
    inside = body[body.index(first) : body.index(last)]
    # another backward through the same forward needs what follows this one's loss, too
    again = any(site.forward < 0 for site in context.sites.backwards)
    inside = _without_zero_grad(inside) if again else _forward(inside, gradient)
    return Region(file, block, first, inside[-1], gradient)


def _refuse_computation_below(context: Context, calls: Sequence[SourceCall]) -> None:
    """``calls``: those that lead from the region's function to the backward.

    Raises:
        Refused: the function of one of them computes before it: that would miss the region.
    """
    for site in calls:
        if not site.own:
            continue
        file = context.tree.file(site)
        call = file.call(site)
        if _computes(file, call) or any(map(_has_tensor_calls, _before(file, call))):
            raise Refused(
                f"{site.function} computes before its backward at {at(file, site.line)}, but the"
                " forward is in the function that calls it: write the `with` in both by hand"
            )


def _computes(file: SourceFile, gradient: cst.Call) -> bool:
    """Whether the line of the backward computes with tensors before it: that would miss the region.

    ``(loss / len(loader)).backward()`` and arguments by name (``gradient=``) do not.
    """
    line, parents = file.statement(gradient), list(file.parents(gradient))
    small = line.body if isinstance(line, cst.SimpleStatementLine) else ()
    before = itertools.takewhile(lambda part: part not in parents, small)
    given = [argument for argument in gradient.args if argument.keyword is None]
    return any(map(_has_tensor_calls, [*before, gradient.func, *given]))


def _has_tensor_calls(part: cst.CSTNode) -> bool:
    """Whether ``part`` has a call that may compute with tensors, or a ``@``."""
    return any(not m.matches(call, WITHOUT_TENSORS) for call in m.findall(part, m.Call())) or bool(
        m.findall(part, m.MatrixMultiply())
    )


def _forward(statements: list[cst.BaseStatement], gradient: cst.Call) -> list[cst.BaseStatement]:
    """Drop trailing statements that do not contribute to the loss.

    If the loss has a name, everything after its last assignment; otherwise zero_grad() calls.
    """
    loss = (
        gradient.func.value
        if isinstance(gradient.func, cst.Attribute) and all(arg.keyword for arg in gradient.args)
        else None
    )
    if isinstance(loss, cst.Call) and m.matches(loss, SCALED):
        loss = loss.args[0].value
    making = [
        i
        for i, statement in enumerate(statements)
        if isinstance(loss, cst.Name) and m.findall(statement, _assigns(loss.value))
    ]
    return statements[: making[-1] + 1] if making else _without_zero_grad(statements)


def _without_zero_grad(statements: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Drop trailing ``zero_grad()`` calls, but not the first statement."""
    while len(statements) > 1 and m.matches(statements[-1], ZERO_GRAD):
        statements = statements[:-1]
    return statements


def _assigns(
    name: str,
) -> m.OneOf[m.AssignTarget | m.Element | m.AugAssign | m.AnnAssign | m.NamedExpr]:
    target = m.Name(name)
    return m.OneOf(
        m.AssignTarget(target),
        m.Element(target),
        m.AugAssign(target),
        m.AnnAssign(target),
        m.NamedExpr(target),
    )


GRADLESS = m.OneOf(
    *(m.Attribute(attr=m.Name(name)) for name in ("no_grad", "inference_mode")),
    *(m.Name(name) for name in ("no_grad", "inference_mode")),
)
# the job's own GradScaler, switched off: its product needs no autocast
SCALED = m.Call(func=m.Attribute(attr=m.Name("scale")), args=[m.Arg()])
WITHOUT_TENSORS = m.OneOf(
    *(m.Call(func=m.Name(name)) for name in ("len", "int", "float", "print", "isinstance")),
    m.Call(func=m.Attribute(attr=m.Name("perf_counter"))),
    m.Call(func=m.Attribute(attr=m.Name("zero_grad"))),
    *(
        m.Call(func=m.Attribute(attr=m.Name(name)), args=[])
        for name in ("mean", "sum", "float", "double", "squeeze", "get_world_size")
    ),
    SCALED,
)
ZERO_GRAD = m.SimpleStatementLine(
    body=[m.Expr(value=m.Call(func=m.Attribute(attr=m.Name("zero_grad"))))]
)


def _where_stacks_part(
    context: Context, forward: Sequence[SourceCall], backward: Sequence[SourceCall]
) -> tuple[SourceCall, SourceCall]:
    """The calls in one function at which the stacks of forward and backward part."""
    down, back = ([site for site in reversed(stack) if site.own] for stack in (forward, backward))
    for begin, end in zip(down, back, strict=False):
        if (begin.file, begin.function) != (end.file, end.function):
            break
        if _place(begin) != _place(end):
            return begin, end
    for site in (*forward[:1], *backward[:1]):
        context.tree.file(site)  # if a library makes the call, this raises and names it
    raise Refused("no function in your source calls both the forward and the backward")


def _place(site: SourceCall) -> tuple[int, int, int, int]:
    return site.line, site.column, site.end_line, site.end_column


def _common(
    file: SourceFile, model: cst.Call, gradient: cst.Call
) -> tuple[Block, Statement, Statement]:
    """The innermost block around both calls, and its statements that contain each of them."""
    behind = dict(file.blocks(gradient))
    for block, statement in file.blocks(model):
        if block in behind:
            return block, statement, behind[block]
    raise Refused(
        f"{at(file, file.line(model))} and {at(file, file.line(gradient))} are not in one function"
    )


def _leads(statement: Statement, gradient: cst.Call, file: SourceFile) -> bool:
    """Whether ``gradient`` comes first in every block inside the compound ``statement``.

    Then no forward code can precede it there.
    """
    return all(
        block.body[0] is inner
        for block, inner in file.blocks(gradient)
        if file.start(inner) > file.start(statement)
    )
