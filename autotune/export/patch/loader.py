"""Sets arguments of the training DataLoader in the call that builds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import libcst as cst
import libcst.matchers as m

from autotune.export.patch.arguments import Absent, New, find, with_arguments
from autotune.export.patch.context import Change, Context, at, change, listing, note_replaced
from autotune.export.patch.edits import replace_call
from autotune.export.patch.optimizer import scaled_learning_rate
from autotune.export.patch.source import Refused, SourceFile
from autotune_spaces.sites import BuiltSite

KNOBS = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "in_order",
)
# torch rejects these without workers, some in the call and some on iteration.
OF_WORKERS: dict[str, New] = {
    "prefetch_factor": Absent("None"),
    "persistent_workers": Absent("False"),
    "timeout": Absent("0"),
    "multiprocessing_context": Absent("None"),
}


def loader_arguments(context: Context, knobs: Sequence[str]) -> Change:
    """Set all of ``knobs``, a subset of KNOBS.

    Raises:
        Refused: a library builds the DataLoader, or its call cannot take them.
    """
    site = context.sites.loader
    if site is None:
        raise Refused("the run did not record where the training DataLoader is built")
    file = context.tree.file(site.call)
    call, site = file.call(site.call), replace(site, parameters=file.parameters(site))
    if site.others and "batch_size" in knobs:
        raise Refused(
            f"{at(file, site.call.line)} builds {site.others + 1} DataLoaders, and batch_size is"
            " meant for one of them"
        )
    if "batch_size" in knobs:
        _not_shared(context, file, call, find(call, site.parameters, "batch_size"))
    values: dict[str, New] = {name: repr(context.value(name)) for name in knobs}
    if values.get("num_workers") == "0":
        values |= OF_WORKERS
    _not_given_twice(context, site, values)
    edit = replace_call(file, call, lambda c: with_arguments(c, site.parameters, values, site.kind))
    scaled = scaled_learning_rate(context) if "batch_size" in knobs else change((), ())
    return change(
        [edit, *scaled.edits],
        [at(file, site.call.line), *scaled.where],
        [*_notes(call, site, values), *scaled.notes],
    )


def _not_shared(context: Context, file: SourceFile, call: cst.Call, size: cst.Arg | None) -> None:
    """
    Raises:
        Refused: ``size`` is a parameter of the function around ``call``, which is called for other
            loaders, too.
    """
    function = file.function(call)
    if size is None or not isinstance(function, cst.FunctionDef):
        return
    given = {
        cst.ensure_type(p, cst.Param).name.value for p in m.findall(function.params, m.Param())
    }
    used = {cst.ensure_type(n, cst.Name).value for n in m.findall(size.value, m.Name())}
    name = function.name.value
    if name == "__init__":
        name = next(
            (p.name.value for p in file.parents(function) if isinstance(p, cst.ClassDef)), name
        )
    places = [at(f, f.line(c)) for f in context.own_files() for c in f.calls(name)]
    if given & used - {"self"} and len(places) > 1:
        raise Refused(
            f"{name} is given the batch size, and called at {listing(places)}: change it in the"
            " call for the training"
        )


def _not_given_twice(context: Context, site: BuiltSite, values: Mapping[str, New]) -> None:
    """
    Raises:
        Refused: the loader's class is one of the job's own that passes one of ``values`` to torch
            itself, beside its ``**`` arguments.
    """
    name = site.kind.rpartition(".")[2]
    for file in context.own_files():
        for found in m.findall(file.module, m.ClassDef(name=m.Name(name))):
            for argument in values:
                if argument not in site.parameters and m.findall(
                    found, m.Arg(keyword=m.Name(argument))
                ):
                    raise Refused(
                        f"the class {name} ({at(file, file.line(found))}) passes {argument} to"
                        " DataLoader itself: change it there"
                    )


def _notes(call: cst.Call, site: BuiltSite, values: dict[str, New]) -> list[str]:
    notes = []
    for name, value in values.items():
        arg = find(call, site.parameters, name)
        if arg is not None and not isinstance(value, Absent):
            notes += note_replaced(f"{name}={value}", arg.value)
    if values.get("persistent_workers") == "True":
        notes.append(
            "with persistent_workers torch draws one random number fewer per epoch, so from epoch 2"
            " on a shuffle order differs, as with another seed"
        )
    if "num_workers" in values:
        notes.append(
            "if the dataset or a sampler of the program's own draws random numbers, it draws"
            " different ones with another number of workers"
        )
    if any(arg.star == "**" for arg in call.args):
        notes.append(
            f"the settings override what the call's ** passes ({site.call.file}:{site.call.line})"
        )
    passed_on = [
        name
        for name, value in values.items()
        if name not in site.parameters and not isinstance(value, Absent)
    ]
    if passed_on and not site.kind.startswith("torch."):
        notes.append(
            f"{site.kind} has to pass {listing(passed_on)} on to torch's DataLoader: if it gives"
            " them itself, change them there"
        )
    if site.others:
        notes.append(
            f"{site.call.file}:{site.call.line} builds {site.others + 1} DataLoaders; all of them"
            " get the settings"
        )
    return notes
