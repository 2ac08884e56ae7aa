"""MLflow servers as real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from empty_store import empty_store

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@contextmanager
def running(argv: list[str], env: dict[str, str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that answers; its whole process group is killed afterwards."""
    process = subprocess.Popen(
        argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 90
        while True:
            assert process.poll() is None, f"the server ended with {process.returncode}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=9) as answer:
                    assert answer.status == 200
                    break
            except OSError:
                assert time.monotonic() < deadline, "no answer"
                time.sleep(0.3)
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait(60)


def a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    """An MLflow server that keeps everything in ``folder``; yields its address."""
    from autotune.tracking.stores import resolve
    from autotune.tracking.ui import server_command

    store = resolve(f"sqlite:///{empty_store(folder / 'mlflow.db')}")
    assert store is not None
    argv, env = server_command(store, port)
    with running(argv, env, port):
        yield f"http://127.0.0.1:{port}"
