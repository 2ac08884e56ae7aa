"""What a dataset's code and attributes show: whether it shards its data between workers, draws from
a generator of its own, reads from a file that it keeps open, or has changed.
"""

from __future__ import annotations

import functools
import inspect
import io
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

from autotune_trials.agent.bootstrap.log import write_exception

_ASKS = frozenset({"get_worker_info", "_worker_info"})
_SPLITS = frozenset({"split_by_worker", "sharding_filter"})
_ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
_SEEDING = frozenset({"seed", "manual_seed"})
_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL"})
_WORKER_AWARE = frozenset({"get_worker_info", "_worker_info", "initial_seed"})
_READS = frozenset("read readline readlines readinto seek load fromfile".split())
# classes that read from a place in a file, by module
_READERS = {"zipfile": "ZipFile", "tarfile": "TarFile", "sqlite3": "Connection", "h5py": "HLObject"}
_SIMPLE = (int, float, str, bool)
_SCANS = 400  # most items inspected per dataset
_PARTS = 16  # of each list, tuple or dict
_ITEMS = 100_000  # of a list, compared by identity
_HASHED_BYTES = 1 << 20  # of an array; a larger one is compared at _PLACES
_PLACES = 4096


def shards(dataset: Any, worker_init_fn: Any = None) -> bool:
    """Whether the code of ``dataset`` or ``worker_init_fn`` refers to ``get_worker_info`` and to the
    number of workers: then several workers share the data; otherwise each would deliver all of it,
    as where they only derive a seed.

    Searches the methods of its classes, the functions and classes they name, and the objects it
    wraps. The code is read, not run, so a dataset that shards in a way not seen here counts as not
    sharding, which is the safe side.
    """
    pending: list[Any] = [dataset, worker_init_fn]
    visited: set[int] = set()
    asks = counts = False
    for item in pending:  # grows
        item = _plain(item)
        if type(item) in _SIMPLE or id(item) in visited or len(visited) >= _SCANS:
            continue
        visited.add(id(item))
        if isinstance(item, FunctionType):
            names = _names(item.__code__)
            asks, counts = asks or bool(names & _ASKS), counts or "num_workers" in names
            if names & _SPLITS or (asks and counts):
                return True
            named = [item.__globals__.get(name) for name in names]
            modules = [vars(module) for module in named if isinstance(module, type(sys))]
            named += [module.get(name) for module in modules for name in names]
            pending += filter(_worth_a_look, [*named, *_enclosed(item).values()])
        elif isinstance(item, type):
            if "Sharding" in item.__name__:
                return True
            bases = [base for base in item.__mro__ if not _of_library(base)]
            pending += [value for base in bases for value in vars(base).values()]
        elif not isinstance(item, type(sys)):
            if "webdataset" in type(item).__module__ and "split" in type(item).__name__:
                return True
            pending += [type(item), *_held_by(item)]
    return False


def own_generator(loader: Any) -> str:
    """The random generator that fetching draws from, "Augmented.rng"; "" if there is none, or it is
    seeded anew meanwhile: by the worker, for an epoch, for a sample.

    Forked workers would each start from a copy of it, the same in all of them and in every epoch,
    where the job's own process draws on and on. Code is read, not run.
    """
    return _found_in(loader, _generator)


def fixed_seeds(loader: Any) -> str:
    """The name of a ``worker_init_fn`` that gives workers the same seeds in every epoch; "" if there
    is none. It has no effect in a job without workers.
    """
    function, names = _worker_init(loader)
    changes = names & (_WORKER_AWARE | {"get_state", "time", "time_ns", "urandom", "epoch"})
    return "" if changes or not names & _SEEDING else str(getattr(function, "__name__", ""))


def _worker_init(loader: Any) -> tuple[Any, set[str]]:
    """The job's ``worker_init_fn``, and every name used in it and in what it calls."""
    function = loader.worker_init_fn
    function = function.func if isinstance(function, functools.partial) else function
    called = [] if function is None else _fetching(function)
    return function, set[str]().union(
        *(_names(f.__code__) | set(f.__code__.co_varnames) for f in called)
    )


def _found_in(loader: Any, look: Callable[[Iterable[Any]], str]) -> str:
    """What ``look`` finds in the parts of the dataset and the collate function; "" if the job's
    ``worker_init_fn`` may see to it, because it reaches the dataset, or names what was found. A
    dataset that cannot be inspected counts as one with something to find.
    """
    try:
        function, names = _worker_init(loader)
        if function is not None and (not names or names & {"get_worker_info", "dataset"}):
            return ""
        found = look(_parts(loader.dataset, loader.collate_fn))
        return "" if found.rpartition(".")[2] in names else found
    except Exception as error:  # the job's own attributes may do anything
        write_exception("dataset")
        kind, raised = type(loader.dataset).__name__, type(error).__name__
        return f"something in {kind}, which cannot be inspected ({raised})"


def _parts(*roots: Any) -> Iterator[Any]:
    """``roots``, what they hold, what that holds and so on, each once."""
    pending, visited = list(roots), set[int]()
    for item in pending:  # grows
        if id(item) not in visited and len(visited) < _SCANS:
            visited.add(id(item))
            yield item
            pending += _held_by(item)


def _generator(parts: Iterable[Any]) -> str:
    kinds, found = _kinds(), ""
    for item in parts:
        owner = item.__self__ if isinstance(item, MethodType) else item
        held, drawn, seeded = _own_values(owner), dict[str, str](), set[str]()
        label = getattr(getattr(owner, "func", owner), "__name__", type(owner).__name__)
        for function in _fetching(item):
            names = _names(function.__code__) | set(function.__code__.co_freevars)
            if names & _WORKER_AWARE:
                return ""
            enclosed = _enclosed(function)
            generators = {
                name: f"{label}.{name}" if name in held else name
                for name in (names | held.keys() if isinstance(item, functools.partial) else names)
                if _draws(held.get(name, enclosed.get(name, function.__globals__.get(name))), kinds)
            }
            drawn |= generators
            if names & _SEEDING:
                seeded |= generators.keys()
            else:
                seeded |= _stored(function.__code__) & generators.keys()
        found = found or next((drawn[name] for name in drawn if name not in seeded), "")
    return found


def open_file(loader: Any) -> str:
    """The file that the dataset keeps open, "Records.file"; "" if there is none, or each process may
    open its own.

    Forked workers would share its position: one reads where another has just moved to.
    """
    return _found_in(loader, _open_file)


def _open_file(parts: Iterable[Any]) -> str:
    readers = tuple(
        getattr(sys.modules[module], name)
        for module, name in _READERS.items()
        if module in sys.modules
    )
    found = ""
    for item in parts:
        methods = _methods(type(item))
        methods.pop("__init__", None)
        names = set[str]().union(
            *(_names(m.__code__) for m in methods.values() if hasattr(m, "__code__"))
        )
        if names & _WORKER_AWARE or "getpid" in names:
            return ""
        codes = [m for m in methods.values() if isinstance(m, FunctionType)]
        read = {name: m.__globals__.get(name) for m in codes for name in _globals_read(m.__code__)}
        kept = {f"{type(item).__name__}.{n}": v for n, v in _own_values(item).items() if n in names}
        for name, value in {**kept, **read}.items():
            if any(_reads_from_place(v, readers, bool(names & _READS)) for v in _files(value)):
                found = found or name
    return found


def _files(value: Any) -> list[Any]:
    """``value``, or what a list or dict holds; of a named temporary file the file itself."""
    values = [*_held_by(value)] if isinstance(value, (list, tuple, dict)) else [value]
    return [v.file if type(v).__name__ == "_TemporaryFileWrapper" else v for v in values]


def _reads_from_place(value: Any, readers: tuple[type, ...], read: bool) -> bool:
    """Whether ``value`` is a file or reader that is open; ``read``: files are read."""
    if isinstance(value, readers):
        file = getattr(value, "fp", getattr(value, "fileobj", value))
        if file is value:
            try:  # h5py says whether it is closed
                return bool(getattr(value, "total_changes", None) is not None or value)
            except Exception:  # sqlite3 raises if it is
                return False
        value, read = file, True
    if not isinstance(value, io.IOBase) or value.closed or not read:
        return False
    try:
        return value.readable() and value.seekable() and value.fileno() >= 0
    except OSError:  # in memory
        return False


def _methods(kind: type) -> dict[str, Any]:
    """What ``kind`` and its bases outside libraries define, by name."""
    methods: dict[str, Any] = {}
    for base in kind.__mro__:
        if not _of_library(base):
            methods = {**vars(base), **methods}  # a class's own go before those of its bases
    return {name: _function(method) for name, method in methods.items()}


def _fetching(item: Any) -> list[Any]:
    """The functions that run when a sample is fetched from ``item``, or it is called."""
    item = item.func if isinstance(item, functools.partial) else item
    owner = item.__self__ if isinstance(item, MethodType) else item
    methods = {} if hasattr(owner, "__code__") else _methods(type(owner))
    found: list[Any] = [item]
    if not hasattr(item, "__code__"):
        found = [methods.get(name) for name in _ENTRIES]
    found = [f for f in found if isinstance(getattr(f, "__code__", None), CodeType)]
    for function in found:  # grows
        names = _names(function.__code__)
        scope = function.__globals__
        modules = [scope[name] for name in names if isinstance(scope.get(name), type(sys))]
        for name in names:
            called = [methods.get(name), scope.get(name)]
            called += [vars(module).get(name) for module in modules if not _of_library(module)]
            found += [
                f
                for f in called
                if isinstance(getattr(f, "__code__", None), CodeType)
                and not _of_library(f)
                and f not in found
                and len(found) < _SCANS
            ]
    return found


@functools.lru_cache(maxsize=4096)
def _stored(code: CodeType) -> frozenset[str]:
    """The attributes and global names that ``code`` assigns."""
    import dis

    names = {i.argval for i in dis.get_instructions(code) if i.opname in _STORES}
    inner = (_stored(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(names.union(*inner))


def _own_values(item: Any) -> dict[str, Any]:
    """The attributes of ``item``, or the arguments bound in a ``functools.partial``, by name."""
    if isinstance(item, functools.partial):
        return {**{str(n): value for n, value in enumerate(item.args)}, **item.keywords}
    return getattr(item, "__dict__", {})


def _enclosed(function: Any) -> dict[str, Any]:
    """What a closure encloses, by name."""
    closure = getattr(function, "__closure__", None) or ()
    cells = zip(function.__code__.co_freevars, closure, strict=False)
    return {name: cell.cell_contents for name, cell in cells if _filled(cell)}


def _draws(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether ``value`` is a random generator, a method of one, or a list or dict with one."""
    values = [value, *_held_by(value)] if isinstance(value, (list, tuple, dict)) else [value]
    values = [getattr(v, "__self__", v) for v in values]
    return any(isinstance(v, kinds) and not isinstance(v, random.SystemRandom) for v in values)


def _kinds() -> tuple[type, ...]:
    kinds: list[type] = [random.Random, sys.modules["torch"].Generator]
    if numpy := sys.modules.get("numpy"):
        kinds += [numpy.random.Generator, numpy.random.RandomState]
    return tuple(kinds)


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
            if type(item) in _SIMPLE:
                state.append(item)
                continue
            state.append((id(item), _contents(item), item))
            if id(item) not in visited and len(visited) < _SCANS:
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
    functions = _fetching(item)
    stored = set[str]().union(*(_stored(f.__code__) for f in functions))
    found: list[object] = [
        value
        for base in type(item).__mro__
        if not _of_library(base)
        for name, value in vars(base).items()
        if type(value) in _SIMPLE and name not in stored
    ]
    for function in functions:
        attributes = sorted(_names(function.__code__) - stored)
        for name in _globals_read(function.__code__):
            value = None if name in stored else function.__globals__.get(name)
            if type(value) in _SIMPLE:
                found.append(value)
            elif id(value) in seen:
                continue
            elif (contents := _contents(value)) is not None:
                seen.add(id(value))
                found.append((id(value), contents, value))
            elif not isinstance(value, (type, FunctionType)):
                held = getattr(value, "__dict__", {})
                found += [held[name] for name in attributes if type(held.get(name)) in _SIMPLE]
    return found


def _installed(value: Any) -> bool:
    """Whether ``value``, a class or function, is of an installed library."""
    top = (getattr(value, "__module__", None) or "builtins").partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return _of_library(value) or "site-packages" in file or "dist-packages" in file


@functools.lru_cache(maxsize=4096)
def _globals_read(code: CodeType) -> tuple[str, ...]:
    import dis

    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    names = [i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"]
    return tuple(dict.fromkeys((*names, *(n for c in inner for n in _globals_read(c)))))


def _names(code: CodeType) -> set[str]:
    """Every name used in ``code`` and in the functions defined inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _function(value: Any) -> Any:
    """As :func:`_plain`, without decorators."""
    value = _plain(value)
    return inspect.getattr_static(value, "__wrapped__", value)


def _plain(value: Any) -> Any:
    """The function that a method or property was made of. Nothing else is asked of the value: an
    attribute of a job's own object could raise anything.
    """
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, (MethodType, classmethod, staticmethod)) else value


def _worth_a_look(value: Any) -> bool:
    """A Python function or class outside torch and the standard library."""
    value = _plain(value)
    return isinstance(value, (type, FunctionType)) and not _of_library(value)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _of_library(value: Any) -> bool:
    top = (getattr(value, "__module__", None) or "builtins").partition(".")[0]
    return top in ("torch", "numpy", "typing") or top in sys.stdlib_module_names - {"__main__"}


def _held_by(item: Any) -> Iterable[Any]:
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


def _used_by(item: Any) -> Iterable[Any]:
    """As :func:`_held_by`; of a method only the attributes that it names (its object may be the
    whole trainer), of a closure only what is no object, or which object it is.
    """
    if isinstance(item, MethodType) and isinstance(item.__func__, FunctionType):
        held = getattr(item.__self__, "__dict__", {})
        return tuple(held[name] for name in _names(item.__func__.__code__) if name in held)
    if isinstance(item, FunctionType):
        enclosed = (cell.cell_contents for cell in item.__closure__ or () if _filled(cell))
        simple = (value if type(value) in _SIMPLE else id(value) for value in enclosed)
        return (*simple, *vars(item).values())
    return _held_by(item)
