"""A Ray cluster for tests, started by the scripts of the images: a head and workers on loopback,
with a token.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.cli import main

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "docker" / "services"
MARK = "AUTOTUNE_TEST_CLUSTER"


@dataclass(frozen=True)
class RayCluster:
    address: str
    token_file: Path
    folder: Path  # contains AUTOTUNE_RUNS and logs

    def autotune(
        self, *words: str, cwd: Path, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        env = {
            **os.environ,
            "RAY_API_SERVER_ADDRESS": self.address,
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
        }
        return subprocess.run(
            ["autotune", *words],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def asked(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Like :meth:`autotune`, in this process: importing Ray's client in a new one takes
        seconds.
        """
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(cwd)
            patch.setenv("RAY_API_SERVER_ADDRESS", self.address)
            patch.setenv("RAY_AUTH_TOKEN_PATH", str(self.token_file))
            code = main(list(words))
        return subprocess.CompletedProcess(
            ["autotune", *words], code, out.getvalue(), err.getvalue()
        )

    def processes(self, word: str) -> list[int]:
        """Processes that the cluster has started and whose command line contains ``word``."""
        return [
            pid for pid in marked(str(self.folder)) if word.encode() in read(f"/proc/{pid}/cmdline")
        ]


def free_port() -> int:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docker" / "free_port.py"), "0"],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def marked(value: str) -> list[int]:
    """Processes started with the variable that names their cluster."""
    line = f"{MARK}={value}".encode()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if line in read(f"/proc/{pid}/environ").split(b"\0")]


@contextmanager
def ray_cluster(workers: int) -> Iterator[RayCluster]:
    # Short: the paths of Ray's sockets may have 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="at-ray-"))
    token = folder / "token"
    token.write_text(secrets.token_hex(16))
    ports = {name: str(free_port()) for name in ("RAY_PORT", "RAY_DASHBOARD_PORT")}
    env = {
        **os.environ,
        **ports,
        MARK: str(folder),
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TEMP_DIR": str(folder / "ray"),
        "RAY_NODE_IP": "127.0.0.1",
        "RAY_DASHBOARD_HOST": "127.0.0.1",
        "RAY_HEAD": f"127.0.0.1:{ports['RAY_PORT']}",
        "AUTOTUNE_RUNS": str(folder / "runs"),
    }
    address = f"http://127.0.0.1:{ports['RAY_DASHBOARD_PORT']}"
    try:
        with ExitStack() as nodes:
            nodes.enter_context(node("ray-head", env, folder, f"{address}/api/gcs_healthz"))
            for _ in range(workers):
                nodes.enter_context(node("ray-worker", {**env, "RAY_WORKER_CPUS": "2"}, folder))
            yield RayCluster(address, token, folder)
    finally:
        for pid in marked(str(folder)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def node(script: str, env: dict[str, str], folder: Path, *more_health: str) -> Iterator[None]:
    agent = free_port()
    log = folder / f"{script}-{agent}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SERVICES / script)],
            env={**env, "RAY_AGENT_PORT": str(agent)},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        wait_healthy(
            process, log, f"http://127.0.0.1:{agent}/api/local_raylet_healthz", *more_health
        )
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def wait_healthy(
    process: subprocess.Popen[bytes], log: Path, *urls: str, timeout_s: float = 90
) -> None:
    deadline = time.monotonic() + timeout_s
    while (
        asked := subprocess.run(
            [str(SERVICES / "healthy"), *urls], capture_output=True, text=True, timeout=30
        )
    ).returncode:
        assert process.poll() is None, f"it ended with {process.returncode}: {log.read_text()}"
        assert time.monotonic() < deadline, f"no answer from {asked.stderr}: {log.read_text()}"
        time.sleep(0.3)
