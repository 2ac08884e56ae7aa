"""Runs work that Ctrl-C must not interrupt halfway."""

from __future__ import annotations

import threading
from collections.abc import Callable


def uninterrupted(what: Callable[[], None]) -> None:
    """Run ``what`` to its end before a Ctrl-C is raised, so that the user's files are not left half
    restored.

    Runs in its own thread. Blocking the signal in the main thread would not help: another thread of
    the process (live table, tracking) would receive it, and the exception is still raised in the
    main thread.
    """
    begun, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        begun.set()
        try:
            what()
        except BaseException as error:
            failures.append(error)  # raised again below
        finally:
            done.set()

    try:
        # not a daemon: the process waits for it
        threading.Thread(target=work, name="autotune-put-back").start()
    # no thread can be started (e.g. at the process limit), or Ctrl-C arrived here
    except BaseException as error:
        if not isinstance(error, RuntimeError):
            failures.insert(0, error)
        if not begun.wait(1.0):
            work()
    while not done.is_set():
        try:
            done.wait()
        except BaseException as interrupt:
            failures.insert(0, interrupt)
    if failures:
        raise failures[0]
