"""Sets ``non_blocking=True`` on the copies of batches to the GPU."""

from __future__ import annotations

from functools import partial

import libcst as cst
import libcst.matchers as m

from autotune.export.patch.arguments import with_arguments
from autotune.export.patch.context import Change, Context, at, change
from autotune.export.patch.edits import Replace
from autotune.export.patch.expressions import shown
from autotune.export.patch.source import Refused, SourceFile


def non_blocking(context: Context) -> Change:
    """Change every recorded copy.

    Raises:
        Refused: none was recorded, one is not a plain ``.to(…)`` or ``.cuda(…)`` in the job's own
            source, or one copies pinned memory of the job's own.
    """
    if not context.sites.transfers:
        raise Refused("the run recorded no copy of a batch to the GPU")
    for site in context.sites.refilled:
        raise Refused(
            f"the copy at {at(context.tree.file(site), site.line)} is of pinned memory of the job's"
            " own, which the job may refill while it is being copied"
        )
    edits, where = [], []
    for site in context.sites.transfers:
        file = context.tree.file(site)
        call = file.call(site)
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if method not in ("to", "cuda") or any(
            isinstance(a.value, cst.Name) and a.value.value in ("True", "False") and not a.keyword
            for a in call.args
        ):
            raise Refused(
                f"the copy at {at(file, site.line)} is not a plain .to(device) or .cuda()"
            )
        edits.append(Replace(file, call, partial(_with_flag, flag=_flag(file, call))))
        where.append(at(file, site.line))
    return change(edits, where)


def _with_flag(call: cst.Call, flag: str) -> cst.Call:
    return with_arguments(call, (), {"non_blocking": flag}, "Tensor.to")


def _flag(file: SourceFile, call: cst.Call) -> str:
    """``True``; where the function is told the device, and may copy to the host, which must be
    waited for: whether the tensor is there now.

    Raises:
        Refused: that cannot be written, because the tensor is made in the same expression.
    """
    function, method = file.function(call), cst.ensure_type(call.func, cst.Attribute)
    if not isinstance(function, cst.FunctionDef) or method.attr.value == "cuda":
        return "True"
    given = function.params
    parameters = [*given.posonly_params, *given.params, *given.kwonly_params]
    told = {parameter.name.value for parameter in parameters}
    devices = [a.value for a in call.args[:1]]
    if not any(isinstance(d, cst.Name) and d.value in told for d in devices):
        return "True"
    if m.findall(method.value, m.Call()):
        raise Refused(
            f"the copy at {at(file, file.line(call))} may also be one to the host, which must be"
            " waited for"
        )
    # what comes by here may be a module, too, which has no such attribute
    return f'not getattr({shown(method.value)}, "is_cuda", True)'
