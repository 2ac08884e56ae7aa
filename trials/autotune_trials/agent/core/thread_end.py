"""The end of threads that the job has started, heard in them before they can be joined."""

from __future__ import annotations

import threading
from collections.abc import Callable
from sys import is_finalizing


class _Last:
    """Goes with the values of its thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        if not is_finalizing():
            self._call()


class ThreadEnd:
    """``call``, which must not raise, is called at the end of each thread that :meth:`watch` was
    called in. Of the main thread it is not, nor of threads that are there when the interpreter ends.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call, self._held = call, threading.local()

    def watch(self) -> None:
        if not hasattr(self._held, "last"):
            main = threading.current_thread() is threading.main_thread()
            self._held.last = None if main else _Last(self._call)
