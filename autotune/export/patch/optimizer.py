"""Sets arguments of optimizers in the calls that build them.

These are the implementation (foreach, fused), and the learning rate scaled for a new batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import PurePath

import libcst as cst

from autotune.export.formats import lightning
from autotune.export.patch.arguments import Absent, New, find, with_arguments
from autotune.export.patch.context import Change, Context, at, change, note_replaced
from autotune.export.patch.edits import replace_call
from autotune.export.patch.expressions import around, atom
from autotune.export.patch.source import Refused
from autotune_spaces.sites import BuiltSite

IMPLEMENTATIONS: dict[object, dict[str, New]] = {
    "for-loop": {"foreach": "False", "fused": Absent("None")},
    "foreach": {"foreach": "True", "fused": Absent("None")},
    "fused": {"fused": "True", "foreach": Absent("None")},
    "default": {"foreach": Absent("None"), "fused": Absent("None")},
}


def optimizer_implementation(context: Context) -> Change:
    """Set foreach= and fused= of every optimizer.

    Raises:
        Refused: a library builds an optimizer, or its call cannot take them.
    """
    value = context.value("optimizer_impl")
    scaled = "amp_dtype" in context.tuned.knobs and context.value("amp_dtype") == "float16"
    sgd = any(site.kind.endswith(".SGD") for site in context.sites.optimizers)
    unsound = value == "fused" and scaled and sgd
    wanted = IMPLEMENTATIONS["foreach" if unsound else value]
    written = _each(
        context, lambda site, call: with_arguments(call, site.parameters, wanted, site.kind)
    )
    given = [
        (name, find(context.tree.file(site.call).call(site.call), site.parameters, name))
        for site in context.sites.optimizers
        if site.stepped
        for name in wanted
    ]
    notes = [
        note
        for name, arg in given
        if arg is not None
        for note in note_replaced(f"the optimizer's {name}", arg.value)
    ]
    notes.append(
        "the optimizer state of an earlier checkpoint brings its own foreach and fused: after"
        " load_state_dict(), set them again in its param_groups"
    )
    if unsound:
        notes.append(
            "foreach is written instead of fused: torch's fused SGD leaves its momenta unwritten if"
            " the GradScaler that float16 needs, written here or by hand, skips the first step"
        )
    stepped_by = {PurePath(step.file).parts[0] for step in context.sites.steps if step.file}
    if value == "fused" and stepped_by.intersection(lightning.LIBRARIES):
        notes.append(lightning.CLIPPING)
    return change(written.edits, written.where, [*written.notes, *notes])


def scaled_learning_rate(context: Context) -> Change:
    """Scale lr= of every optimizer by the batch_size knob's rule; no edits without a rule.

    Raises:
        Refused: the learning rate is set elsewhere than in the optimizer's call, or the job's own
            batch size is unknown.
    """
    factor = _factor(context)
    if factor is None:
        return Change((), ())
    scaled = _each(context, lambda site, call: _scaled(site, call, factor))
    note = (
        f"the learning rate is multiplied by {factor}; code that sets learning rates of its own"
        " (OneCycleLR, eta_min, an assignment to param_groups) needs the same factor, and so does the"
        " optimizer's state in a checkpoint from before"
    )
    return change(scaled.edits, scaled.where, [note, *scaled.notes])


def _each(context: Context, new: Callable[[BuiltSite, cst.Call], cst.Call]) -> Change:
    """Replace every optimizer's call by ``new(site, call)``; notes name those that are left."""
    sites = [site for site in context.sites.optimizers if site.stepped]
    if not sites:
        raise Refused("the run did not record where the optimizer is built")
    edits, where = [], []
    for site in sites:
        file = context.tree.file(site.call)
        call, site = file.call(site.call), replace(site, parameters=file.parameters(site))
        edits.append(replace_call(file, call, partial(new, site)))
        where.append(at(file, site.call.line))
    left = [
        f"the optimizer at {site.call.file}:{site.call.line} did not step while the run was recorded"
        " and is unchanged: change it likewise if it trains on the same batches"
        for site in context.sites.optimizers
        if not site.stepped
    ]
    return change(edits, where, left)


def _factor(context: Context) -> str | None:
    """The factor as an expression; None if the learning rate is unchanged."""
    choice = context.tuned.knobs["batch_size"]
    rule = choice.options.get("lr_scaling", "none")
    own = choice.options.get("own_batch_size") or choice.was
    new = choice.value
    if rule == "none":
        return None
    if not isinstance(own, int) or not isinstance(new, int):
        raise Refused(f"lr_scaling {rule} needs the job's own batch size, which is unknown")
    if rule == "linear":
        return str(new // own) if new % own == 0 else f"({new} / {own})"
    root = (new / own) ** 0.5
    return str(int(root)) if root.is_integer() else f"({new} / {own}) ** 0.5"


def _scaled(site: BuiltSite, call: cst.Call, factor: str) -> cst.Call:
    if site.lr is None:
        raise Refused(
            f"parameter groups of the optimizer at {site.call.file}:{site.call.line} have learning"
            " rates of their own"
        )
    present = find(call, site.parameters, "lr")
    if present is None and any(arg.star == "**" for arg in call.args):
        raise Refused(
            f"the learning rate at {site.call.file}:{site.call.line} may be among the call's **"
        )
    if present is None:
        return with_arguments(call, site.parameters, {"lr": f"{site.lr!r} * {factor}"}, site.kind)
    return with_arguments(
        call, site.parameters, {"lr": around(f"NODE0 * {factor}", atom(present.value))}, site.kind
    )
