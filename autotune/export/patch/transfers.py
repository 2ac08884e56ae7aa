"""Sets ``non_blocking=True`` on the copies of batches to the GPU."""

from __future__ import annotations

import libcst as cst

from autotune.export.patch.arguments import with_arguments
from autotune.export.patch.context import Change, Context, at, change
from autotune.export.patch.edits import Replace
from autotune.export.patch.source import Refused


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
        edits.append(
            Replace(
                file, call, lambda c: with_arguments(c, (), {"non_blocking": "True"}, "Tensor.to")
            )
        )
        where.append(at(file, site.line))
    return change(edits, where)
