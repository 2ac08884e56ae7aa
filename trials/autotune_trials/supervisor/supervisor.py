"""The process between the tuner and the user's command; it ensures that nothing outlives a session.

    tuner ──socket──▶ supervisor ──fork──▶ command ──▶ workers, ranks, daemons …
      │                 │ subreaper: orphaned processes become children of the supervisor
      └── dies ───▶ EOF on the socket: end everything, exit

To end a session it sends TERM to every process, waits for a grace period, sends KILL, and repeats
until none is left. It finds processes in two independent ways: as descendants of the supervisor (a
daemon that forked twice and left its process group is still one, since the supervisor is the
subreaper) and by the mark in their environment (for those that escaped a supervisor that was
itself killed).

The supervisor also copies the command's output to the log files, keeping the first and the last
part of each, so that a job that prints a gigabyte does not fill the disk.

It runs isolated (:mod:`.isolated_python`) and imports only the standard library and those of our
modules that need nothing else.

    tuner → supervisor   one line of JSON, the order (see :class:`Supervisor`); later ``stop``
    supervisor → tuner   lines of JSON: ``started`` (pid) or ``failed`` (text); ``exited`` (status);
                         ``ended`` (left)
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from autotune_trials.supervisor.output_log import CappedLog, Masked
from autotune_trials.supervisor.process_tags import SWEEP_S, marked
from autotune_trials.supervisor.procfs import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    alive,
    descendants,
    find_prctl,
    send,
)

SHM = "/dev/shm"
# processes that remove shared memory once their clients are gone
CLEANERS = (b"resource_tracker", b"torch_shm_manager")
CLEANERS_S = 0.5


class Supervisor:
    """Runs one command.

    Args:
        order: argv, cwd, env, mark, stdout, stderr (paths), markers (folder), remove (folder),
            tuner_pid, grace_s, secrets (texts to mask in the logs), put_back (a command, to which
            surviving pids are appended; [] if no files are put back).
    """

    def __init__(self, control: socket.socket, order: Mapping[str, Any]) -> None:
        self._control, self._order = control, order
        self._selector = selectors.DefaultSelector()
        self._child = 0
        self._stop = False
        self._answer = True  # False once the tuner no longer listens
        self._seen: set[int] = set()
        self._before = _shared_memory()

    def run(self) -> None:
        """Start the command, wait until it is to stop, end all processes."""
        self._listen_to_signals()
        try:
            self._start()
        except OSError as error:
            named = error.filename or self._order["argv"][0]
            self._tell(event="failed", text=f"{error.strerror}: {named}")
            return
        self._tell(event="started", pid=self._child)
        try:
            while not self._stop:
                self._handle_events(None)
        finally:  # a bug in the supervisor must not leave the command running
            self._end()

    # -- start

    def _listen_to_signals(self) -> None:
        """Install handlers; never SIG_IGN, which the command would inherit."""
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        wake_read, wake_write = socket.socketpair()
        for end in (wake_read, wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        self._wake = (wake_read, wake_write)

        def stop(*_: object) -> None:
            self._stop = True

        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, stop)
        self._selector.register(wake_read, selectors.EVENT_READ, self._on_signal)

    def _start(self) -> None:
        order, prctl = self._order, find_prctl()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        me = os.getpid()

        def in_child() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:  # the supervisor died before prctl took effect
                os._exit(1)
            try:  # make the OOM killer prefer the job over supervisor and tuner
                with open("/proc/self/oom_score_adj", "r+") as file:
                    score = max(500, int(file.read()))
                    file.seek(0)
                    file.write(str(score))
            except (OSError, ValueError):
                pass

        pipes = {name: os.pipe() for name in ("stdout", "stderr")}
        try:
            child = subprocess.Popen(
                order["argv"],
                cwd=order["cwd"],
                env=order["env"],
                stdin=subprocess.DEVNULL,
                stdout=pipes["stdout"][1],
                stderr=pipes["stderr"][1],
                start_new_session=True,
                preexec_fn=in_child,
            )
        finally:
            for _, write in pipes.values():
                os.close(write)
        child.returncode = 0  # reaped by _reap(), not by subprocess
        self._child = child.pid
        self._logs: dict[int, Masked] = {}
        for name, (read, _) in pipes.items():
            os.set_blocking(read, False)
            _enlarge(read)
            self._logs[read] = Masked(CappedLog(order[name]), order["secrets"])
            self._selector.register(read, selectors.EVENT_READ, self._on_output)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)
        self._watch_tuner()

    def _watch_tuner(self) -> None:
        """Watch the tuner process itself too: a forked child of it may keep the socket open."""
        pid = self._order["tuner_pid"]
        try:
            self._tuner = os.pidfd_open(pid)
        except ProcessLookupError:
            self._stop, self._answer = True, False
            return
        # an old kernel, or a Python built for one (of conda, of uv): rely on the socket alone
        except (OSError, AttributeError):
            return
        self._selector.register(self._tuner, selectors.EVENT_READ, self._on_tuner_gone)

    # -- events

    def _handle_events(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data(key.fd)

    def _on_signal(self, fd: int) -> None:
        try:
            self._wake[0].recv(4096)
        except BlockingIOError:
            pass
        self._reap()

    def _on_tuner_gone(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._stop, self._answer = True, False

    def _on_output(self, fd: int) -> None:
        self._copy(fd, 1)

    def _copy(self, fd: int, chunks: int) -> None:
        """Copy available output of the command from a pipe to its log; drop the pipe at EOF."""
        # an event handled just before may have closed it
        for _ in range(chunks if fd in self._logs else 0):
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._selector.unregister(fd)
                os.close(fd)
                self._logs.pop(fd).close()
                return
            self._logs[fd].write(data)

    def _on_control(self, fd: int) -> None:
        try:
            data = self._control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(fd)
            self._answer = False
        self._stop = True  # "stop", or the tuner is gone

    def _reap(self) -> None:
        """Collect ended children: the command and adopted orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._seen.add(pid)
            if pid == self._child:
                for fd in list(self._logs):
                    self._copy(fd, 256)  # its last output (a pipe holds far less than 16 MiB)
                    if fd in self._logs:  # a child of the command still has the pipe open
                        self._logs[fd].flush()
                self._tell(event="exited", status=os.waitstatus_to_exitcode(status))

    def _tell(self, **message: object) -> None:
        if self._answer:
            try:
                self._control.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self._answer = False

    # -- the end

    def _end(self) -> None:
        tree = self._tree()
        if tree:
            send(tree, signal.SIGTERM)
            send(tree, signal.SIGCONT)  # a stopped process handles TERM only once continued
            if self._wait_until_gone(self._order["grace_s"]):
                self._kill()
        # a command that ended at this very moment has left the tree, but its status is not yet sent
        self._reap()
        for fd in list(self._logs):
            self._copy(fd, 256)
        self._remove_shared_memory()
        shutil.rmtree(self._order["remove"], ignore_errors=True)
        self._listen_to_tuner()
        self._put_back()
        self._tell(event="ended", left=sorted(self._tree()))

    def _listen_to_tuner(self) -> None:
        """Notice a tuner that was interrupted while waiting for us and has closed the socket."""
        try:
            while self._control.recv(1 << 16, socket.MSG_DONTWAIT):
                pass
            self._answer = False
        except BlockingIOError:
            pass
        except OSError:
            self._answer = False

    def _put_back(self) -> None:
        """Restore the files that the job changed if the tuner, which normally does it, is gone."""
        command = self._order["put_back"]
        if command and not self._answer:
            left = map(str, sorted(self._tree()))
            subprocess.run([*command, *left], stdin=subprocess.DEVNULL, check=False)

    def _tree(self) -> set[int]:
        found = descendants(os.getpid()) | marked(self._order["mark"])
        self._seen |= found
        return found

    def _wait_until_gone(self, seconds: float, spare: bool = False) -> set[int]:
        """Wait for the tree to end by itself, still copying output; return the pids that are left.

        ``spare``: wait for the :data:`CLEANERS` only.
        """
        deadline = time.monotonic() + seconds
        pause = 0.005
        while True:
            self._handle_events(pause)
            self._reap()
            left = descendants(os.getpid())
            if spare:
                left = {pid for pid in left if _is_cleaner(pid)}
            if not left or time.monotonic() > deadline:
                return left | (marked(self._order["mark"]) if not spare else set())
            pause = min(0.05, pause * 1.5)

    def _kill(self) -> None:
        """KILL until no process is left; those that clean up shared memory are killed last."""
        deadline = time.monotonic() + SWEEP_S
        while (tree := self._tree()) and time.monotonic() < deadline:
            cleaners = {pid for pid in tree if _is_cleaner(pid)}
            others = tree - cleaners
            send(others, signal.SIGKILL)
            if not others:
                self._wait_until_gone(CLEANERS_S, spare=True)
                send(self._tree(), signal.SIGKILL)
            self._wait_until_gone(0.02)

    def _remove_shared_memory(self) -> None:
        """Delete segments (``torch_<pid>_…``) of this session's dead processes: a killed worker
        cannot do it itself.
        """
        pids = self._seen | set(_marker_pids(self._order["markers"]))
        for name, pid in _shared_memory() - self._before:  # older segments belong to a recycled pid
            if pid in pids and not alive(pid):
                try:
                    os.unlink(os.path.join(SHM, name))
                except OSError:
                    pass


def _shared_memory() -> set[tuple[str, int]]:
    """Names of torch's segments, each with the pid that created it."""
    try:
        names = os.listdir(SHM)
    except OSError:
        return set()
    return {
        (name, int(found.group(1))) for name in names if (found := re.match(r"torch_(\d+)_", name))
    }


def _marker_pids(folder: str) -> Iterator[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        pid = name.rpartition("-")[2]
        if pid.isdigit():
            yield int(pid)


def _is_cleaner(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return False
    return any(word in line for word in CLEANERS)


def _enlarge(pipe: int) -> None:
    """Enlarge a pipe to 1 MiB, the usual system limit, so that a chatty job rarely waits for us."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
    except (OSError, AttributeError):
        pass


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    received = b""
    while b"\n" not in received:
        data = control.recv(1 << 20)
        if not data:  # the tuner is already gone
            return
        received += data
    order, _, stop = received.partition(b"\n")
    if not stop:  # else the tuner was interrupted meanwhile: nothing is to be started
        Supervisor(control, json.loads(order)).run()
