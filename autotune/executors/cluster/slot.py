"""One slot, in a process on its node: a local executor used from elsewhere. The Ray actor's class.

    <tmp>/autotune-slot-<mark>-…/
      work/            the slot's own copy of the job's directory (workdir: ship)
      sessions/        until they are brought home
      outbox.tar.gz    a session's directory, packed

Ray is not imported here, unless the slot has several nodes. Answers are
:class:`~autotune.executors.cluster.answers.Answer`.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune import __version__
from autotune.errors import InputError
from autotune.executors.base import FixedRun, LiveSession
from autotune.executors.cluster import guard
from autotune.executors.cluster.answers import CHUNK_BYTES, Answer, SlotFacts, answered, relocated
from autotune.executors.cluster.multinode.spread import free_port
from autotune.executors.cluster.places import Place
from autotune.executors.cluster.workdir import files_in
from autotune.executors.local import LocalExecutor
from autotune.executors.side_effects import NOTICED, own_places
from autotune.export.fingerprint import here
from autotune.job.spec import JobSpec
from autotune.secrets import mask_command
from autotune_spaces import topology
from autotune_spaces.gpus import VISIBLE
from autotune_trials.paths import SessionPaths, sessions_of
from autotune_trials.protocol.failures import SessionFailed
from autotune_trials.protocol.messages import Block, BlockReport, Hello, Record

RENDEZVOUS_PORT = "PET_MASTER_PORT"  # read by torchrun


class Slot:
    """Sessions on this node, one at a time.

    Args:
        spec: the job; its ``workdir`` is where the tuner runs.
        place: our share of the node.
        inside: where the job's directory is within the one that Ray has shipped; None: it is on a
            shared file system.
        run_dir: where the tuner writes, which may be on that file system too.
        outposts: actors on the other nodes, if the slot has several.
    """

    def __init__(
        self,
        spec: JobSpec,
        place: Place,
        inside: str | None,
        run_dir: Path,
        outposts: Sequence[Any] = (),
    ) -> None:
        drop_rays_own()
        guard.clean_up_after_others()
        self._scratch = guard.new_scratch()
        guard.start(self._scratch)
        if place.of > 1:
            os.sched_setaffinity(0, place.cores(topology.read().in_order(os.sched_getaffinity(0))))
        self._home = spec.workdir
        work = spec.workdir if inside is None else self._copy(inside)
        self._spec = replace(spec, workdir=work)
        self._outposts = outposts
        self._local = self._executor(self._spec, tuple(own_places(run_dir, spec.tracking.uri)))
        self._shares = place.of > 1
        self._live: LiveSession | None = None
        self._shown: dict[str, str] = {}

    def _choose_port(self) -> None:
        """For the next session's torchrun, whose own default may be one port for all slots of a
        node. Its flags still win.
        """
        known = {*os.environ, *self._spec.env}
        if self._shares and not self._outposts and RENDEZVOUS_PORT not in known:
            self._local.variables = {RENDEZVOUS_PORT: str(free_port())}

    def _executor(self, spec: JobSpec, own: tuple[Path, ...]) -> LocalExecutor:
        if not self._outposts:
            return LocalExecutor(spec, self._scratch, own=own)
        from autotune.executors.cluster.multinode.spread import SpreadExecutor, own_address

        return SpreadExecutor(
            spec, self._scratch, own=own, outposts=self._outposts, address=own_address()
        )

    def describe(self) -> SlotFacts:
        cores = tuple(sorted(os.sched_getaffinity(0)))
        environment = {**os.environ, **self._spec.env}
        machine = here(self._spec.command, environment, self._spec.workdir)
        files = files_in(self._spec.workdir) if self._spec.workdir == self._home else None
        load = self._local.gpu_load() if machine.device == "cuda" else ()
        return SlotFacts(os.getpid(), machine, __version__, files, cores, load, self._others())

    def _others(self) -> tuple[SlotFacts, ...]:
        if not self._outposts:
            return ()
        import ray

        return tuple(ray.get([outpost.describe.remote() for outpost in self._outposts]))

    def open_live(
        self, loader_key: str, first_epoch_s: float, stretches: bool, home: str
    ) -> Answer:
        """Start a session; ``home``: what its directory will be called where the tuner runs."""

        def do() -> Hello:
            self._local.loader_key, self._local.first_epoch_s = loader_key, first_epoch_s
            self._local.stretches = stretches
            self._choose_port()
            self._live = self._local.open_live()
            self._require_own_gpus(self._live.hello)
            return self._live.hello

        return self._answer(do, home)

    def measure(self, blocks: Sequence[Block]) -> Answer:
        def do() -> list[BlockReport]:
            assert self._live is not None
            return self._live.measure(blocks)

        return self._answer(do, "")

    def close_live(self) -> Answer:
        """End the session; the answer is the size of its packed directory in bytes."""

        def do() -> int:
            if self._live is not None:
                self._live.close()
                self._live = None
            return self._packed()

        return answered(do)

    def run_fixed(self, request: FixedRun, loader_key: str, home: str) -> Answer:
        """Make a fixed run; the answer is (record, hello)."""

        def do() -> tuple[Record, Hello]:
            self._local.loader_key = loader_key
            self._choose_port()
            record = self._local.run_fixed(request)
            assert self._local.last_hello is not None
            self._require_own_gpus(self._local.last_hello)
            return record, self._local.last_hello

        return self._answer(do, home)

    def _require_own_gpus(self, hello: Hello) -> None:
        """Check that the job uses the GPUs that Ray gave this slot.

        Raises:
            InputError: it chooses them itself, for all slots of the node the same.
        """
        ours, chosen = os.environ.get(VISIBLE, ""), hello.job.own_settings.get(VISIBLE, "")
        others = {word.strip() for word in chosen.split(",")} - set(ours.split(","))
        if self._shares and hello.job.device == "cuda" and others:
            raise InputError(
                f"the job sets {VISIBLE} to {chosen or 'nothing'} itself: all slots of a node would"
                " use the same GPUs",
                where=" ".join(mask_command(self._spec.command)),
                expected=f"{VISIBLE}={ours} on this slot, as set by Ray",
                remedy=f"remove {VISIBLE} from the job's code and from its command",
            )

    def pack(self) -> Answer:
        """Pack the latest session's directory; the answer is its size in bytes."""
        return answered(self._packed)

    def chunk(self, offset: int) -> bytes:
        """Return a part of what was packed last."""
        with open(self._outbox, "rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

    def survey(self) -> Answer:
        return answered(lambda: dict(self._local.survey()))

    def measure_peaks(self, threads: int, device: str) -> Answer:
        return answered(lambda: dict(self._local.measure_peaks(threads, device)))

    def close(self) -> None:
        """End everything and remove all files, so that nothing is left for the guard."""
        self._local.close()
        guard.remove(self._scratch)

    # ---------------------------------------------------------------------------------- directories

    def _copy(self, inside: str) -> Path:
        """Copy the job's directory as it was shipped, for this slot alone.

        Ray's copy is shared by all slots on the node, also later ones.
        """
        work = self._scratch / "work"
        shutil.copytree(Path.cwd() / inside, work, symlinks=True)
        return work

    @property
    def _outbox(self) -> Path:
        return self._scratch / "outbox.tar.gz"

    def _latest(self) -> Path | None:
        return max(sessions_of(self._scratch), default=None)

    def _answer(self, do: Any, home: str) -> Answer:
        """The answer of ``do``, with directories named as they are where the tuner runs."""
        answer = answered(do)
        session = self._latest()
        if home and session is not None:
            self._shown = {str(session): home}
        names = {**self._shown, str(self._spec.workdir): str(self._home)}
        if isinstance(failed := answer.error, SessionFailed):
            for name in ("detail", "log_tail", "where", "directory"):
                setattr(failed, name, relocated(getattr(failed, name), names))
            failed.partial = tuple(relocated(report, names) for report in failed.partial)
        if isinstance(answer.value, tuple):
            return replace(answer, value=tuple(relocated(part, names) for part in answer.value))
        return (
            replace(answer, value=relocated(answer.value, names))
            if isinstance(answer.value, Hello)
            else answer
        )

    def _packed(self) -> int:
        session = self._latest()
        if session is None:
            return 0
        self._forget_own_copy(session)
        paths = SessionPaths(session)
        with tarfile.open(self._outbox, "w:gz", compresslevel=1) as archive:
            for path in sorted(session.iterdir()):
                if path not in (paths.out, paths.written):
                    archive.add(path, arcname=path.name)
        # otherwise a file could not be put back, and its original is in there
        if not paths.written.exists():
            shutil.rmtree(session, ignore_errors=True)
            session.mkdir()  # it keeps its number taken
        return self._outbox.stat().st_size

    def _forget_own_copy(self, session: Path) -> None:
        """Drop changes to the slot's own copy of the job's directory from the session's reports."""
        if self._spec.workdir == self._home:
            return
        for name in (SessionPaths(session).outcome.name, NOTICED):
            try:
                told = json.loads((session / name).read_text("utf-8"))
            except (OSError, ValueError):
                continue
            kept = (
                {kind: self._outside(entries) for kind, entries in told.items()}
                if isinstance(told, Mapping)
                else self._outside(told)
            )
            (session / name).write_text(json.dumps(kept), encoding="utf-8")

    def _outside(self, entries: Sequence[Any]) -> list[Any]:
        own = str(self._scratch.resolve()) + os.sep
        return [
            entry
            for entry in entries
            if not str(entry if isinstance(entry, str) else entry[0]).startswith(own)
        ]


def drop_rays_own() -> None:
    """Remove what Ray put into this process's environment for its own tasks.

    The job would inherit it: a number of threads it did not ask for, and the shipped directory as
    an import path.
    """
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        given = []
    if not any(entry.startswith(b"OMP_NUM_THREADS=") for entry in given):
        os.environ.pop("OMP_NUM_THREADS", None)
    shipped = os.path.realpath(os.getcwd())
    if "PYTHONPATH" in os.environ and "working_dir_files" in shipped:
        paths = [
            p
            for p in os.environ["PYTHONPATH"].split(os.pathsep)
            if p and os.path.realpath(p) != shipped
        ]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
