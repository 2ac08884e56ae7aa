"""Adds gradient scaling, which float16 needs, following PyTorch's own recipe.

scaler = torch.amp.GradScaler("cuda")         once, after the imports
scaler.scale(loss).backward()
scaler.unscale_(optimizer)                    if code (e.g. clipping) stands between backward and step
scaler.step(optimizer)
scaler.update()
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from autotune.export.patch.context import Context, at
from autotune.export.patch.edits import Edit, Insert, Replace
from autotune.export.patch.expressions import around, shown
from autotune.export.patch.source import Block, Refused, SourceFile
from autotune.export.patch.start import after_imports, need_torch

BACKWARD = m.SimpleStatementLine(
    body=[m.Expr(value=m.Call(func=m.Attribute(attr=m.Name("backward"))))]
)
STEP = m.SimpleStatementLine(
    body=[m.Expr(value=m.Call(func=m.Attribute(attr=m.Name("step")), args=[]))]
)


def scaled(context: Context, file: SourceFile, block: Block, backward: cst.Call) -> list[Edit]:
    """The edits for one backward in ``block``.

    Raises:
        Refused: backward and step are not plain statements in that block, no step was recorded, or
            both names for the scaler are taken.
    """
    body = list(block.body)
    line = file.statement(backward)
    if (
        line not in body
        or not m.matches(line, BACKWARD)
        or any(a.keyword is None for a in backward.args)
    ):
        raise Refused(
            "gradient scaling needs `loss.backward()` as a statement in the forward's block, at"
            f" {at(file, file.line(backward))}"
        )
    steps = _steps(context, file, body, body.index(line))
    name = "scaler" if "scaler" not in file.text else "grad_scaler"
    if name in file.text:
        raise Refused(
            f"{file.name} uses both names that the gradient scaler could have (scaler, grad_scaler)"
        )
    made = (
        f"{name} ="
        f' {file.torch_name() or "torch"}.amp.GradScaler("{context.tuned.provenance.job_device}")'
    )
    edits: list[Edit] = [
        *need_torch(file),
        Insert(file, after_imports(file), (made,), blank=True),
        Replace(file, backward, lambda c: _scale(c, name)),
    ]
    holders = [holder for holder, _, _ in steps]
    between = [
        statement
        for statement in body[body.index(line) + 1 : body.index(holders[-1])]
        if statement not in holders
    ]
    if any(map(may_leave, between)):
        raise Refused(
            f"the step after the backward at {at(file, file.line(backward))} may be skipped, and"
            " the gradient scaler has to know when"
        )
    if between:
        edits += [
            Insert(file, line, (f"{name}.unscale_({optimizer})",)) for _, _, optimizer in steps
        ]
    edits += [Replace(file, call, lambda c: _step(c, name)) for _, call, _ in steps]
    return [*edits, Insert(file, steps[-1][0], (f"{name}.update()",))]


def _steps(
    context: Context, file: SourceFile, body: list[cst.BaseStatement], after: int
) -> list[tuple[cst.BaseStatement, cst.Call, str]]:
    """(statement, call, the optimizer's name) of every recorded step, in source order."""
    found = []
    for site in context.sites.steps:
        call = context.tree.file(site).call(site)
        holder = context.tree.file(site).statement(call)
        if holder not in body[after + 1 :] or not m.matches(holder, STEP):
            raise Refused(
                "gradient scaling needs `optimizer.step()` as a statement in the same block as"
                f" backward; it is at {site.file}:{site.line}"
            )
        found.append((holder, call, shown(cst.ensure_type(call.func, cst.Attribute).value)))
    if not found:
        raise Refused("the run did not record where the optimizer steps")
    return sorted(found, key=lambda step: file.line(step[0]))


def may_leave(node: cst.CSTNode, in_loop: bool = False) -> bool:
    """Whether ``node`` may leave the block it is in, other than by an exception."""
    if isinstance(node, cst.Return):
        return True
    if isinstance(node, (cst.Continue, cst.Break)):
        return not in_loop
    if isinstance(node, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
        return False
    within = in_loop or isinstance(node, (cst.For, cst.While))
    return any(may_leave(child, within) for child in node.children)


def _scale(call: cst.Call, name: str) -> cst.Call:
    method = cst.ensure_type(call.func, cst.Attribute)
    return call.with_changes(
        func=method.with_changes(value=around(f"{name}.scale(NODE0)", method.value))
    )


def _step(call: cst.Call, name: str) -> cst.BaseExpression:
    return around(f"{name}.step(NODE0)", cst.ensure_type(call.func, cst.Attribute).value)
