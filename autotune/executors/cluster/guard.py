"""Ensures that nothing of a slot outlives its actor, whatever ended that.

    actor ──▶ guard (its parent is init) ── waits for the actor's end
                 └─▶ supervisors end their trees │ sweep by mark │ put back │ remove files

Each session has a supervisor, which ends the process tree and puts files back as soon as the actor
is gone. But when Ray ends a worker process, it first kills its direct children: the supervisors. So
this process, which is nobody's child, cleans up what is left.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autotune_trials.file_restore.restore import leftovers, put_back
from autotune_trials.session.launch_environment import socket_folders
from autotune_trials.supervisor import process_tags, procfs

PREFIX = "autotune-slot-"  # of a slot's own directory; its process's mark follows
PATIENCE_S = 20.0  # for supervisors that end their trees by themselves: TERM, grace, KILL
POLL_S = 0.05


def new_scratch() -> Path:
    """Make a directory for a slot's sessions and its copy of the job.

    Its mark lets it be found and removed if all else fails.
    """
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{process_tags.new_mark()}-"))


def start(scratch: Path) -> None:
    """Start a guard that watches this process and removes ``scratch`` when it is gone."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from autotune.executors.cluster.guard import"
        " main; main()"
    )
    subprocess.run(
        [sys.executable, "-I", "-c", code, str(os.getpid()), str(scratch)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        check=False,
    )


def main() -> None:
    """Run the guard, in a process of its own: detach, wait, clean up."""
    if os.fork():
        return  # whoever started this continues, and the child is orphaned
    _wait_for_end(int(sys.argv[1]))
    clean_up(Path(sys.argv[2]))


def clean_up(scratch: Path) -> None:
    """End what is left of the slot in ``scratch``, undo its changes and remove its files.

    Its process must be gone.
    """
    deadline = time.monotonic() + PATIENCE_S
    while supervisors_of(scratch) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    process_tags.sweep_stale()
    for session in leftovers(str(scratch)):
        put_back(session, late=True)
    remove(scratch)
    process_tags.sweep_stale(socket_folders())


def remove(scratch: Path) -> None:
    """Delete a slot's directory, unless it holds originals of files that could not be put back.

    In that case, the next slot here tries again.
    """
    if not leftovers(str(scratch)):
        shutil.rmtree(scratch, ignore_errors=True)


def clean_up_after_others() -> None:
    """Clean up after slots on this machine whose guard was killed with them."""
    folder = Path(tempfile.gettempdir())
    for name in os.listdir(folder):
        if process_tags.is_of_dead_tuner(name, PREFIX):
            clean_up(folder / name)


def supervisors_of(scratch: Path) -> set[int]:
    """Running supervisors of sessions in ``scratch``, recognized by their log there."""
    found = set()
    for pid in procfs.all_pids():
        try:
            log = os.readlink(f"/proc/{pid}/fd/2")
        except OSError:
            continue
        if (
            log.startswith(str(scratch))
            and os.path.basename(log).startswith("supervisor.log")
            and procfs.alive(pid)
        ):
            found.add(pid)
    return found


def _wait_for_end(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # an old kernel
        while procfs.alive(pid):
            time.sleep(1.0)
        return
    select.select([process], [], [])
