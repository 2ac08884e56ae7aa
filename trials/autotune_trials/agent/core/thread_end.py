"""Detects the end of the job's threads, in the threads themselves and before they can be joined."""

from __future__ import annotations

import threading
from collections.abc import Callable
from sys import is_finalizing


class _Last:
    """Calls ``call`` when it is deleted along with its thread's local values."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        if not is_finalizing():
            self._call()


class ThreadEnd:
    """Calls ``call``, which must not raise, at the end of each thread that called :meth:`register`,
    except for the main thread and threads still running when the interpreter exits.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call, self._held = call, threading.local()

    def register(self) -> None:
        if not hasattr(self._held, "last"):
            main = threading.current_thread() is threading.main_thread()
            self._held.last = None if main else _Last(self._call)
