"""Calls a function once the job has imported a module, before other code sees the module.

Libraries bind each other's functions by name (``from x import f``), so a function must be replaced
as soon as its own module has been executed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from autotune_trials.agent.bootstrap import log

_wanted: dict[str, Callable[[Any], None]] = {}


def call(name: str, function: Callable[[Any], None]) -> None:
    """Call ``function(module)`` after the module ``name`` has been executed; at once if it already
    has been.
    """
    if name in sys.modules:
        _run(function, sys.modules[name])
        return
    _wanted[name] = function
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def forget(name: str) -> None:
    """Nothing is to be called any more after ``name`` has been executed."""
    _wanted.pop(name, None)


class _Finder:
    """Asks the other finders, and hooks the loader they return."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        function = _wanted.get(name)
        if function is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    _listen(spec.loader, name, function)
                return spec
        return None


def _listen(loader: Any, name: str, function: Callable[[Any], None]) -> None:
    """Shadow ``exec_module`` on this one loader object; a module that was only looked up, and not
    executed, is looked up and hooked again later.
    """
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: Any) -> None:
        execute(module)
        loader.__dict__.pop("exec_module", None)
        if _wanted.pop(name, None) is not None:
            _run(function, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        log.write(f"{name} is loaded by an import loader that cannot be hooked")


def _run(function: Callable[[Any], None], module: Any) -> None:
    try:
        function(module)
    except Exception:  # the job's own import statement is on the stack: it would fail there
        log.write_exception(f"after the import of {module.__name__}")
