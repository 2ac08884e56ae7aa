"""The tuner's handle on the user's command and its supervisor."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable

from autotune_trials.diagnosis import classify
from autotune_trials.paths import SessionPaths
from autotune_trials.session.launch_environment import Command
from autotune_trials.supervisor import process_tags, procfs
from autotune_trials.supervisor.isolated_python import isolated


class SupervisedCommand:
    """Starts the command through a supervisor, receives its events and has it stopped.

    Args:
        command: as it is in the session.
        selector: supervisor events are registered here; the caller runs the selector.
        on_exit: called before ``exit_status`` is set, while the job's last messages can still be
            read.
    """

    def __init__(
        self,
        command: Command,
        paths: SessionPaths,
        mark: str,
        *,
        grace_s: float,
        selector: selectors.BaseSelector,
        on_exit: Callable[[], None],
    ) -> None:
        self._command = command
        self._paths = paths
        self.mark = mark
        self._grace_s = grace_s
        self._selector = selector
        self._on_exit = on_exit
        self._control: socket.socket | None = None
        self._rest = b""
        self._ended = self._stopping = False
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.pid = 0  # the command's
        self.exit_status: int | None = None  # the command's; negative: a signal
        self.error = ""  # why the command could not be started
        self.lost = ""  # why the supervisor is gone
        self.left: list[int] = []  # processes that could not be killed (e.g. another user's)

    def start(self, socket_dir: str) -> None:
        """Start supervisor and command; a later event sets one of ``pid``, ``error`` and ``lost``.

        Args:
            socket_dir: removed by the supervisor at the end, even if this process is gone by then.
        """
        self._control, theirs = socket.socketpair()
        order = {
            "argv": self._command.argv,
            "cwd": str(self._command.workdir),
            "env": self._command.env,
            "mark": self.mark,
            "stdout": str(self._paths.stdout),
            "stderr": str(self._paths.stderr),
            "markers": str(self._paths.markers),
            "remove": socket_dir,
            "tuner_pid": os.getpid(),
            "grace_s": self._grace_s,
            "secrets": self._command.secrets,
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
        except OSError:  # the supervisor died at once; the next event is its EOF
            pass

    def descendants(self) -> set[int]:
        """All processes descending from the supervisor, without the supervisor itself."""
        return procfs.descendants(self.supervisor.pid) if self.supervisor is not None else set()

    def ask_to_stop(self) -> None:
        self._stopping = True
        if self._control is None:
            return
        try:
            self._control.sendall(b"stop\n")
        except OSError:  # the supervisor is gone; wait_until_gone() cleans up
            pass

    def wait_until_gone(self, handle_events: Callable[[float], None]) -> None:
        """Wait until the supervisor has ended everything; failing that, kill it and the marked
        processes.
        """
        if self.supervisor is None:
            return
        deadline = time.monotonic() + self._grace_s + process_tags.SWEEP_S + 5.0
        while self.supervisor.poll() is None and time.monotonic() < deadline:
            handle_events(0.01)
        if self.supervisor.poll() is None:
            self.supervisor.kill()
            self.supervisor.wait()
        handle_events(0.0)  # its last message
        if not self._ended:
            process_tags.sweep(self.mark)
            self.left = sorted(process_tags.marked(self.mark))

    def close(self) -> None:
        """Close the connection. A supervisor that is still alive then ends everything."""
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
        # "ended" although we did not ask and the command had not exited: the supervisor was
        # terminated from outside.
        if self._stopping or self.error or (self._ended and self.exit_status is not None):
            return
        process_tags.sweep(self.mark)
        trouble = classify.read_tail(self._paths.supervisor_log).strip().splitlines()
        self.lost = "this session's supervisor process was killed from outside autotune" + (
            f": {trouble[-1]}" if trouble else ""
        )
