"""docker/up.sh and down.sh for tests: the whole service as processes, in a directory that
PostgreSQL's user can enter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
PORTS = ("AUTOTUNE_DB_PORT", "MLFLOW_PORT", "RAY_PORT", "RAY_DASHBOARD_PORT", "RAY_HEAD_AGENT_PORT")


@dataclass(frozen=True)
class BareMachine:
    state: Path

    def up(self, *options: str, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
        return self.call(
            str(ROOT / "docker" / "up.sh"),
            "--state",
            str(self.state),
            *options,
            timeout_s=timeout_s,
        )

    def down(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.call(str(ROOT / "docker" / "down.sh"), "--state", str(self.state), *options)

    def call(
        self, *command: str, cwd: Path | None = None, timeout_s: float = 120, **env: str
    ) -> subprocess.CompletedProcess[str]:
        clean = {
            name: value
            for name, value in os.environ.items()
            if name not in PORTS and not name.startswith(("RAY_A", "MLFLOW_T"))
        }
        return subprocess.run(
            list(command),
            cwd=cwd,
            env={**clean, **env},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def variables(self, name: str = "env") -> dict[str, str]:
        """Variables of the file that operators and clients source in their shells."""
        script = f'set -a; . "{self.state}/{name}"; env -0'
        done = subprocess.run(
            ["env", "-i", "bash", "-c", script], capture_output=True, text=True, check=True
        )
        found = dict(pair.partition("=")[::2] for pair in done.stdout.split("\0") if pair)
        return {key: value for key, value in found.items() if key not in ("PWD", "SHLVL", "_")}

    def autotune(
        self, *words: str, cwd: Path, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return self.call("autotune", *words, cwd=cwd, timeout_s=timeout_s, **self.variables())

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """One request to MLflow's REST API."""
        uri = self.variables()["MLFLOW_TRACKING_URI"]
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{uri}/api/2.0/mlflow/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def pids(self) -> dict[str, int]:
        return {
            path.name: int(path.read_text().split()[0]) for path in (self.state / "pids").iterdir()
        }

    def processes(self) -> dict[int, str]:
        """Processes of the service: pid -> command line."""
        found = {}
        ray = (
            "autotune-ray-"
            + subprocess.run(
                ["cksum"], input=f"{self.state}\n", capture_output=True, text=True, check=True
            ).stdout.split()[0]
        )
        for process in psutil.process_iter():
            try:
                known = " ".join([*process.environ().values(), *process.cmdline()])
                if process.pid != os.getpid() and (str(self.state) in known or ray in known):
                    found[process.pid] = " ".join(process.cmdline())
            except psutil.Error:
                continue
        return found

    def listeners(self) -> set[tuple[str, int]]:
        """Address and port of every TCP socket that the service listens on.

        Ray's agents overwrite their command line and environment with their names: they are found
        as descendants of other processes.
        """
        own = self.processes()
        own |= {
            child.pid: child.name()
            for pid in self.pids().values()
            for child in psutil.Process(pid).children(recursive=True)
        }
        listening = [
            c
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.pid in own
        ]
        return {(c.laddr.ip, c.laddr.port) for c in listening}


def require_postgres() -> None:
    if not (shutil.which("initdb") or list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))):
        pytest.skip("PostgreSQL's server is not installed (apt install postgresql)")
    pytest.importorskip(
        "psycopg2", reason="psycopg2 is not installed (pip install 'autotune-torch[service]')"
    )
    pytest.importorskip(
        "ray.dashboard.optional_deps",
        reason="Ray's dashboard is not installed (pip install 'autotune-torch[service]')",
    )


@contextmanager
def bare_machine() -> Iterator[BareMachine]:
    """Nothing runs yet; stops everything at the end."""
    home = Path(tempfile.mkdtemp(prefix="at-service-"))
    home.chmod(0o711)
    machine = BareMachine(home / "state")
    try:
        yield machine
    finally:
        if (machine.state / "pids").is_dir():
            assert machine.down("--purge").returncode == 0
        shutil.rmtree(home, ignore_errors=True)
