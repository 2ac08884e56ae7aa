"""The user's command under its supervisor, as the tuner sees it."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune_trials.diagnosis import classify
from autotune_trials.paths import SessionPaths
from autotune_trials.supervisor import process_tags, procfs
from autotune_trials.supervisor.isolated_python import isolated


class WatchedCommand:
    """Starts the command through a supervisor, hears from it, has it ended.

    Args:
        selector: events of the supervisor are registered here, for whoever turns it.
        secrets: texts that do not get into the logs.
        on_exit: called before ``exit_status`` is set, while what the job sent last can still be
            read.
    """

    def __init__(
        self,
        argv: Sequence[str],
        workdir: Path,
        env: dict[str, str],
        paths: SessionPaths,
        mark: str,
        *,
        grace_s: float,
        selector: selectors.BaseSelector,
        on_exit: Callable[[], None],
        secrets: Sequence[str] = (),
    ) -> None:
        self._argv = list(argv)
        self._workdir = workdir
        self._env = env
        self._paths = paths
        self.mark = mark
        self._grace_s = grace_s
        self._selector = selector
        self._on_exit = on_exit
        self._secrets = list(secrets)
        self._control: socket.socket | None = None
        self._rest = b""
        self._ended = self._stopping = False
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of the command
        self.exit_status: int | None = None  # of the command; negative: a signal
        self.error = ""  # why it could not be started
        self.lost = ""  # why the supervisor is gone
        self.left: list[int] = []  # processes that could not be ended (another user's)

    def start(self, socket_dir: str) -> None:
        """Start supervisor and command; one of ``pid``, ``error`` and ``lost`` is set by a later
        event.

        Args:
            socket_dir: removed by the supervisor at the end, also if this process is gone by then.
        """
        self._control, theirs = socket.socketpair()
        order = {
            "argv": self._argv,
            "cwd": str(self._workdir),
            "env": self._env,
            "mark": self.mark,
            "stdout": str(self._paths.stdout),
            "stderr": str(self._paths.stderr),
            "markers": str(self._paths.markers),
            "remove": socket_dir,
            "tuner_pid": os.getpid(),
            "grace_s": self._grace_s,
            "secrets": self._secrets,
            "put_back": isolated("autotune_trials.file_restore.restore", str(self._paths.root))
            if self._paths.written.exists()
            else [],
        }
        with theirs, open(self._paths.supervisor_log, "wb") as log:
            self.supervisor = subprocess.Popen(
                isolated("autotune_trials.supervisor.supervisor", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)
        try:
            self._control.sendall(json.dumps(order).encode() + b"\n")
        except OSError:  # it died at once: its end of file is the next event
            pass

    def descendants(self) -> set[int]:
        """The command's processes, wherever they have got to; without the one that watches them."""
        return procfs.descendants(self.supervisor.pid) if self.supervisor is not None else set()

    def ask_to_stop(self) -> None:
        self._stopping = True
        if self._control is None:
            return
        try:
            self._control.sendall(
                json.dumps({"do": "stop", "grace_s": self._grace_s}).encode() + b"\n"
            )
        except OSError:  # the supervisor is gone; wait_until_gone sweeps
            pass

    def wait_until_gone(self, turn: Callable[[float], None]) -> None:
        """Wait for the supervisor to end everything; if it cannot, kill it and all that carries the
        mark.
        """
        if self.supervisor is None:
            return
        deadline = time.monotonic() + self._grace_s + process_tags.SWEEP_S + 5.0
        while self.supervisor.poll() is None and time.monotonic() < deadline:
            turn(0.01)
        if self.supervisor.poll() is None:
            self.supervisor.kill()
            self.supervisor.wait()
        turn(0.0)  # its last message
        if not self._ended:
            process_tags.sweep(self.mark)
            self.left = sorted(process_tags.marked(self.mark))

    def close(self) -> None:
        """Hang up. A supervisor that still lives takes that as the order to end everything."""
        if self._control is not None:
            self._control.close()
        log = self._paths.supervisor_log
        if log.exists() and not log.stat().st_size:
            log.unlink()

    def _on_control(self, control: socket.socket) -> None:
        try:
            data = control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(control)
            self._on_supervisor_gone()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["event"] == "started":
                self.pid = message["pid"]
            elif message["event"] == "failed":
                self.error = message["text"]
            elif message["event"] == "exited":
                self._on_exit()
                self.exit_status = message["status"]
            elif message["event"] == "ended":
                self._ended, self.left = True, message["left"]

    def _on_supervisor_gone(self) -> None:
        # "ended" without our asking and before the command's own end: somebody else has told the
        # supervisor to stop.
        if self._stopping or self.error or (self._ended and self.exit_status is not None):
            return
        process_tags.sweep(self.mark)
        trouble = classify.read_tail(self._paths.supervisor_log).strip().splitlines()
        self.lost = "the watching process of this session was killed from outside" + (
            f": {trouble[-1]}" if trouble else ""
        )
