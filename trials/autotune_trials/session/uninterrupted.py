"""Work that an impatient Ctrl-C must not leave half done."""

from __future__ import annotations

import threading
from collections.abc import Callable


def uninterrupted(what: Callable[[], None]) -> None:
    """An impatient Ctrl-C must not leave the user's files half put back: it is heard when that is
    done.

    In a thread of its own: an exception raised for a signal reaches the main thread wherever that
    is, also while it blocks the signal itself, since any other thread of the process (the live
    table's, the tracking's) takes it then.
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
        # no daemon: it ends before the process does
        threading.Thread(target=work, name="autotune-put-back").start()
    # there can be no further thread, at the limit of processes, say; or the Ctrl-C itself
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
