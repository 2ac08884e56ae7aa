"""Validates a job file's data, and puts pydantic's errors into the words of job.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from autotune.job.mistakes import Mistake, nearest
from autotune.job.schema import JobFile, shown
from autotune.job.yaml_lines import KeyPath
from autotune.secrets import is_secret


def validate(data: dict[Any, Any]) -> tuple[JobFile | None, list[Mistake]]:
    """The job file in ``data``, or None and every mistake in it."""
    try:
        return JobFile.model_validate(data), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    mistakes = [_mistake(d) for d in details]
    meant = {m.nearest for m in mistakes if m.nearest}
    # "comand" is one mistake, not an unknown key and a missing one.
    return None, [
        m
        for m, d in zip(mistakes, details, strict=True)
        if d["type"] != "missing" or d["loc"][-1] not in meant
    ]


def without_invalid_keys(data: dict[Any, Any], mistakes: list[Mistake]) -> JobFile:
    """The job file without its wrong keys, so that mistakes in the others are found, too."""
    wrong = {m.place[0] for m in mistakes if m.place}
    rest = {key: value for key, value in data.items() if key not in wrong}
    if "command" not in rest:
        # Flags and placeholders of ``via`` knobs can only be judged with the command.
        rest.pop("search_space", None)
        rest["command"] = "python"
    try:
        return JobFile.model_validate(rest)
    except ValidationError:  # keys that only make sense together with the wrong ones
        return JobFile.model_validate({"command": "python"})


def _mistake(detail: Mapping[str, Any]) -> Mistake:
    """Pydantic's error in the words of job.yaml."""
    place: KeyPath = tuple(p for p in detail["loc"] if p != "[key]")
    kind, context, value = detail["type"], detail.get("ctx") or {}, detail["input"]
    key = ".".join(map(str, place))
    if kind == "autotune":
        found = context["found"]
        if place[:1] == ("env",) and found.startswith("the value"):
            found = (
                f"{key}: the value is neither text nor a number"
                if is_secret(str(place[-1]))
                else f"{key}: {found}"
            )
        return Mistake(place, found, context["expected"], context["nearest"], context["remedy"])
    if kind in ("extra_forbidden", "invalid_key"):
        keys = _keys(place[:-1])
        return Mistake(
            place,
            f"unknown key {shown(place[-1])}",
            f"one of {', '.join(keys)}",
            nearest(place[-1], keys),
        )
    if kind == "missing":
        return Mistake(
            place[:-1],
            f"'{key}' is missing",
            "the command that starts the job, such as: python train.py",
        )
    return Mistake(place, f"{key or 'a key'} is {shown(value)}", _expected(kind, context, key))


def _keys(place: KeyPath) -> list[str]:
    model: Any = JobFile
    for part in place:
        if get_origin(model) is dict:  # the user's own names, each with a model
            model = get_args(get_args(model)[1])[0]
        else:
            model = model.model_fields[part].annotation
        model = (
            next((a for a in get_args(model) if a is not type(None)), model)
            if get_origin(model) is UnionType
            else model
        )
    return list(model.model_fields)


def _expected(kind: str, context: Mapping[str, Any], key: str) -> str:
    bounds = {
        "greater_than": ("gt", "above"),
        "greater_than_equal": ("ge", "at least"),
        "less_than": ("lt", "below"),
        "less_than_equal": ("le", "at most"),
    }
    if kind in bounds:
        name, word = bounds[kind]
        return f"a number {word} {context[name]:g}"
    has_unit = key.endswith(("_s", "_gib", "minutes"))
    known = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number" + " (the unit is in the key's name)" * has_unit,
        "finite_number": "a finite number",
        "string_type": "text",
        "string_unicode": "text without invalid characters",
        "bool_type": "true or false",
        "model_type": "a mapping: key: value",
        "dict_type": "a mapping: key: value",
        "list_type": "a list",
        "tuple_type": "a list",
        "string_too_short": "text that is not empty",
        "string_too_long": "shorter text",
        "string_pattern_mismatch": (
            "letters, digits, dot, dash and underscore, starting with a letter or digit"
        ),
    }
    return known.get(kind, "another kind of value")
