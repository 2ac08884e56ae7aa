"""Draws iterations, phases and modules as ranges in a profiler's timeline: NVTX (Nsight Systems)
and torch.profiler.

    iteration │■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■│■■■■
    phase     │ data │to-device│ forward        │ backward │optimizer│
    modules                     │ layer1 │ head │                           on request

The ranges of a thread form a stack: a phase that ends inside a module (e.g. a copy to the device in
``forward``) closes the module's range, which is reopened in the next phase.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

DOMAIN = "autotune"
ITERATION, OTHER = "iteration", "other"
WORDS = {"to_device": "to-device"}  # phase -> name in the timeline, if it differs
INJECTION = "NVTX_INJECTION64_PATH"  # set by a tool, so that NVTX loads the tool's library
MODULE = "module::"  # prefix of module ranges in torch.profiler's trace


class Ranges:
    """A stack of ranges: iteration, phase, modules. Subclasses define how to open and close one."""

    def __init__(self) -> None:
        self._iteration = self._phase = False
        self._modules: list[str] = []

    def begin_iteration(self) -> None:
        """Begin an iteration, ending the open one."""
        self.end_iteration()
        self._push(ITERATION)
        self._iteration = True

    def end_iteration(self) -> None:
        """End the iteration and its phase."""
        self._unwind()
        if self._iteration:
            self._pop()
            self._iteration = False

    def switch(self, phase: str) -> None:
        """End the current phase and begin ``phase``. Phase "other" gets no range."""
        for _ in self._modules:
            self._pop()
        if self._phase:
            self._pop()
        self._phase = phase != OTHER
        if self._phase:
            self._push(phase)
        for name in self._modules:
            self._push(MODULE + name)

    def enter(self, module: str) -> None:
        self._modules.append(module)
        self._push(MODULE + module)

    def leave(self) -> None:
        if self._modules:
            self._modules.pop()
            self._pop()

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
    """NVTX ranges in the domain "autotune"; modules have their plain names."""

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
    """The same through torch's own NVTX, which has no domains: ``autotune::<phase>``; modules have
    their plain names.

    Raises:
        RuntimeError: torch was built without CUDA.
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
    """The same in torch.profiler's trace, as ``autotune::<phase>`` and ``module::<name>``.

    Every phase of protocol.PHASES gets a range, even "other"; torch itself draws iterations, as
    ``ProfilerStep#n``.
    """

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self._record_function = torch.profiler.record_function
        self._stack: list[Any] = []

    def begin_iteration(self) -> None:
        """Torch draws iterations itself; the time before the first phase is "other"."""
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
    def __init__(self, *ranges: Ranges | None) -> None:
        for name in ("begin_iteration", "end_iteration", "switch", "enter", "leave"):
            self._each(name, [getattr(r, name) for r in ranges if r is not None])

    def _each(self, name: str, methods: Sequence[Callable[..., None]]) -> None:
        def each(*args: str) -> None:
            for method in methods:
                method(*args)

        setattr(self, name, each)


class ModuleRanges:
    """Draws the forward of every module down to ``depth`` levels below ``root``, with hooks that
    :meth:`remove` removes.

    Only calls on the creating thread are drawn: autograd may recompute a forward on its own thread,
    which has its own stack of ranges.
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
            # always_call: also after an exception
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
        """Remove all hooks. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def modules_within(root: Any, depth: int) -> list[tuple[str, Any]]:
    """(dotted name, module) for the descendants of ``root`` down to ``depth`` levels, each once."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()

    def walk(module: Any, left: int, path: str) -> None:
        for name, child in module.named_children():
            if id(child) not in seen and left > 0:
                seen.add(id(child))
                found.append((f"{path}{name}", child))
                walk(child, left - 1, f"{path}{name}.")

    walk(root, depth, "")
    return found


def nvtx_ranges(torch: Any) -> Ranges | None:
    """NVTX ranges, or None if no tool is attached (which must happen at the process's start).

    Uses the ``nvtx`` package, which returns a ``DummyDomain`` without a tool; if it is not
    installed in the job's environment, torch. Ranges nobody sees are not worth their 8 µs per
    iteration (benchmarks/overhead.md).
    """
    try:
        import nvtx

        domain = nvtx.get_domain(DOMAIN)
    except Exception:  # nvtx is missing or broken; the job must not suffer
        return _torch_ranges(torch) if os.environ.get(INJECTION) else None
    return None if type(domain).__name__ == "DummyDomain" else NvtxRanges(domain)


def _torch_ranges(torch: Any) -> Ranges | None:
    try:
        return TorchNvtxRanges(torch)
    except Exception:  # torch without CUDA has no NVTX; the job must not suffer
        return None
