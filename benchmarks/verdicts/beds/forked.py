"""Runs of a bed as sessions of the real agent, in processes forked from one that has imported
torch.

    this process   imports torch and the agent's modules, runs no operation of torch
        │ fork                                                  (a fresh interpreter takes 3 s)
    child          session.json, AUTOTUNE_SESSION, agent.start.watch(), then the bed's script by
        │          runpy
        │ Hello, Record over the session's socket
    this process   reads them, ends the child with all its workers

Apart from the fork, a run is the same as in the converge stage: the same call as in a fresh
interpreter installs the agent before the script's first line. The only other difference is that the
script finds torch already imported, but unused.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune_spaces import knobs as knob_registry
from autotune_spaces.base import Value
from autotune_spaces.codec import encode
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import (
    SESSION_VARIABLE,
    Fault,
    KnobChoice,
    Record,
    SessionConfig,
    load,
)

BEDS = Path(__file__).resolve().parent
LONGEST_RUN_S = 180.0
NEEDED = (
    "torch",
    "torch._dynamo",  # optimizers import it when they are built, which takes more than a second
    "autotune_trials.agent.dataloader.hooks",
    "autotune_trials.agent.core.agent",
    "autotune_trials.agent.bootstrap.start",
)


class RunFailed(Exception):
    """A run left no record; ``str()`` says why, with the end of its output."""


def prepare() -> None:
    """Import what a child needs, so that it does not have to. Runs no operation of torch."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in NEEDED:
        importlib.import_module(module)
    sys.path[:0] = [p for p in [str(BEDS)] if p not in sys.path]  # as with `python beds/mlp.py`
    for name in knob_registry.names():
        knob_registry.get(name)
    gc.freeze()  # keeps the collector from touching pages shared with children


def run(
    bed: str,
    plant: Sequence[str] = (),
    knobs: Mapping[str, Value] | None = None,
    *,
    seed: int,
    steps: int,
    kernels: Path | None = None,
) -> Record:
    """One run of ``bed`` with ``plant`` words on its command line and ``knobs`` held by the agent.

    ``kernels``: where compiled kernels are kept for later runs.

    Raises:
        RunFailed
    """
    folder = Path(tempfile.mkdtemp(prefix="planted-"))
    try:
        paths = SessionPaths(folder)
        for directory in (paths.markers, paths.out):
            directory.mkdir()
        choices = tuple(KnobChoice(name, value) for name, value in (knobs or {}).items())
        config = SessionConfig(
            "fixed",
            str(folder),
            str(folder / "s"),
            choices,
            steps=steps,
            seed=seed,
            match_streams=True,
        )
        paths.config.write_text(json.dumps(encode(config)), encoding="utf-8")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(config.socket)
            listener.listen(8)
            child = os.fork()
            if child == 0:
                _be_the_job(paths, bed, plant, kernels)
            try:
                return _record(listener, child, paths)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    # it may have died, or been too slow, before it had its own process group
                    os.kill(child, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _be_the_job(paths: SessionPaths, bed: str, plant: Sequence[str], kernels: Path | None) -> None:
    """Runs in the child; never returns."""
    status = 1
    try:
        os.setsid()
        for descriptor, path in ((1, paths.stdout), (2, paths.stderr)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
        os.environ[SESSION_VARIABLE] = str(paths.config)
        if kernels is not None:
            os.environ |= {
                "TORCHINDUCTOR_CACHE_DIR": str(kernels),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
            }
        sys.argv = [str(BEDS / f"{bed}.py"), "--plant", ",".join(plant)]
        from autotune_trials.agent.bootstrap import start

        start.watch()
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    # any exception: nothing may return into the parent's code from a forked child
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _record(listener: socket.socket, child: int, paths: SessionPaths) -> Record:
    """The child's record, as soon as it arrives."""
    deadline = time.monotonic() + LONGEST_RUN_S
    listener.settimeout(0.2)
    while True:
        try:
            connection, _ = listener.accept()
            break
        except TimeoutError:
            if os.waitpid(child, os.WNOHANG)[0] or time.monotonic() > deadline:
                raise RunFailed("no word from the agent\n" + _logs(paths)) from None
    with connection:
        connection.settimeout(LONGEST_RUN_S)
        rest = b""
        while True:
            try:
                data = connection.recv(1 << 20)
            except TimeoutError:
                raise RunFailed(f"nothing came for {LONGEST_RUN_S:g} s\n" + _logs(paths)) from None
            if not data:
                raise RunFailed("ended without a record\n" + _logs(paths))
            *lines, rest = (rest + data).split(b"\n")
            for message in map(load, lines):
                if isinstance(message, Fault):
                    raise RunFailed(f"the agent failed in {message.where}\n{message.text}")
                if isinstance(message, Record):
                    return _checked(message)


def _checked(record: Record) -> Record:
    failed = record.notes.get("knob_failures")
    if failed:
        raise RunFailed(f"a knob could not be set: {failed}")
    return record


def _logs(paths: SessionPaths) -> str:
    texts = [
        p.read_text(errors="replace")[-2000:] for p in (paths.stderr, paths.agent_log) if p.exists()
    ]
    return "\n".join(texts)
