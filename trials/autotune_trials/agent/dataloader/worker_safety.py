"""Whether workers would harm the job: its dataset does not shard its data between them, draws from a
generator of its own or reads from a file that it keeps open, or its script would run again.
"""

from __future__ import annotations

import ast
import functools
import io
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

from autotune_trials.agent.bootstrap.log import write_exception
from autotune_trials.agent.dataloader.batch_seeds import start_method
from autotune_trials.agent.dataloader.dataset_code import (
    MOST_SCANNED,
    SIMPLE,
    enclosed_by,
    fetching_functions,
    globals_read,
    held_by,
    methods_of,
    names_in,
    of_library,
    plain_function,
    stored_in,
)

_ASKS = frozenset({"get_worker_info", "_worker_info"})
_SPLITS = frozenset({"split_by_worker", "sharding_filter"})
_SEEDING = frozenset({"seed", "manual_seed"})
_WORKER_AWARE = frozenset({"get_worker_info", "_worker_info", "initial_seed"})
_READS = frozenset("read readline readlines readinto seek load fromfile".split())
# classes that read from a place in a file, by module
_READERS = {"zipfile": "ZipFile", "tarfile": "TarFile", "sqlite3": "Connection", "h5py": "HLObject"}


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
        item = plain_function(item)
        if type(item) in SIMPLE or id(item) in visited or len(visited) >= MOST_SCANNED:
            continue
        visited.add(id(item))
        if isinstance(item, FunctionType):
            names = names_in(item.__code__)
            asks, counts = asks or bool(names & _ASKS), counts or "num_workers" in names
            if names & _SPLITS or (asks and counts):
                return True
            named = [item.__globals__.get(name) for name in names]
            modules = [vars(module) for module in named if isinstance(module, type(sys))]
            named += [module.get(name) for module in modules for name in names]
            pending += filter(_worth_a_look, [*named, *enclosed_by(item).values()])
        elif isinstance(item, type):
            if "Sharding" in item.__name__:
                return True
            bases = [base for base in item.__mro__ if not of_library(base)]
            pending += [value for base in bases for value in vars(base).values()]
        elif not isinstance(item, type(sys)):
            if "webdataset" in type(item).__module__ and "split" in type(item).__name__:
                return True
            pending += [type(item), *held_by(item)]
    return False


def _worth_a_look(value: Any) -> bool:
    """A Python function or class outside torch and the standard library."""
    value = plain_function(value)
    return isinstance(value, (type, FunctionType)) and not of_library(value)


def starts_anew(context: Any) -> str:
    """Why worker processes would run the job's script from the top; "" if they would not.

    Forked workers continue from where they are. Others first import the script, as ``__mp_main__``,
    and run everything outside ``if __name__ == "__main__":``. A script without that guard fails, or
    trains once more in every worker.
    """
    method = start_method(context)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if method == "fork" or not script or _guarded(script):
        return ""
    return (
        f'the multiprocessing start method is "{method}", and {os.path.basename(script)} has no'
        ' `if __name__ == "__main__":` guard'
    )


@functools.cache
def _guarded(script: str) -> bool:
    """Whether ``script`` tests ``__name__`` at top level; also True if it cannot be read."""
    try:
        with open(script, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return True
    tests = (node.test for node in tree.body if isinstance(node, ast.If))
    return any(
        isinstance(part, ast.Name) and part.id == "__name__"
        for test in tests
        for part in ast.walk(test)
    )


def own_generator(loader: Any) -> str:
    """The random generator that fetching draws from, "Augmented.rng"; "" if there is none, or it is
    seeded anew meanwhile: by the worker, for an epoch, for a sample.

    Forked workers would each start from a copy of it, the same in all of them and in every epoch,
    where the job's own process draws on and on. Code is read, not run.
    """
    return _found_in(loader, _generator)


def _generator(parts: Iterable[Any]) -> str:
    kinds, found = _kinds(), ""
    for item in parts:
        owner = item.__self__ if isinstance(item, MethodType) else item
        held, drawn, seeded = _own_values(owner), dict[str, str](), set[str]()
        label = getattr(getattr(owner, "func", owner), "__name__", type(owner).__name__)
        for function in fetching_functions(item):
            names = names_in(function.__code__) | set(function.__code__.co_freevars)
            if names & _WORKER_AWARE:
                return ""
            enclosed = enclosed_by(function)
            generators = {
                name: f"{label}.{name}" if name in held else name
                for name in (names | held.keys() if isinstance(item, functools.partial) else names)
                if _draws(held.get(name, enclosed.get(name, function.__globals__.get(name))), kinds)
            }
            drawn |= generators
            if names & _SEEDING:
                seeded |= generators.keys()
            else:
                seeded |= stored_in(function.__code__) & generators.keys()
        found = found or next((drawn[name] for name in drawn if name not in seeded), "")
    return found


def _own_values(item: Any) -> dict[str, Any]:
    """The attributes of ``item``, or the arguments bound in a ``functools.partial``, by name."""
    if isinstance(item, functools.partial):
        return {**{str(n): value for n, value in enumerate(item.args)}, **item.keywords}
    return getattr(item, "__dict__", {})


def _draws(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether ``value`` is a random generator, a method of one, or a list or dict with one."""
    values = [value, *held_by(value)] if isinstance(value, (list, tuple, dict)) else [value]
    values = [getattr(v, "__self__", v) for v in values]
    return any(isinstance(v, kinds) and not isinstance(v, random.SystemRandom) for v in values)


def _kinds() -> tuple[type, ...]:
    kinds: list[type] = [random.Random, sys.modules["torch"].Generator]
    if numpy := sys.modules.get("numpy"):
        kinds += [numpy.random.Generator, numpy.random.RandomState]
    return tuple(kinds)


def fixed_seeds(loader: Any) -> str:
    """The name of a ``worker_init_fn`` that gives workers the same seeds in every epoch; "" if there
    is none. It has no effect in a job without workers.
    """
    function, names = _worker_init(loader)
    changes = names & (_WORKER_AWARE | {"get_state", "time", "time_ns", "urandom", "epoch"})
    return "" if changes or not names & _SEEDING else str(getattr(function, "__name__", ""))


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
        methods = methods_of(type(item))
        methods.pop("__init__", None)
        names = set[str]().union(
            *(names_in(m.__code__) for m in methods.values() if hasattr(m, "__code__"))
        )
        if names & _WORKER_AWARE or "getpid" in names:
            return ""
        codes = [m for m in methods.values() if isinstance(m, FunctionType)]
        read = {name: m.__globals__.get(name) for m in codes for name in globals_read(m.__code__)}
        kept = {f"{type(item).__name__}.{n}": v for n, v in _own_values(item).items() if n in names}
        for name, value in {**kept, **read}.items():
            if any(_reads_from_place(v, readers, bool(names & _READS)) for v in _files(value)):
                found = found or name
    return found


def _files(value: Any) -> list[Any]:
    """``value``, or what a list or dict holds; of a named temporary file the file itself."""
    values = [*held_by(value)] if isinstance(value, (list, tuple, dict)) else [value]
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


def _worker_init(loader: Any) -> tuple[Any, set[str]]:
    """The job's ``worker_init_fn``, and every name used in it and in what it calls."""
    function = loader.worker_init_fn
    function = function.func if isinstance(function, functools.partial) else function
    called = [] if function is None else fetching_functions(function)
    return function, set[str]().union(
        *(names_in(f.__code__) | set(f.__code__.co_varnames) for f in called)
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
        if id(item) not in visited and len(visited) < MOST_SCANNED:
            visited.add(id(item))
            yield item
            pending += held_by(item)
