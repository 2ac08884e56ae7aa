"""The process between the tuner and the user's command, there so that nothing outlives a session.

    tuner ──socket──▶ warden ──fork──▶ command ──▶ workers, ranks, daemons …
      │                 │ subreaper: whatever loses its parent becomes a child of the warden
      └── dies ───▶ end of file on the socket: end everything, exit

Ending is TERM to every process, a grace period, KILL, and a sweep by two independent traces: descent from the warden
(a daemon that forked twice and left its process group still descends from it, since it is the subreaper) and the
mark in the environment (for what got away from a warden that was killed itself).

The warden also copies the command's output to the log files, keeping the first and the last part of each, so that a
job that prints a gigabyte does not fill the disk.

It is started by its file name with ``python -I -S``: standard library only, and nothing of ours imported.

    tuner → warden   one line of JSON, the order (see :class:`Order`); later ``{"do": "stop", "grace_s": 2.0}``
    warden → tuner   ``started`` (pid) or ``failed`` (text); ``exited`` (status); ``ended`` (killed, left)
"""

from __future__ import annotations

import ctypes
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
from collections.abc import Iterator
from typing import Any

MARK_VARIABLE = "AUTOTUNE_MARK"  # as in protocol.py, which this file cannot import
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
SHM = "/dev/shm"
HEAD_BYTES = TAIL_BYTES = 4 << 20
CLEANERS = (b"resource_tracker", b"torch_shm_manager")  # they remove shared memory once their clients are gone
CLEANERS_S = 0.5
SWEEP_S = 5.0


# ---------------------------------------------------------------------------------------------------- /proc


def stat_of(pid: int) -> tuple[str, int, int, float] | None:
    """(state, parent, start time in ticks since boot, CPU seconds used) of a process, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before ")" may hold anything
    except OSError:
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return fields[0].decode(), int(fields[1]), int(fields[19]), cpu_s


def all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no /proc on this system
        return []


def mark_of(pid: int) -> str:
    """The session mark a process was started with, "" if it has none or may not be asked."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = re.search(rb"(?:^|\0)" + MARK_VARIABLE.encode() + rb"=([^\0]*)", file.read())
    except OSError:
        return ""
    return found.group(1).decode(errors="replace") if found else ""


def alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


def descendants(root: int) -> set[int]:
    """Living processes that descend from ``root``, without it."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for pid in all_pids():
        stat = stat_of(pid)
        if stat is not None:
            children.setdefault(stat[1], []).append(pid)
            states[pid] = stat[0]
    found: set[int] = set()
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in found:
                found.add(pid)
                queue.append(pid)
    return {pid for pid in found if states[pid] not in "ZX"}


def marked(mark: str) -> set[int]:
    """Living processes carrying ``mark``, this one aside."""
    return {pid for pid in all_pids() if pid != os.getpid() and mark_of(pid) == mark and alive(pid)}


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # gone, or not ours
            pass


# ---------------------------------------------------------------------------------------------------- marks


def new_mark() -> str:
    """A session mark: which tuner it belongs to (pid namespace, pid, start time), and a random part."""
    stat = stat_of(os.getpid())
    return f"{_namespace()}-{os.getpid()}-{stat[2] if stat else 0}-{os.urandom(4).hex()}"


def _namespace() -> str:
    try:
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid")) or "0"
    except OSError:
        return "0"


def is_stale(mark: str) -> bool:
    """True if the tuner that made ``mark`` is gone. Marks of another pid namespace (a container) are never judged."""
    found = re.fullmatch(r"(\d+)-(\d+)-(\d+)-[0-9a-f]+", mark)
    if found is None or found.group(1) != _namespace():
        return False
    stat = stat_of(int(found.group(2)))
    return stat is None or stat[0] in "ZX" or str(stat[2]) != found.group(3)


def sweep(mark: str, patience_s: float = SWEEP_S) -> int:
    """Kill every process that carries ``mark``; returns how many there were."""
    killed: set[int] = set()
    deadline = time.monotonic() + patience_s
    while left := marked(mark):
        killed |= left
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return len(killed)


def sweep_stale(folders: tuple[str, ...] = ()) -> int:
    """End what earlier tuners left behind after tuner and warden were both killed.

    Args:
        folders: directories in which session sockets are made; those of dead tuners (``autotune-<mark>-…``) are removed.
    """
    stale = {mark for mark in map(mark_of, all_pids()) if mark and is_stale(mark)}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            found = re.match(r"autotune-(\d+-\d+-\d+-[0-9a-f]+)-", name)
            if found and is_stale(found.group(1)):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    return sum(sweep(mark) for mark in stale)


# ---------------------------------------------------------------------------------------------------- logs


class CappedLog:
    """A log file that keeps its first ``head`` and at least its last ``tail`` bytes, at any moment, on disk.

        │ head │ … N bytes left out … │ last part, between tail and 2 × tail │
    """

    def __init__(self, path: str, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115
        self._head, self._tail = head, tail
        self._size = self._total = 0  # of the file; of all that was ever written

    def write(self, data: bytes) -> None:
        self._total += len(data)
        try:
            self._file.write(data)
            self._size += len(data)
            if self._size > self._head + 2 * self._tail:
                self._compact()
        except OSError:  # disk full: the job must go on, and its output is the least of the losses
            pass

    def _compact(self) -> None:
        self._file.seek(self._size - self._tail)
        last = self._file.read(self._tail)
        dropped = self._total - self._head - len(last)
        middle = f"\n[autotune: {dropped} bytes left out here]\n".encode() + last
        self._file.seek(self._head)
        self._file.write(middle)
        self._file.truncate()
        self._size = self._head + len(middle)

    def close(self) -> None:
        self._file.close()


class Masked:
    """A log without the secrets of the job in it, also where one is cut in two by the end of a read.

    What may be the beginning of a secret is held back until more has come.
    """

    def __init__(self, log: CappedLog, secrets: list[str]) -> None:
        self._log, self._held = log, b""
        self._secrets = sorted((os.fsencode(secret) for secret in secrets), key=len, reverse=True)

    def write(self, data: bytes) -> None:
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, b"***")
        whole = len(data) - max((_begun(data, secret) for secret in self._secrets), default=0)
        self._held = data[whole:]
        self._log.write(data[:whole])

    def flush(self) -> None:
        """Nothing more is expected soon."""
        self._log.write(self._held)
        self._held = b""

    def close(self) -> None:
        self.flush()
        self._log.close()


def _begun(data: bytes, secret: bytes) -> int:
    """How many of the last bytes of ``data`` are the first ones of ``secret``."""
    at = max(0, len(data) - len(secret) + 1)
    while (at := data.find(secret[:1], at)) >= 0:
        if secret.startswith(data[at:]):
            return len(data) - at
        at += 1
    return 0


# ---------------------------------------------------------------------------------------------------- the warden


class Order(dict[str, Any]):
    """What the tuner asks for: argv, cwd, env, mark, stdout, stderr (paths), crumbs (folder), remove (folder),
    tuner_pid, grace_s, and optionally put_back (arguments for Python), secrets (texts kept out of the logs), and head_bytes and
    tail_bytes of the logs."""


class Warden:
    def __init__(self, control: socket.socket, order: Order, rest: bytes = b"") -> None:
        self._control, self._order, self._rest = control, order, rest
        self._selector = selectors.DefaultSelector()
        self._child = 0
        self._status: int | None = None
        self._stop = False
        self._grace_s = float(order["grace_s"])
        self._answer = True  # False once nobody listens
        self._seen: set[int] = set()
        self._before = _shared_memory()

    def run(self) -> int:
        """Start the command, wait until it is to end, end all of it. Returns the command's exit status (128 + signal)."""
        self._listen_to_signals()
        try:
            self._start()
        except OSError as error:
            self._tell(event="failed", errno=error.errno, text=f"{error.strerror}: {error.filename or self._order['argv'][0]}")
            return 127
        self._tell(event="started", pid=self._child)
        try:
            while not self._stop:
                self._turn(None)
        finally:  # our own defect must not leave the command running
            self._end()
        status = self._status if self._status is not None else -signal.SIGKILL
        return status if status >= 0 else 128 - status

    # -- start

    def _listen_to_signals(self) -> None:
        """Handlers, never SIG_IGN, which the command would inherit."""
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
        if prctl:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        me = os.getpid()

        def in_child() -> None:
            if prctl:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:  # the warden died before the request was in
                os._exit(1)
            try:  # should memory run out, the kernel takes the job rather than its watchers
                with open("/proc/self/oom_score_adj", "r+") as file:
                    score = max(500, int(file.read()))
                    file.seek(0)
                    file.write(str(score))
            except (OSError, ValueError):
                pass

        pipes = {name: os.pipe() for name in ("stdout", "stderr")}
        try:
            child = subprocess.Popen(
                order["argv"], cwd=order["cwd"], env=order["env"], stdin=subprocess.DEVNULL,
                stdout=pipes["stdout"][1], stderr=pipes["stderr"][1],
                start_new_session=True, preexec_fn=in_child,
            )  # fmt: skip
        finally:
            for _, write in pipes.values():
                os.close(write)
        child.returncode = 0  # reaped here, not by subprocess
        self._child = child.pid
        self._logs: dict[int, Masked] = {}
        for name, (read, _) in pipes.items():
            os.set_blocking(read, False)
            _enlarge(read)
            sizes = order.get("head_bytes", HEAD_BYTES), order.get("tail_bytes", TAIL_BYTES)
            self._logs[read] = Masked(CappedLog(order[name], *sizes), order.get("secrets", []))
            self._selector.register(read, selectors.EVENT_READ, self._on_output)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)
        self._watch_tuner()

    def _watch_tuner(self) -> None:
        """A forked child of the tuner may hold the other end of the socket open: watch the tuner itself as well."""
        pid = self._order["tuner_pid"]
        try:
            self._tuner = os.pidfd_open(pid)
        except ProcessLookupError:
            self._stop, self._answer = True, False
            return
        except (OSError, AttributeError):  # an old kernel: the socket alone must do
            return
        self._selector.register(self._tuner, selectors.EVENT_READ, self._on_tuner_gone)

    # -- events

    def _turn(self, timeout_s: float | None) -> None:
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
        """Copy what is there from a pipe of the command to its log; forget the pipe at its end."""
        for _ in range(chunks if fd in self._logs else 0):  # closed by an earlier event of the same turn
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
            self._stop, self._answer = True, False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message.get("do") == "stop":
                self._stop, self._grace_s = True, float(message.get("grace_s", self._grace_s))

    def _reap(self) -> None:
        """Collect ended children: the command, and orphans that came to us."""
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
                    self._copy(fd, 256)  # what it wrote last (a pipe holds far less than 16 MiB)
                    if fd in self._logs:  # a child of it still writes there
                        self._logs[fd].flush()
                self._status = os.waitstatus_to_exitcode(status)
                self._tell(event="exited", status=self._status)

    def _tell(self, **message: object) -> None:
        if self._answer:
            try:
                self._control.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self._answer = False

    # -- the end

    def _end(self) -> None:
        tree = self._tree()
        killed = 0
        if tree:
            send(tree, signal.SIGTERM)
            send(tree, signal.SIGCONT)  # a stopped process hears TERM only when it goes on
            if self._wait_until_gone(self._grace_s):
                killed = self._kill()
        self._reap()  # a command that ended at the same moment is not in the tree any more, and its status is not told yet
        for fd in list(self._logs):
            self._copy(fd, 256)
        self._remove_shared_memory()
        shutil.rmtree(self._order["remove"], ignore_errors=True)
        self._listen_to_tuner()
        self._put_back()
        self._tell(event="ended", killed=killed, left=sorted(self._tree()))

    def _listen_to_tuner(self) -> None:
        """A tuner that was interrupted while it waited for us has hung up by now."""
        try:
            while self._control.recv(1 << 16, socket.MSG_DONTWAIT):
                pass
            self._answer = False
        except BlockingIOError:
            pass
        except OSError:
            self._answer = False

    def _put_back(self) -> None:
        """What the job changed is put back by the tuner; by us if there is none any more."""
        arguments = self._order.get("put_back")
        if arguments and not self._answer:
            left = map(str, sorted(self._tree()))
            subprocess.run([sys.executable, "-I", "-S", *arguments, *left], stdin=subprocess.DEVNULL, check=False)

    def _tree(self) -> set[int]:
        found = descendants(os.getpid()) | marked(self._order["mark"])
        self._seen |= found
        return found

    def _wait_until_gone(self, seconds: float, spare: bool = False) -> set[int]:
        """Wait for the tree to end by itself, still copying its output; returns who is left."""
        deadline = time.monotonic() + seconds
        pause = 0.005
        while True:
            self._turn(pause)
            self._reap()
            left = descendants(os.getpid())
            if spare:
                left = {pid for pid in left if _is_cleaner(pid)}
            if not left or time.monotonic() > deadline:
                return left | (marked(self._order["mark"]) if not spare else set())
            pause = min(0.05, pause * 1.5)

    def _kill(self) -> int:
        """KILL until nobody is left, those last who tidy up shared memory once the others are gone."""
        killed: set[int] = set()
        deadline = time.monotonic() + SWEEP_S
        while (tree := self._tree()) and time.monotonic() < deadline:
            cleaners = {pid for pid in tree if _is_cleaner(pid)}
            others = tree - cleaners
            killed |= others
            send(others, signal.SIGKILL)
            if not others:
                self._wait_until_gone(CLEANERS_S, spare=True)
                send(self._tree(), signal.SIGKILL)
            self._wait_until_gone(0.02)
        return len(killed)

    def _remove_shared_memory(self) -> None:
        """Delete segments (``torch_<pid>_…``) of this session's dead processes: a killed worker cannot do it itself."""
        pids = self._seen | set(_crumb_pids(self._order["crumbs"]))
        for name, pid in _shared_memory() - self._before:  # not an older one of a recycled pid
            if pid in pids and not alive(pid):
                try:
                    os.unlink(os.path.join(SHM, name))
                except OSError:
                    pass


def _shared_memory() -> set[tuple[str, int]]:
    """Names of torch's segments, each with the process that made it."""
    try:
        names = os.listdir(SHM)
    except OSError:
        return set()
    return {(name, int(found.group(1))) for name in names if (found := re.match(r"torch_(\d+)_", name))}


def _crumb_pids(folder: str) -> Iterator[int]:
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
    """A bigger pipe (1 MiB, the system's usual limit), so that a chatty job rarely waits for the copying."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
    except (OSError, AttributeError):
        pass


def find_prctl() -> Any:
    """prctl(2), or None where there is none; looked up before the fork, where nothing may be loaded any more."""
    if not sys.platform.startswith("linux"):
        return None
    return ctypes.CDLL(None, use_errno=True).prctl


def main(fd: int) -> int:
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    received = b""
    while b"\n" not in received:
        data = control.recv(1 << 20)
        if not data:  # the tuner is gone already
            return 1
        received += data
    line, _, rest = received.partition(b"\n")
    return Warden(control, Order(json.loads(line)), rest).run()


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
