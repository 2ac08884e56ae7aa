"""Writes the stack of every thread of a hung process on a signal, from C code that needs no working
interpreter.

The session's watchdog sends :data:`STACKS_SIGNAL` to the Python processes of a session that stopped
making progress, and reads ``stacks-<pid>.txt``.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import IO

from autotune_trials.paths import SessionPaths

# A real-time signal: jobs and schedulers use SIGUSR1 and SIGUSR2 for themselves (Slurm, submitit,
# Lightning).
STACKS_SIGNAL = int(signal.SIGRTMIN) + 9

_file: IO[str] | None = None  # kept open for the life of the process
_pid = 0  # the process that opened it: a forked child needs its own


def install_stack_dump(paths: SessionPaths) -> bool:
    """Write the stacks of all threads to ``paths.stacks(pid)`` whenever :data:`STACKS_SIGNAL`
    arrives.

    Does nothing if the job handles that signal itself. Returns whether it is installed.

    Raises:
        OSError: the session directory cannot be written to.
    """
    global _file, _pid
    if _pid == os.getpid():
        return True
    if signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
        return False
    _file = open(paths.stacks(os.getpid()), "w", encoding="utf-8")  # noqa: SIM115
    faulthandler.register(STACKS_SIGNAL, file=_file, all_threads=True)
    _pid = os.getpid()
    return True
