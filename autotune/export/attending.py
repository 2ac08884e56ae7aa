"""A job as a child of the launcher, for what has to be put away when the job has ended.

    terminal, scheduler ──signals──▶ launcher ──▶ job          stdin, stdout, stderr are the job's own
                                        └ waits, removes the files, ends as the job ended (exit code or signal)

The job dies with the launcher, should that be killed; what lies in /dev/shm then is removed by the
next tuner or launcher here.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.errors import InputError
from autotune.export.launching import Launch, arrive
from autotune_spaces import staging
from autotune_trials.session.knob_files import Preparation, silent
from autotune_trials.session.launch_environment import socket_folders
from autotune_trials.supervisor import process_tags, procfs

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
# a signal that the kernel sent, not a process: of a terminal's keys, which the whole foreground
# group gets
SI_KERNEL = 0x80


def attend(launch: Callable[[Preparation], Launch], quiet: bool = False) -> int:
    """Prepare the job, run it, put everything away. Returns its exit status, negative for a signal,
    as :mod:`subprocess` does.

    ``quiet``: nothing is said of what takes long before the job starts.

    Raises:
        InputError: it cannot be prepared or started.
    """
    # a launcher that was killed could not put its files away
    process_tags.sweep_stale(socket_folders())
    with Preparation(say=silent if quiet else _say) as preparation:
        with _ended_by_term():
            job = launch(preparation)
        program, env = arrive(job)
        own = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
        status = _wait(_start(job, program, env, own))
        if preparation.used:
            _bring_back(preparation.folder())
    return status


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """While data are copied TERM and HUP end it as Ctrl-C does: by an exception, so that the copy
    goes with it.
    """

    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    # nohup
    heard = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_as(status: int) -> None:
    """End this process as the job ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the job has left its core, if it was to
        number = signal.Signals(-status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    raise SystemExit(status)


def _start(
    job: Launch, program: str, env: dict[str, str], mask: set[int | signal.Signals]
) -> subprocess.Popen[bytes]:
    prctl = procfs.find_prctl()

    def in_child() -> None:
        if prctl:
            prctl(procfs.PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in PASSED_ON:
            # ours: one that waits since the fork ends the job, as it would a moment later
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    sys.stdout.flush()
    sys.stderr.flush()
    try:
        return subprocess.Popen(
            list(job.argv), executable=program, env=env, close_fds=False, preexec_fn=in_child
        )
    except OSError as error:
        raise InputError(
            f"'{job.argv[0]}' cannot be started: {error.strerror}",
            where="command",
            expected="a program",
        ) from None


def _wait(job: subprocess.Popen[bytes]) -> int:
    while True:
        status = job.poll()
        if status is not None:
            return status
        told = signal.sigwaitinfo({*PASSED_ON, signal.SIGCHLD})
        if told.si_signo != signal.SIGCHLD and told.si_code != SI_KERNEL:
            job.send_signal(told.si_signo)


def _say(text: str) -> None:
    print(f"autotune: {text}", file=sys.stderr, flush=True)


def _bring_back(folder: str) -> None:
    try:
        brought = staging.bring_back(folder)
    except OSError as error:
        _say(f"warning: what the job wrote into its data cannot be brought back: {error}")
        return
    if brought:
        more = f" and {len(brought) - 1} more" if len(brought) > 1 else ""
        _say(f"the job wrote into its data: {brought[0]}{more}")
