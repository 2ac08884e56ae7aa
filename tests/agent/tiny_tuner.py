"""A tuner of a few lines for the agent's tests: it starts a small real script and speaks the
protocol with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import bare_runs
from forked_jobs import ForkedJob

from autotune_spaces.codec import encode
from autotune_trials.protocol.messages import (
    Block,
    KnobChoice,
    Plan,
    Progress,
    SessionConfig,
    dump,
    load,
)

ROOT = Path(__file__).resolve().parents[2]
INJECT = ROOT / "trials" / "autotune_trials" / "agent" / "bootstrap" / "inject"

CNN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(256, 3, 8, 8), torch.randint(0, 4, (256,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
"""


class JobProcess(subprocess.Popen[str]):
    """A job in its own process group."""

    def __init__(
        self, directory: Path, variables: dict[str, str], python: tuple[str, ...] = ()
    ) -> None:
        super().__init__(
            [sys.executable, *python, "train.py"],
            cwd=directory,
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )

    def kill(self) -> None:
        """Kill the job and its DataLoader workers.

        Otherwise workers hold its pipes open for the five seconds until they notice its end.
        """
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Tuner:
    """Starts one script under the agent and listens on a Unix socket.

    Args:
        forks: whether a job may be forked from a process that has torch loaded (`forked_jobs`).
    """

    def __init__(self, directory: Path, forks: bool = True) -> None:
        self.directory, self.forks = directory, forks
        self.session = directory / "session"
        self.session.mkdir()
        self._short = tempfile.TemporaryDirectory(prefix="at-")  # Unix socket paths must be short
        self.socket = os.path.join(self._short.name, "s")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.socket)
        self._listener.listen(4)
        self._listener.settimeout(0.5)
        self._connection: socket.socket | None = None
        self._lines: Any = None
        self.process: JobProcess | ForkedJob | None = None
        self.environment: dict[str, str] = {}

    def start(
        self,
        source: str,
        mode: str = "live",
        knobs: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        python: tuple[str, ...] = (),
        **config: Any,
    ) -> None:
        """Write ``source`` to train.py and run it in a session.

        A job with environment variables, interpreter flags or in launch mode starts a new
        interpreter, since they may act at its start; others are forked (``forks``).
        """
        choices = tuple(KnobChoice(k, v) for k, v in (knobs or {}).items())
        wanted = SessionConfig(
            mode, str(self.session), "" if mode == "launch" else self.socket, choices, **config
        )
        (self.session / "session.json").write_text(json.dumps(encode(wanted)))
        (self.directory / "train.py").write_text(textwrap.dedent(source))
        self.environment = {
            "PYTHONPATH": str(INJECT),
            "AUTOTUNE_SESSION": str(self.session / "session.json"),
            "AUTOTUNE_MARK": "test",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        variables = {**os.environ, **self.environment}
        if self.forks and mode != "launch" and not env and not python:
            self.process = ForkedJob(self.directory, variables)
        else:
            self.process = JobProcess(self.directory, variables, python)

    def receive(self, timeout_s: float = 120) -> Any:
        """The next message; None if the job has closed the socket."""
        if self._connection is None:
            self._connection = self.accept(timeout_s)
            self._connection.settimeout(timeout_s)
            self._lines = self._connection.makefile("rb")
        while line := self._lines.readline():
            message = load(line)
            if not isinstance(message, Progress):
                return message
        return None

    def accept(self, timeout_s: float) -> socket.socket:
        """The next process that connects."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                return self._listener.accept()[0]
            except TimeoutError:
                assert self.process is not None
                if self.process.poll() is not None:
                    raise AssertionError(
                        f"the job ended: {self.process.communicate()}, agent.log: {self.log}"
                    ) from None
        raise AssertionError(f"the agent did not connect; agent.log: {self.log}")

    def measure(self, *blocks: Block, number: int = 1) -> list[Any]:
        """Send a plan and return its block reports; other messages are returned as well."""
        assert self._connection is not None
        self._connection.sendall(dump(Plan(number, blocks)))
        reports = []
        while True:
            message = self.receive()
            if message is None or type(message).__name__ == "PlanDone":
                return reports
            reports.append(message)

    def close_connection(self) -> None:
        if self._connection is not None:
            self._lines.close()
            self._connection.close()
            self._connection = None

    def finish(self, timeout_s: float = 120) -> tuple[int, str, str]:
        """Wait for the job's own end: (exit code, stdout, stderr)."""
        assert self.process is not None
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    @staticmethod
    def python_path() -> str:
        """Includes the tuner's packages, as if autotune were installed in the job's environment."""
        return os.pathsep.join(
            [str(INJECT), *(str(ROOT / part) for part in ("", "trials", "search_spaces"))]
        )

    @property
    def log(self) -> str:
        path = self.session / "agent.log"
        return path.read_text() if path.exists() else ""

    def markers(self) -> set[str]:
        folder = self.session / "markers"
        return {p.name.rpartition("-")[0] for p in folder.iterdir()} if folder.exists() else set()

    def end(self) -> None:
        self.close_connection()
        self._listener.close()
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self._short.cleanup()


def run_bare(directory: Path, source: str) -> str:
    """Run the script without the agent; returns its standard output."""
    (directory / "train.py").write_text(textwrap.dedent(source))
    return bare_runs.run_bare(directory)


def block(name: str, iterations: int = 6, **knobs: Any) -> Block:
    """A short block."""
    extra = {k[1:]: knobs.pop(k) for k in list(knobs) if k.startswith("_")}
    return Block(
        name,
        tuple(KnobChoice(k, v) for k, v in knobs.items()),
        iterations,
        **{"min_settle": 2, "max_settle": 12, **extra},
    )
