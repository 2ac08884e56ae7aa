"""What a run may leave on a machine, however it ends: processes, shared memory, sockets, locks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune_trials.session.launch_environment import socket_folders
from autotune_trials.supervisor import process_tags, procfs

SIDE_BY_SIDE = "PYTEST_XDIST_WORKER"  # set in each process of pytest-xdist


@dataclass(frozen=True)
class Surroundings:
    """Processes, shared memory and sockets on this machine.

    Only processes that belong to runs in ``folder`` count.
    """

    processes: frozenset[str]
    memory: frozenset[str]
    sockets: frozenset[str]

    @classmethod
    def of(cls, folder: Path) -> Surroundings:
        memory = (
            frozenset(name for name in os.listdir("/dev/shm") if _is_ours(name))
            if os.path.isdir("/dev/shm")
            else frozenset()
        )
        sockets = {
            f"{place}/{name}"
            for place in socket_folders()
            for name in os.listdir(place)
            if _of_the_dead(name)
        }
        return cls(frozenset(_processes_of(str(folder))), memory, frozenset(sockets))

    def beyond(self, before: Surroundings) -> list[str]:
        return sorted(
            (self.processes - before.processes)
            | (self.memory - before.memory)
            | (self.sockets - before.sockets)
        )


def _is_ours(name: str) -> bool:
    """Segments of torch's workers, and sockets, whose creators are gone. Those of living processes
    may belong to concurrent tests, and so may a dead worker's segment, whose name does not tell
    whose it was: where tests run side by side, it does not count.
    """
    if name.startswith("torch_"):
        return SIDE_BY_SIDE not in os.environ and not procfs.alive(int(name.split("_")[1]))
    return _of_the_dead(name)


def _of_the_dead(name: str) -> bool:
    """A socket folder whose tuner is gone."""
    return name.startswith("autotune-") and process_tags.is_stale("-".join(name.split("-")[1:5]))


def _processes_of(folder: str) -> Iterator[str]:
    for pid in procfs.all_pids():
        if pid == os.getpid() or not procfs.alive(pid):
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            place = os.readlink(f"/proc/{pid}/cwd")
            line = (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
        except OSError:
            continue
        if place.startswith(folder) or (
            b"AUTOTUNE_MARK" in environment and folder.encode() in environment
        ):
            yield f"process {pid}: {line}"


def held(folder: Path) -> list[str]:
    """Locked paths: journals, the sending of records, and working directories of trials."""
    places = [
        *folder.rglob("journal.jsonl"),
        *folder.rglob("send.lock"),
        *(file.parent for file in folder.rglob("job.yaml")),
    ]
    return [f"lock on {place}" for place in places if not _free(place)]


def _free(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # removed in the meantime, or a dangling link
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True
