"""result.json: a Result on disk. Its fields are documented in docs/result.md and stay as they are.

JSON knows no NaN and no infinity, so both are written as ``null``; a point of a loss curve that is
``null`` was not finite.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from autotune.errors import InputError
from autotune.results import RESULT_SCHEMA_VERSION, Result
from autotune_spaces.codec import decode, encode
from autotune_trials.paths import publish

FILE_NAME = "result.json"
ANEW = (
    "move it away and rerun `autotune run` on the same job: it writes the file anew from its"
    " journal"
)
# What a reader looks for first stands first in the file.
FIRST = ("schema_version", "name", "verdict", "reason", "speedup", "loss", "knobs", "baseline")


def to_json(result: Result) -> dict[str, Any]:
    """The content of result.json, as JSON data without NaN or infinity."""
    data = finite(encode(result))
    return {key: data.pop(key) for key in FIRST} | data


def finite(data: Any) -> Any:
    """JSON data with every NaN and infinity as None."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [finite(value) for value in data]
    return data


def write_result(result: Result, path: Path) -> None:
    """Write ``result`` to ``path`` (write, flush, rename: no reader sees half of it).

    ``environment`` and operator rows may hold anything; what JSON cannot say is written as its
    text.

    Raises:
        OSError: the directory cannot be written.
    """
    # ASCII escapes keep unpaired surrogates (undecodable file names) out of the UTF-8 file
    publish(path, json.dumps(to_json(result), indent=2, default=str, allow_nan=False) + "\n")


def load_result(path: Path) -> Result:
    """Read a result.json.

    Raises:
        InputError: the file is not there, cannot be read, is not JSON, not a result, or of a newer
            schema.
    """
    where = str(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            "there is no such file", where=where, expected="the result.json of a finished run"
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=where) from None
    except UnicodeDecodeError:
        raise InputError(
            "is not text", where=where, expected="the result.json of a finished run"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is no JSONDecodeError
        raise InputError(
            f"is not JSON: {error}",
            where=where,
            expected="the result.json of a finished run",
            remedy=ANEW,
        ) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise InputError(
            "is not a result: it has no schema_version",
            where=where,
            expected="the result.json of a finished run",
        )
    if version > RESULT_SCHEMA_VERSION:
        raise InputError(
            f"has schema_version {version}, this autotune reads up to {RESULT_SCHEMA_VERSION}",
            where=where,
            remedy="read it with the autotune that wrote it, or a newer one",
        )
    try:
        result = decode(Result, _of_version_2(data) if version < 2 else data)
        if not _fits(Result, result):
            raise TypeError("a field holds something else than what belongs there")
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise InputError(
            f"is not a whole result: {error}",
            where=where,
            expected="the fields of docs/result.md",
            remedy=ANEW,
        ) from None
    return result


def _of_version_2(data: dict[str, Any]) -> dict[str, Any]:
    """A result of version 1, which counted the pairs of a confirmation as blocks."""
    confirmation = data.get("confirmation")
    if not isinstance(confirmation, dict):
        return {**data, "schema_version": RESULT_SCHEMA_VERSION}
    new = {"blocks": "pairs", "required_blocks": "required_pairs"}
    renamed = {new.get(name, name): value for name, value in confirmation.items()}
    return {**data, "schema_version": RESULT_SCHEMA_VERSION, "confirmation": renamed}


@contextlib.contextmanager
def shown_from(*paths: Path) -> Iterator[None]:
    """While results of ``paths`` are shown: what their fields say one by one may still make no
    sense together.

    Raises:
        InputError: it makes none.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        where = " and ".join(map(str, paths))
        raise InputError(
            f"its figures make no sense together ({type(error).__name__}: {error})",
            where=where,
            expected="a result.json as it was written",
            remedy=f"{ANEW}; if it was never edited, this is a defect of autotune",
        ) from error


def _fits(hint: Any, value: Any) -> bool:
    """Whether ``value`` is of the kind that ``hint`` declares, at any depth; one kind of number
    passes for another, None for a number.
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(arg, value) for arg in args)
    if origin is tuple and (len(args) != 2 or args[1] is not Ellipsis):
        return isinstance(value, tuple) and len(args) == len(value) and all(map(_fits, args, value))
    if origin in (tuple, list, Sequence, frozenset, set):
        return isinstance(value, (tuple, list, frozenset, set)) and all(
            _fits(args[0], item) for item in value
        )
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(args[0], k) and _fits(args[1], v) for k, v in value.items()
        )
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return isinstance(value, hint) and all(  # type: ignore[arg-type]
            _fits(hints[f.name], getattr(value, f.name)) for f in fields(hint)
        )
    if hint in (int, float, bool):
        return value is None or isinstance(value, (int, float))
    return isinstance(value, hint)
