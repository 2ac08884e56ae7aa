"""Sets or removes arguments of a call, in the formatting of its other arguments.

DataLoader(ds, batch_size=32)          num_workers=2       DataLoader(ds, batch_size=32, num_workers=2)
DataLoader(ds, 32, True)               batch_size=64       DataLoader(ds, 64, True)
DataLoader(ds, **options)              num_workers=2       DataLoader(ds, **{**options, "num_workers": 2})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from autotune.export.patch.expressions import around, atom, shown
from autotune.export.patch.source import Refused


@dataclass(frozen=True)
class Absent:
    """The argument must be absent; ``instead``: an equivalent value where it cannot be removed, or
    where its absence may mean another value (a partial, a class of the job's own).
    """

    instead: str


# where torch takes them by position: DataLoader, optimizers
PLACES = {"batch_size": 1, "num_workers": 5, "pin_memory": 7, "lr": 1}
New = str | cst.BaseExpression | Absent  # an expression, or no argument at all


def find(call: cst.Call, parameters: Sequence[str], name: str) -> cst.Arg | None:
    """The argument that ``call`` passes for the parameter ``name``, by name or by position.

    Raises:
        Refused: it may be among ``*arguments``.
    """
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    positional = list(
        parameters[: parameters.index("*")]
        if "*" in parameters
        else [p for p in parameters if p != "**"]
    )
    given = [arg for arg in call.args if arg.keyword is None and not arg.star]
    # a class of the job's own that passes its arguments on
    if "*" in parameters and name not in parameters and len(given) > PLACES.get(name, len(given)):
        raise Refused(f"{name} may be among the arguments that are passed by position")
    if name not in positional:
        return None
    place = positional.index(name)
    for index, arg in enumerate(a for a in call.args if a.keyword is None and a.star != "**"):
        if arg.star == "*":
            raise Refused(f"{name} may be among *{shown(arg.value)}")
        if index == place:
            return arg
    return None


def with_arguments(
    call: cst.Call, parameters: Sequence[str], values: Mapping[str, New], kind: str
) -> cst.Call:
    """Set ``values`` in ``call``.

    Args:
        parameters: of the callable; () if unknown.
        kind: the class that is built.

    Raises:
        Refused: the callable takes no such argument, or it is unclear whether the call passes it.
    """
    hidden: dict[str, New] = {}
    expands = any(arg.star == "**" for arg in call.args)
    plain = kind.startswith("torch.") and _callee(call) == kind.rpartition(".")[2]
    for name, value in values.items():
        present = find(call, parameters, name)
        if present is not None:
            call = (
                _without(call, present)
                if isinstance(value, Absent) and present.keyword is not None and plain
                else _replaced(call, present, value)
            )
        elif isinstance(value, Absent):
            if expands and (not parameters or name in parameters):
                hidden[name] = value
            elif name in parameters and not plain:
                call = _appended(call, name, value)
        elif parameters and name not in parameters and "**" not in parameters:
            raise Refused(f"{kind} takes no argument {name}")
        elif expands:
            hidden[name] = value
        else:
            call = _appended(call, name, value)
    return _into_expansion(call, hidden) if hidden else call


def _callee(call: cst.Call) -> str:
    """The last name of what is called, "" if it has none."""
    func = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return func.value if isinstance(func, cst.Name) else ""


def _replaced(call: cst.Call, arg: cst.Arg, value: New) -> cst.Call:
    new = arg.with_changes(value=_expression(value))
    return call.with_changes(args=[new if a is arg else a for a in call.args])


def _expression(value: New) -> cst.BaseExpression:
    text = value.instead if isinstance(value, Absent) else value
    return cst.parse_expression(text) if isinstance(text, str) else text


def _without(call: cst.Call, arg: cst.Arg) -> cst.Call:
    """Remove ``arg``; if it was last, the new last argument takes over its comma and whitespace."""
    args = [a for a in call.args if a is not arg]
    if arg is call.args[-1] and args:
        args[-1] = args[-1].with_changes(
            comma=arg.comma, whitespace_after_arg=arg.whitespace_after_arg
        )
    return call.with_changes(args=args)


def _appended(call: cst.Call, name: str, value: New) -> cst.Call:
    new = cst.Arg(
        keyword=cst.Name(name),
        value=_expression(value),
        equal=cst.AssignEqual(
            whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace("")
        ),
    )
    if not call.args:
        return call.with_changes(args=[new])
    *others, last = call.args
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        # it needs brackets of its own beside another argument
        last = last.with_changes(
            value=last.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        )
    between = (
        others[-1].comma.whitespace_after
        if others and isinstance(others[-1].comma, cst.Comma)
        else call.whitespace_before_args
    )
    if not isinstance(between, cst.ParenthesizedWhitespace):
        between = cst.SimpleWhitespace(" ")
    trailing = isinstance(last.comma, cst.Comma)
    end = (
        last.comma.whitespace_after
        if isinstance(last.comma, cst.Comma)
        else last.whitespace_after_arg
    )
    last = last.with_changes(
        comma=cst.Comma(whitespace_after=_as(between, end)),
        whitespace_after_arg=cst.SimpleWhitespace(""),
    )
    new = (
        new.with_changes(comma=cst.Comma(whitespace_after=_bare(end)))
        if trailing
        else new.with_changes(whitespace_after_arg=_bare(end))
    )
    return call.with_changes(args=[*others, last, new])


def _as(
    between: cst.BaseParenthesizableWhitespace, end: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """The separator ``between``, with the comment that followed the previously last argument."""
    bare = _bare(between)
    if isinstance(end, cst.ParenthesizedWhitespace) and (end.first_line.comment or end.empty_lines):
        inner = (
            bare
            if isinstance(bare, cst.ParenthesizedWhitespace)
            else end.with_changes(last_line=cst.SimpleWhitespace("    "))
        )
        return inner.with_changes(first_line=end.first_line, empty_lines=end.empty_lines)
    return bare


def _bare(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    line = space.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
    return space.with_changes(first_line=line, empty_lines=())


def _extended(first: cst.Dict, second: cst.Dict) -> cst.Dict:
    """Concatenate the elements of both; of two with the same key the later one wins."""
    *others, last = first.elements
    joined = last.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return first.with_changes(elements=[*others, joined, *second.elements])


def _into_expansion(call: cst.Call, values: Mapping[str, New]) -> cst.Call:
    """Merge all ``**expansions`` into one, in which ``values`` take precedence."""
    stars = [a for a in call.args if a.star == "**"]
    pairs = ", ".join(f'"{name}": {shown(_expression(value))}' for name, value in values.items())
    if len(stars) == 1 and isinstance(stars[0].value, cst.Dict) and stars[0].value.elements:
        merged = stars[0].with_changes(
            value=_extended(
                stars[0].value, cst.ensure_type(cst.parse_expression(f"{{{pairs}}}"), cst.Dict)
            )
        )
    else:
        expansions = ", ".join(f"**NODE{i}" for i in range(len(stars)))
        merged = stars[0].with_changes(
            value=around(f"{{{expansions}, {pairs}}}", *(atom(a.value) for a in stars))
        )
    args = [merged if a is stars[0] else a for a in call.args if a is stars[0] or a not in stars]
    if call.args[-1] in stars[1:]:
        args[-1] = args[-1].with_changes(
            comma=call.args[-1].comma, whitespace_after_arg=call.args[-1].whitespace_after_arg
        )
    return call.with_changes(args=args)
