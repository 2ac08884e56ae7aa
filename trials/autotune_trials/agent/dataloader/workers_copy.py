"""What workers copy when they start, to tell whether the job has changed its dataset since."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

from autotune_trials.agent.dataloader.dataset_code import (
    MOST_SCANNED,
    SIMPLE,
    fetching_functions,
    filled,
    globals_read,
    held_by,
    names_in,
    of_library,
    stored_in,
)

_ITEMS = 100_000  # of a list, compared by identity
_HASHED_BYTES = 1 << 20  # of an array; a larger one is compared at _PLACES
_PLACES = 4096


def workers_copy(loader: Any) -> object:
    """What a worker of ``loader`` copies when it starts, for comparison: numbers, strings and flags
    by value, everything else by identity and length; equal to nothing if unreadable.

    Globals and class attributes that fetching reads count, too. Keeps the objects: otherwise another
    could get the id of one that is gone. A change in place of a small part of a large array, or
    deep inside a container, is not seen.
    """
    pending = [loader.dataset, loader.collate_fn, loader.worker_init_fn]
    state, visited, shared = list[object](), set[int](), set[int]()
    try:
        for item in pending:  # grows
            if type(item) in SIMPLE:
                state.append(item)
                continue
            state.append((id(item), _contents(item), item))
            if id(item) not in visited and len(visited) < MOST_SCANNED:
                visited.add(id(item))
                pending += _used_by(item)
                state += _shared_by(item, shared)
        return state
    except Exception:
        return object()  # the job's own attributes may do anything, or change while being read


def _contents(item: Any) -> object:
    """Something that changes if ``item`` is changed in place, as far as that is cheap to tell."""
    if isinstance(item, list):
        return len(item), hash(tuple(map(id, item[:_ITEMS])))
    if isinstance(item, dict):
        return len(item), hash(tuple(map(id, islice(item.values(), _ITEMS))))
    if isinstance(item, set):
        return len(item)
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    if isinstance(item, torch.Tensor):
        return None if item.is_inference() else item._version
    if numpy is not None and type(item) is numpy.ndarray:
        whole = item.nbytes <= _HASHED_BYTES
        return hash((item if whole else item.flat[:: max(1, item.size // _PLACES)]).tobytes())
    return None


def _used_by(item: Any) -> Iterable[Any]:
    """As :func:`held_by`; of a method only the attributes that it names (its object may be the
    whole trainer), of a closure only what is no object, or which object it is.
    """
    if isinstance(item, MethodType) and isinstance(item.__func__, FunctionType):
        held = getattr(item.__self__, "__dict__", {})
        return tuple(held[name] for name in names_in(item.__func__.__code__) if name in held)
    if isinstance(item, FunctionType):
        enclosed = (cell.cell_contents for cell in item.__closure__ or () if filled(cell))
        simple = (value if type(value) in SIMPLE else id(value) for value in enclosed)
        return (*simple, *vars(item).values())
    return held_by(item)


def _shared_by(item: Any, seen: set[int]) -> list[object]:
    """What fetching from ``item`` reads from its classes, from global names and from the attributes
    of global objects, for comparison; without what it assigns itself (a counter).

    ``seen``: ids of the classes, functions and containers looked at before; grows.
    """
    item = item.__func__ if isinstance(item, MethodType) else item
    code = item if isinstance(item, FunctionType) else type(item)
    if id(code) in seen or _installed(code):
        return []
    seen.add(id(code))
    functions = fetching_functions(item)
    stored = set[str]().union(*(stored_in(f.__code__) for f in functions))
    found: list[object] = [
        value
        for base in type(item).__mro__
        if not of_library(base)
        for name, value in vars(base).items()
        if type(value) in SIMPLE and name not in stored
    ]
    for function in functions:
        attributes = sorted(names_in(function.__code__) - stored)
        for name in globals_read(function.__code__):
            value = None if name in stored else function.__globals__.get(name)
            if type(value) in SIMPLE:
                found.append(value)
            elif id(value) in seen:
                continue
            elif (contents := _contents(value)) is not None:
                seen.add(id(value))
                found.append((id(value), contents, value))
            elif not isinstance(value, (type, FunctionType)):
                held = getattr(value, "__dict__", {})
                found += [held[name] for name in attributes if type(held.get(name)) in SIMPLE]
    return found


def _installed(value: Any) -> bool:
    """Whether ``value``, a class or function, is of an installed library."""
    top = (getattr(value, "__module__", None) or "builtins").partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return of_library(value) or "site-packages" in file or "dist-packages" in file
