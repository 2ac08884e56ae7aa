"""Convert frozen dataclasses to plain JSON data and back.

The three packages exchange and store data as JSON. This pair of functions does the conversion, so
that no class needs its own ``to_dict``. Standard library only: this module is imported inside the
user's training process.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Turn dataclasses, enums, tuples and mappings into JSON data (dict, list, str, number, None)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [encode(v) for v in items]
    return value


def decode(cls: type[T], data: Any) -> T:
    """Rebuild a dataclass ``cls`` from the output of :func:`encode`.

    Unknown keys are ignored, so that older code can read data written by newer code; a missing key
    gets the field's default.

    Raises:
        TypeError: a field without default is missing.
    """
    return typing.cast(T, _decode(cls, data))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(hint: Any, data: Any) -> Any:
    if data is None or hint is Any:
        return data
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, data)
    if origin is tuple:
        inner = args[0] if args else Any
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_decode(inner, v) for v in data)
        return tuple(_decode(a, v) for a, v in zip(args, data, strict=True))
    if origin in (list, Sequence):
        return [_decode(args[0], v) for v in data]
    if origin in (frozenset, set):
        return origin(_decode(args[0], v) for v in data)
    if origin in (dict, Mapping):
        # JSON keys are always strings: convert them back for Mapping[int, ...]
        key = int if args[0] is int else str
        return {key(k): _decode(args[1], v) for k, v in data.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = _hints(hint)
        return hint(
            **{
                f.name: _decode(hints[f.name], data[f.name])
                for f in dataclasses.fields(hint)
                if f.name in data
            }
        )
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(data)
    return data


def _decode_union(args: tuple[Any, ...], data: Any) -> Any:
    for arg in args:
        if isinstance(arg, type) and dataclasses.is_dataclass(arg) and isinstance(data, Mapping):
            return _decode(arg, data)
        if typing.get_origin(arg) in (tuple, frozenset) and isinstance(data, list):
            return _decode(arg, data)
    return data


def fits(hint: Any, value: Any, *, loose: bool = False) -> bool:
    """Whether ``value`` has the type that ``hint`` declares, at any depth. ``loose``: any kind of
    number, or None, is accepted as a number.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    inside = partial(fits, loose=loose)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(inside(arg, value) for arg in args)
    if origin is tuple and (len(args) != 2 or args[1] is not Ellipsis):
        return (
            isinstance(value, tuple) and len(args) == len(value) and all(map(inside, args, value))
        )
    if origin in (tuple, list, Sequence, frozenset, set):
        return isinstance(value, (tuple, list, frozenset, set)) and all(
            inside(args[0], item) for item in value
        )
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            inside(args[0], k) and inside(args[1], v) for k, v in value.items()
        )
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return isinstance(value, hint) and all(
            inside(declared, getattr(value, name)) for name, declared in _hints(hint).items()
        )
    if loose and hint in (int, float, bool):
        return value is None or isinstance(value, (int, float))
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint)
