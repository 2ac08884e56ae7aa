"""Inserts ``torch.compile`` or ``channels_last`` where the final model has been made.

Both act on the module in place (``model.compile()``, ``model.to(memory_format=…)``), so names,
checkpoints and the optimizer stay as they are. The outermost function that has the model under a
plain name is preferred, because it runs once. ``compile`` follows the statement that makes the
model. ``channels_last`` comes as late as it can, because what draws or copies weights before
(``model.apply(init)``) should find them as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from autotune.export.patch.context import Change, Context, at, change
from autotune.export.patch.edits import Edit, Insert, Replace
from autotune.export.patch.expressions import around, atom
from autotune.export.patch.source import Refused, SourceFile, Statement
from autotune.export.patch.start import need_torch
from autotune_spaces.knobs.compile_mode import CUDA_GRAPHS, REGIONAL, arguments
from autotune_spaces.sites import ForwardSite, SourceCall


def compiled(context: Context) -> Change:
    """``model.compile(…)`` for every top-level module called in training.

    Raises:
        Refused: the source does not show where one of them is made, it is of a class of torch.nn,
            or the mode is "regional".
    """
    mode = context.value("compile_mode")
    if mode == REGIONAL:
        raise Refused(
            "the source does not show which modules are the repeated blocks: `for block in"
            " model.blocks: block.compile()`"
        )
    argument = ", ".join(
        f'{name}="{word}"' if isinstance(word, str) else f"{name}={word}"
        for name, word in arguments(mode).items()
    )
    inert = [
        f"`compile()` does nothing to {forward.module}, whose forward is torch.nn's: call it in a"
        " class of your own, or use `torch.compile(model)` in its place"
        for forward in context.sites.forwards
        if forward.of_torch
    ]
    if inert and all(forward.of_torch for forward in context.sites.forwards):
        raise Refused(inert[0])
    found = _where_made(context, lambda file, name: f"{name}.compile({argument})", of_torch=False)
    notes = [
        *inert,
        "if the model has dropout, it draws different random numbers in compiled code",
        "if the program evaluates this model, its first evaluation includes compilation",
    ]
    if mode in CUDA_GRAPHS:
        notes.append(
            "clone outputs that you keep, in evaluation too: the next call of the model overwrites"
            " them"
        )
    return change(found.edits, found.where, notes)


def channels_last(context: Context) -> Change:
    """Put the model's parameters and the images it is called with in channels_last.

    Raises:
        Refused: an input has 5 dimensions, or the source does not show where a model is made or
            which images it gets.
    """
    if any(
        dimensions != 4 for forward in context.sites.forwards for _, dimensions in forward.images
    ):
        raise Refused(
            "the model's input is volumes (5 dimensions), which need another memory format"
        )
    made = _where_made(
        context,
        lambda file, name: f"{name}.to(memory_format={file.torch_name() or 'torch'}.channels_last)",
        late=True,
    )
    edits, where = list(made.edits), list(made.where)
    for forward in context.sites.forwards:
        for name, _ in forward.images:
            edit, place = _image(context, forward.stack[0], name)
            edits += [edit, *need_torch(edit.file)]
            where.append(place)
    notes = [
        *made.notes,
        "4-D outputs of the model are in channels_last, in evaluation too: there `view()` may"
        " raise an error, `reshape()` does not",
        "do not resume an earlier checkpoint with a fused optimizer: its momenta and the weights then"
        " have different layouts, and fused kernels mix up their elements",
    ]
    return change(edits, where, notes)


def _image(context: Context, site: SourceCall, name: str) -> tuple[Replace, str]:
    file = context.tree.file(site)
    call = file.call(site)
    arg = _argument(call, name)
    if arg is None or arg.star:
        raise Refused(
            f"argument {name} of the model's call at {at(file, site.line)} is not explicit there"
        )
    to = f".to(memory_format={file.torch_name() or 'torch'}.channels_last)"

    def laid_out(node: cst.Arg) -> cst.Arg:
        return node.with_changes(value=around("NODE0" + to, atom(node.value)))

    return Replace(file, arg, laid_out), at(file, site.line)


def _argument(call: cst.Call, name: str) -> cst.Arg | None:
    if not name.isdigit():
        return next(
            (a for a in call.args if a.keyword is not None and a.keyword.value == name), None
        )
    positional = [a for a in call.args if a.keyword is None and a.star != "**"]
    return (
        positional[int(name)]
        if int(name) < len(positional) and not any(a.star for a in positional[: int(name)])
        else None
    )


# ---------------------------------------------------------------------- where the model is made


@dataclass(frozen=True)
class Made:
    """Where a model has its final value: after ``statement``, under ``name``.

    ``training``: the later statement of the same block that trains it; None for an attribute.
    """

    file: SourceFile
    name: str
    statement: Statement
    training: Statement | None = None


def _where_made(
    context: Context,
    line: Callable[[SourceFile, str], str],
    of_torch: bool = True,
    late: bool = False,
) -> Change:
    """Insert a line where each model has been made; ``line``: (file, model's name) -> the statement.

    Args:
        of_torch: also for those whose forward is torch.nn's.
        late: just before the training, if it is in the block that makes the model.
    """
    if not context.sites.forwards:
        raise Refused("the run recorded no call of the model in training")
    edits: list[Edit] = []
    where: list[str] = []
    notes: list[str] = []
    models: dict[tuple[Statement, str], Made] = {}
    for forward in context.sites.forwards:
        if not forward.of_torch or of_torch:
            made = _made(context, forward)
            models.setdefault((made.statement, made.name), made)
    for made in models.values():
        file, written = made.file, line(made.file, made.name)
        beside = made.training if late and made.training is not None else made.statement
        edits += [
            Insert(file, beside, (written,), after=beside is made.statement),
            *(need_torch(file) if "torch" in written else ()),
        ]
        where.append(at(file, file.line(beside)))
        if late and made.training is None:
            notes.append(
                f"move `{written}` below any later line that initializes the weights of"
                f" {made.name} (`apply`, `torch.nn.init`)"
            )
    return change(edits, where, notes)


def _made(context: Context, forward: ForwardSite) -> Made:
    own = [site for site in forward.stack if site.own]
    for site in forward.stack[:1] if not own else ():
        context.tree.file(site)  # raises Refused, naming the owner
    trouble = (
        f"{forward.module}, called at {own[0].file}:{own[0].line}, has no name there"
        if own
        else "your code never calls it"
    )
    for site in [
        *(s for s in reversed(own) if s.binding and "." not in s.binding),
        *(s for s in own if "." in s.binding),
    ]:
        file = context.tree.file(site)
        made = _assigned(file, file.call(site), site.binding)
        if made is not None:
            return made
        trouble = f"no assignment to `{site.binding}` was found before {at(file, site.line)}"
    raise Refused(f"it is unclear where the model is made: {trouble}")


def _assigned(file: SourceFile, call: cst.Call, name: str) -> Made | None:
    """The statement, in a block around ``call``, with the last assignment to ``name`` before it."""
    function = file.function(call)
    if "." in name:
        owner = next((p for p in file.parents(function) if isinstance(p, cst.ClassDef)), None)
        statement = _set_by_method(file, owner, name) if owner is not None else None
        return Made(file, name, statement) if statement is not None else None
    around = dict(file.blocks(call))
    candidates = [
        node for node in _assignments(function, name) if file.start(node) < file.start(call)
    ]
    for block, statement in reversed(
        [pair for node in candidates for pair in file.blocks(node)[::-1] if pair[0] in around]
    ):
        if statement is not around[block]:
            return Made(file, name, statement, around[block])
    return None


def _set_by_method(file: SourceFile, owner: cst.ClassDef, name: str) -> Statement | None:
    """The statement, in the one method of ``owner`` that sets the attribute ``name``, that sets it
    last.

    Raises:
        Refused: several methods set it.
    """
    last = {file.function(node): node for node in _assignments(owner, name, nested=True)}
    if len(last) > 1:
        raise Refused(
            f"several methods of {owner.name.value} set `{name}`, so it is unclear which one"
            " makes the model"
        )
    return next((file.blocks(node)[-1][1] for node in last.values()), None)


def _assignments(scope: cst.CSTNode, name: str, nested: bool = False) -> Iterator[cst.CSTNode]:
    """Assignments to ``name`` in ``scope``, in order, except ``name = None``.

    Nested functions and classes are searched only if ``nested``.
    """
    for child in scope.children:
        if isinstance(child, (cst.Assign, cst.AnnAssign)) and any(
            _names(target, name) for target in _targets(child)
        ):
            if not m.matches(
                child, m.OneOf(m.Assign(value=m.Name("None")), m.AnnAssign(value=m.Name("None")))
            ):
                yield child
        if nested or not isinstance(child, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            yield from _assignments(child, name, nested)


def _targets(node: cst.Assign | cst.AnnAssign) -> list[cst.BaseExpression]:
    if isinstance(node, cst.AnnAssign):
        return [node.target] if node.value is not None else []
    return [target.target for target in node.targets]


def _names(target: cst.BaseExpression, name: str) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return any(_names(element.value, name) for element in target.elements)
    owner, _, attribute = name.rpartition(".")
    if owner:
        return m.matches(target, m.Attribute(value=m.Name(owner), attr=m.Name(attribute)))
    return m.matches(target, m.Name(name))
