"""Reads the code and the attributes of a dataset, without running or changing them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable
from itertools import islice
from types import CodeType, MethodType
from typing import Any

_ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL"})
SIMPLE = (int, float, str, bool)
MOST_SCANNED = 400  # most items inspected per dataset
_PARTS = 16  # of each list, tuple or dict


def fetching_functions(item: Any) -> list[Any]:
    """The functions that run when a sample is fetched from ``item``, or it is called."""
    item = item.func if isinstance(item, functools.partial) else item
    owner = item.__self__ if isinstance(item, MethodType) else item
    methods = {} if hasattr(owner, "__code__") else methods_of(type(owner))
    found: list[Any] = [item]
    if not hasattr(item, "__code__"):
        found = [methods.get(name) for name in _ENTRIES]
    found = [f for f in found if isinstance(getattr(f, "__code__", None), CodeType)]
    for function in found:  # grows
        names = names_in(function.__code__)
        scope = function.__globals__
        modules = [scope[name] for name in names if isinstance(scope.get(name), type(sys))]
        for name in names:
            called = [methods.get(name), scope.get(name)]
            called += [vars(module).get(name) for module in modules if not of_library(module)]
            found += [
                f
                for f in called
                if isinstance(getattr(f, "__code__", None), CodeType)
                and not of_library(f)
                and f not in found
                and len(found) < MOST_SCANNED
            ]
    return found


def methods_of(kind: type) -> dict[str, Any]:
    """What ``kind`` and its bases outside libraries define, by name."""
    methods: dict[str, Any] = {}
    for base in kind.__mro__:
        if not of_library(base):
            methods = {**vars(base), **methods}  # a class's own go before those of its bases
    return {name: undecorated(method) for name, method in methods.items()}


def names_in(code: CodeType) -> set[str]:
    """Every name used in ``code`` and in the functions defined inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


@functools.lru_cache(maxsize=4096)
def globals_read(code: CodeType) -> tuple[str, ...]:
    import dis

    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    names = [i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"]
    return tuple(dict.fromkeys((*names, *(n for c in inner for n in globals_read(c)))))


@functools.lru_cache(maxsize=4096)
def stored_in(code: CodeType) -> frozenset[str]:
    """The attributes and global names that ``code`` assigns."""
    import dis

    names = {i.argval for i in dis.get_instructions(code) if i.opname in _STORES}
    inner = (stored_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(names.union(*inner))


def enclosed_by(function: Any) -> dict[str, Any]:
    """What a closure encloses, by name."""
    closure = getattr(function, "__closure__", None) or ()
    cells = zip(function.__code__.co_freevars, closure, strict=False)
    return {name: cell.cell_contents for name, cell in cells if filled(cell)}


def filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def held_by(item: Any) -> Iterable[Any]:
    """The parts of a container, or the attributes of an object."""
    if isinstance(item, (list, tuple)):
        return item[:_PARTS]
    if isinstance(item, dict):
        return islice(item.values(), _PARTS)
    if isinstance(item, (type, type(sys))):
        return ()
    if isinstance(item, functools.partial):
        return (item.func, *item.args, *item.keywords.values())
    return tuple(getattr(item, "__dict__", {}).values())


def undecorated(value: Any) -> Any:
    """As :func:`plain_function`, without decorators."""
    value = plain_function(value)
    return inspect.getattr_static(value, "__wrapped__", value)


def plain_function(value: Any) -> Any:
    """The function that a method or property was made of. Nothing else is asked of the value: an
    attribute of a job's own object could raise anything.
    """
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, (MethodType, classmethod, staticmethod)) else value


def of_library(value: Any) -> bool:
    top = (getattr(value, "__module__", None) or "builtins").partition(".")[0]
    return top in ("torch", "numpy", "typing") or top in sys.stdlib_module_names - {"__main__"}
