"""Connects to a Ray cluster, and explains failures in words a user can act on."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.disk import disk_errors_as_input_errors
from autotune.errors import InputError
from autotune.executors.cluster.workdir import REMEDY, runtime_environment
from autotune.job.spec import JobSpec

# of a cluster we start: answers are small, and the job's workers need /dev/shm
OBJECT_STORE_BYTES = 128 << 20
CONNECT_S = 10.0


def connect(spec: JobSpec, run_dir: Path, warn: Callable[[str], None] = print) -> None:
    """Become a driver of the cluster that ``spec`` names.

    Raises:
        InputError: it is not there, refuses us, or the job's directory cannot be shipped.
    """
    address = str(spec.executor.options["address"])
    _require_client(address)
    import ray
    from ray.exceptions import RuntimeEnvSetupError

    _check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own: dict[str, Any] = (
        {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        if address == "local"
        else {}
    )
    with (
        tempfile.TemporaryDirectory(prefix="autotune-ship-") as folder,
        disk_errors_as_input_errors(Path(folder), "run the same command again"),
    ):
        environment = (
            runtime_environment(spec.workdir, run_dir, Path(folder) / "job.zip", warn)
            if spec.executor.options["workdir"] == "ship"
            else {}
        )
        try:
            ray.init(
                address=address,
                runtime_env=environment or None,
                namespace="autotune",
                log_to_driver=False,
                configure_logging=True,
                logging_level=logging.ERROR,
                **own,
            )
        except Exception as error:  # Ray raises many kinds here, plain RuntimeError among them
            ray.shutdown()
            cause = _root(error)
            # Ray says RuntimeEnvSetupError of all that fails in sending, ValueError of the size
            if isinstance(error, RuntimeEnvSetupError) and isinstance(cause, ValueError):
                raise _not_accepted(spec.workdir, cause) from error
            raise _unreachable(address, error) from error


def _require_client(address: str) -> None:
    """Check that Ray's client is installed if ``address`` needs it.

    Raises:
        InputError: the cluster is reached from outside, and it is not installed.
    """
    if not address.startswith("ray://"):
        return
    # read at import; without it, a client that lost its server would become a driver and wait
    # forever
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    if importlib.util.find_spec("grpc") is None:
        raise InputError(
            f"{address} needs Ray's client, which is not installed here",
            where="executor.ray.address",
            expected="the package grpcio",
            remedy=(
                "pip install 'ray[client]', or run this on a machine of the cluster with address:"
                " auto"
            ),
        )


def _check_reachable(address: str) -> None:
    """Check that something listens there: Ray itself tries for minutes, and prints what it finds.

    Raises:
        InputError: nothing does.
    """
    host, sign, port = address.removeprefix("ray://").rpartition(":")
    if not sign:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise _unreachable(address, error) from None


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _not_accepted(workdir: Path, error: BaseException) -> InputError:
    return InputError(
        f"the cluster does not accept the job's directory: {str(error).partition('. ')[0]}",
        where=str(workdir),
        remedy=REMEDY,
    )


def _unreachable(address: str, error: Exception) -> InputError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # perhaps a traceback from the server
    said = f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") and lines[1:] else lines[0]
    if "auth" in type(error).__name__.lower() or "token" in said.lower():
        return InputError(
            f"the cluster refused access: {said}",
            where="executor.ray.address",
            expected="the cluster's token",
            remedy="set RAY_AUTH_TOKEN_PATH to a file that contains it (and RAY_AUTH_MODE=token)",
        )
    where_to_look = {
        "auto": (
            "start one with `ray start --head`, run this on one of its machines, or set its address"
        ),
        "local": "see the message above; `executor: local` needs no Ray",
    }
    return InputError(
        f"no Ray cluster answers at {address}: {said}",
        where="executor.ray.address",
        expected="a running cluster with the same Ray and Python versions",
        remedy=where_to_look.get(
            address,
            "check the address: ray://HOST:10001 from outside the cluster, HOST:6379 from inside",
        ),
    )
