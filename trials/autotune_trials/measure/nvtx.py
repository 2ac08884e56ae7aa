"""Iterations, phases and modules as ranges in a profiler's timeline: NVTX (Nsight Systems) and
torch.profiler.

    iteration │■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■│■■■■
    phase     │ data │to-device│ forward        │ backward │optimizer│
    modules                     │ layer1 │ head │                           on request

Ranges of one thread form a stack: a phase that ends inside a module (a copy to the device made in
``forward``) closes the module's range and opens it again in the next phase.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

DOMAIN = "autotune"
ITERATION, OTHER = "iteration", "other"
WORDS = {"to_device": "to-device"}  # the phases' names as they are drawn; the others as they are
INJECTION = "NVTX_INJECTION64_PATH"  # the variable by which a tool has NVTX load it
MODULE = "module::"  # what module ranges begin with in the trace of torch.profiler


class Ranges:
    """A stack of ranges: iteration, phase, modules. Subclasses say how one is opened and closed."""

    def __init__(self) -> None:
        self._iteration = self._phase = False
        self._modules: list[str] = []

    def begin_iteration(self) -> None:
        """An iteration begins; one that is open ends."""
        self.end_iteration()
        self._push(ITERATION)
        self._iteration = True

    def end_iteration(self) -> None:
        """The iteration ends, and the phase with it."""
        if self._phase or self._modules:
            self._unwind()
        if self._iteration:
            self._pop()
            self._iteration = False

    def switch(self, phase: str) -> None:
        """The current phase ends, ``phase`` begins. What is "other" gets no range."""
        if self._modules:
            for _ in self._modules:
                self._pop()
        if self._phase:
            self._pop()
        self._phase = phase != OTHER
        if self._phase:
            self._push(phase)
        if self._modules:
            for name in self._modules:
                self._push(MODULE + name)

    def enter(self, module: str) -> None:
        """A module's forward begins."""
        self._modules.append(module)
        self._push(MODULE + module)

    def leave(self) -> None:
        """The module entered last is done."""
        if self._modules:
            self._modules.pop()
            self._pop()

    def close(self) -> None:
        """End everything that is open."""
        self.end_iteration()

    def _unwind(self) -> None:
        for _ in range(len(self._modules) + self._phase):
            self._pop()
        self._modules.clear()
        self._phase = False

    def _push(self, name: str) -> None:
        raise NotImplementedError

    def _pop(self) -> None:
        raise NotImplementedError


class NvtxRanges(Ranges):
    """NVTX ranges in the domain "autotune", modules under their plain names."""

    def __init__(self, domain: Any) -> None:
        super().__init__()
        self._domain = domain
        self._attributes: dict[str, Any] = {}
        self._pop = domain.pop_range  # type: ignore[method-assign]

    def _push(self, name: str) -> None:
        attributes = self._attributes.get(name)
        if attributes is None:
            message = (
                name.removeprefix(MODULE) if name.startswith(MODULE) else WORDS.get(name, name)
            )
            attributes = self._attributes[name] = self._domain.get_event_attributes(message=message)
        self._domain.push_range(attributes)


class TorchNvtxRanges(Ranges):
    """The same by torch's own NVTX, which knows no domains: ``autotune::<phase>``, modules under
    their plain names.

    Raises:
        RuntimeError: this torch was built without CUDA.
    """

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self._nvtx = torch.cuda.nvtx
        self._nvtx.mark(DOMAIN)

    def _push(self, name: str) -> None:
        self._nvtx.range_push(
            name.removeprefix(MODULE)
            if name.startswith(MODULE)
            else f"{DOMAIN}::{WORDS.get(name, name)}"
        )

    def _pop(self) -> None:
        self._nvtx.range_pop()


class ProfilerRanges(Ranges):
    """The same in the trace that torch.profiler writes, as ``autotune::<phase>`` and
    ``module::<name>``.

    Every phase of protocol.PHASES gets a range, "other" too; iterations are ``ProfilerStep#n``
    there, drawn by torch.
    """

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self._record_function = torch.profiler.record_function
        self._stack: list[Any] = []

    def begin_iteration(self) -> None:
        """Torch draws iterations itself; what comes before the first phase is "other"."""
        self.switch(OTHER)

    def end_iteration(self) -> None:
        self._unwind()

    def switch(self, phase: str) -> None:
        modules = list(self._modules)
        self._unwind()
        self._push(phase)
        self._phase = True
        for name in modules:
            self.enter(name)

    def _push(self, name: str) -> None:
        opened = self._record_function(name if name.startswith(MODULE) else f"{DOMAIN}::{name}")
        opened.__enter__()
        self._stack.append(opened)

    def _pop(self) -> None:
        self._stack.pop().__exit__(None, None, None)


class Several(Ranges):
    """Ranges drawn in several places at once."""

    def __init__(self, *ranges: Ranges | None) -> None:
        for name in ("begin_iteration", "end_iteration", "switch", "enter", "leave", "close"):
            self._each(name, [getattr(r, name) for r in ranges if r is not None])

    def _each(self, name: str, methods: Sequence[Callable[..., None]]) -> None:
        def each(*args: str) -> None:
            for method in methods:
                method(*args)

        setattr(self, name, each)


class ModuleRanges:
    """Draws the forward of every module down to ``depth`` levels below ``root``, by hooks that
    :meth:`remove` takes back.

    Only calls on the thread that made this are drawn: what autograd recomputes on a thread of its
    own has a stack of its own.
    """

    def __init__(self, ranges: Any, root: Any, depth: int) -> None:
        self._ranges, self._thread = ranges, threading.get_ident()
        self._handles: list[Any] = []
        self.names: list[str] = []
        for name, module in modules_within(root, depth):
            self.names.append(name)
            self._handles.append(
                module.register_forward_pre_hook(lambda _m, _args, name=name: self._enter(name))
            )
            # an exception, too
            self._handles.append(
                module.register_forward_hook(lambda *_: self._leave(), always_call=True)
            )

    def _enter(self, name: str) -> None:
        if threading.get_ident() == self._thread:
            self._ranges.enter(name)

    def _leave(self) -> None:
        if threading.get_ident() == self._thread:
            self._ranges.leave()

    def remove(self) -> None:
        """Take all hooks back. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def modules_within(root: Any, depth: int, prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted name, module) of the children of ``root`` down to ``depth`` levels, each module once."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()

    def walk(module: Any, left: int, path: str) -> None:
        for name, child in module.named_children():
            if id(child) not in seen and left > 0:
                seen.add(id(child))
                found.append((f"{path}{name}", child))
                walk(child, left - 1, f"{path}{name}.")

    walk(root, depth, prefix)
    return found


def nvtx_ranges(torch: Any) -> Ranges | None:
    """NVTX ranges, if somebody is there to see them: a tool must be there from the process's start.

    By the ``nvtx`` package, which hands out its ``DummyDomain`` when no tool is attached; where the
    job's environment does not have it, by torch. Ranges that nobody can see are not worth their 8
    µs an iteration (benchmarks/overhead.md).
    """
    try:
        import nvtx

        domain = nvtx.get_domain(DOMAIN)
    except Exception:  # whatever is wrong with it, the job must not suffer
        return _torch_ranges(torch) if os.environ.get(INJECTION) else None
    return None if type(domain).__name__ == "DummyDomain" else NvtxRanges(domain)


def _torch_ranges(torch: Any) -> Ranges | None:
    try:
        return TorchNvtxRanges(torch)
    except Exception:  # a torch without CUDA has none; the job must not suffer
        return None
