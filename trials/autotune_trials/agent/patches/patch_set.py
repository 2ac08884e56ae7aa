"""Replaces single attributes of other libraries' objects, and restores them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_ABSENT = object()
UNTRACED = "it belongs to autotune"  # why; dynamo quotes it where it breaks its graph
after_fork: list[Callable[[], None]] = []  # called in forked children


def untraced(function: Callable[..., Any], why: str = "") -> Callable[..., Any]:
    """Keep dynamo from tracing into ``function``: sets the marks of ``torch.compiler.disable``
    without importing dynamo.

    ``why``: :data:`UNTRACED` where dynamo would not break its graph without us.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = why  # type: ignore[attr-defined]
    return function


class Patch:
    """``owner.attribute`` replaced by ``make(patch, original)``, a function that gets the original's
    name and signature.

    ``active`` is False once the patch is undone: a wrapper that other code has wrapped or kept
    checks it and behaves like the original.
    """

    def __init__(
        self, name: str, owner: Any, attribute: str, make: Callable[[Patch, Any], Any]
    ) -> None:
        self.name, self.owner, self.attribute, self._make = name, owner, attribute, make
        self.original = getattr(owner, attribute)
        self._own = vars(owner).get(attribute, _ABSENT)
        self._wrapper: Any = None
        self.active = False
        self._above: Any = None  # what others had patched over ours when ours was undone

    def apply(self) -> None:
        """Put the wrapper in place. Idempotent."""
        if self.active:
            return
        present = vars(self.owner).get(self.attribute, _ABSENT)
        if self._wrapper is not None and (
            present is self._wrapper or (self._above is not None and present is self._above)
        ):
            self.active = True  # still in place beneath the other patch
            return
        if self._wrapper is None or present is not self._own:
            # the first time, or others have patched while ours was undone: wrap what is there now
            self.original, self._own = getattr(self.owner, self.attribute), present
            # like the original to whoever looks: Lightning reads signatures
            self._wrapper = functools.update_wrapper(self._make(self, self.original), self.original)
            self._above = None
            # pickle finds it by this name, which in another process is the original
            if isinstance(self.owner, ModuleType):
                self._wrapper.__module__ = self.owner.__name__
                self._wrapper.__qualname__ = self.attribute
        self.active = True
        setattr(self.owner, self.attribute, self._wrapper)

    def restore(self) -> None:
        """Restore the original. Idempotent. If others have patched over ours, their patch stays."""
        if not self.active:
            return
        self.active = False
        present = vars(self.owner).get(self.attribute)
        if present is not self._wrapper:
            self._above = present
            return
        self._above = None
        if self._own is _ABSENT:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self._own)


def _after_fork() -> None:
    for function in tuple(after_fork):
        function()


os.register_at_fork(after_in_child=_after_fork)  # Python cannot unregister it


class PatchSet:
    """Patches and other reversible changes, undone together in reverse order."""

    def __init__(self) -> None:
        self._patches: dict[str, Patch] = {}
        self._undo: dict[str, Callable[[], None]] = {}

    def __getitem__(self, name: str) -> Patch:
        return self._patches[name]

    def __contains__(self, name: str) -> bool:
        return name in self._patches or name in self._undo

    def add(
        self, name: str, owner: Any, attribute: str, make: Callable[[Patch, Any], Any]
    ) -> Patch:
        """Apply a patch under ``name``; a second call with the same name changes nothing."""
        patch = self._patches.get(name)
        if patch is None:
            patch = self._patches[name] = Patch(name, owner, attribute, make)
        patch.apply()
        return patch

    def on_restore(self, undo: Callable[[], None], name: str = "") -> None:
        """Also call ``undo`` when everything is undone, or when ``name`` is."""
        self._undo[name or f"undo {id(undo)}"] = undo

    def at_fork(self, function: Callable[[], None]) -> None:
        """Call ``function`` in forked children."""
        after_fork.append(function)
        self.on_restore(lambda: after_fork.remove(function))

    def restore(self, *names: str) -> None:
        """Undo the named patches, if they exist."""
        for name in names:
            if name in self._patches:
                self._patches[name].restore()
            elif name in self._undo:
                self._undo.pop(name)()

    def restore_all(self) -> None:
        for patch in reversed(list(self._patches.values())):
            patch.restore()
        while self._undo:
            self._undo.popitem()[1]()

    @contextmanager
    def suspended(self, *names: str) -> Iterator[None]:
        """Take those of the named patches that are active out of the way inside the block.

        Dynamo must see torch's own functions while it traces, or it breaks its graph at ours.
        """
        active = [self._patches[n] for n in names if n in self._patches and self._patches[n].active]
        for patch in active:
            patch.restore()
        try:
            yield
        finally:
            for patch in active:
                patch.apply()
