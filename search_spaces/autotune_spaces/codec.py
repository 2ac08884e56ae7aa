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
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")
PLAIN = frozenset({str, int, float, bool, type(None)})  # types that JSON has


def encode(value: Any) -> Any:
    """Turn dataclasses, enums, tuples and mappings into JSON data (dict, list, str, number, None)."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        # thousands of times, mostly
        return list(items) if PLAIN.issuperset(map(type, items)) else [encode(v) for v in items]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def decode(cls: type[T], data: Any) -> T:
    """Rebuild a dataclass ``cls`` from the output of :func:`encode`.

    Unknown keys are ignored, so that older code can read data written by newer code; a missing key
    gets the field's default.

    Raises:
        TypeError: a field without default is missing.
    """
    hint: Any = cls
    return typing.cast(T, _decoder(hint)(data))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@cache
def _decoder(hint: Any) -> Callable[[Any], Any]:
    """Rebuilds a value of type ``hint``; None stays None."""
    rebuild = _rebuilder(hint)
    if rebuild is _as_it_is:
        return rebuild
    return lambda data: None if data is None else rebuild(data)


def _as_it_is(data: Any) -> Any:
    return data


def _rebuilder(hint: Any) -> Callable[[Any], Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return partial(_decode_union, args)
    if origin is tuple and args and not (len(args) == 2 and args[1] is Ellipsis):
        inside = [_decoder(arg) for arg in args]
        return lambda data: tuple(d(v) for d, v in zip(inside, data, strict=True))
    if origin in (tuple, list, Sequence, frozenset, set):
        made = list if origin is Sequence else origin
        item = _decoder(args[0]) if args else _as_it_is
        return made if item is _as_it_is else lambda data: made(map(item, data))
    if origin in (dict, Mapping):
        # JSON keys are always strings: convert them back for Mapping[int, ...]
        key, item = int if args[0] is int else str, _decoder(args[1])
        return lambda data: {key(k): item(v) for k, v in data.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return partial(_decode_fields, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint
    return _as_it_is


def _decode_fields(cls: type, data: Mapping[str, Any]) -> Any:
    names = [f.name for f in dataclasses.fields(cls) if f.name in data]
    return cls(**{name: _decoder(_hints(cls)[name])(data[name]) for name in names})


def _decode_union(args: tuple[Any, ...], data: Any) -> Any:
    for arg in args:
        if isinstance(arg, type) and dataclasses.is_dataclass(arg) and isinstance(data, Mapping):
            return _decoder(arg)(data)
        if typing.get_origin(arg) in (tuple, frozenset) and isinstance(data, list):
            return _decoder(arg)(data)
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
