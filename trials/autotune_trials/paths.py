"""Every file name of a session, in one class.

<session>/session.json       what the agent is told
<session>/stdout.log, stderr.log
<session>/agent.log          the agent's own troubles
<session>/supervisor.log     the supervisor's, if it had any
<session>/markers/<what>-<pid>   empty files: how far each process of the command came
<session>/stacks-<pid>.txt   written by the hang watchdog
<session>/trace-<rank>.json.gz
<session>/nsight.nsys-rep, nsight.ncu-rep   what a tool around the command wrote
<session>/out/               {trial_dir}: where the job may write
<session>/written/           what it wrote elsewhere, until that is put back (see recorder.py)
<session>/written.json       and what became of it
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

MARKERS = (
    "python",
    "torch",
    "loader",
    "backward",
    "step",
)  # in the order a healthy job leaves them


@dataclass(frozen=True)
class SessionPaths:
    root: Path

    @property
    def config(self) -> Path:
        return self.root / "session.json"

    @property
    def stdout(self) -> Path:
        return self.root / "stdout.log"

    @property
    def stderr(self) -> Path:
        return self.root / "stderr.log"

    @property
    def agent_log(self) -> Path:
        return self.root / "agent.log"

    @property
    def supervisor_log(self) -> Path:
        return self.root / "supervisor.log"

    @property
    def markers(self) -> Path:
        return self.root / "markers"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def written(self) -> Path:
        return self.root / "written"

    @property
    def outcome(self) -> Path:
        return self.root / "written.json"

    def marker(self, what: str, pid: int | None = None) -> Path:
        return self.markers / f"{what}-{pid or os.getpid()}"

    def stacks(self, pid: int) -> Path:
        return self.root / f"stacks-{pid}.txt"

    def report(self, suffix: str) -> Path:
        return self.root / f"nsight{suffix}"

    def trace(self, rank: int) -> Path:
        return self.root / f"trace-{rank}.json.gz"


def sessions_of(run_dir: Path) -> list[Path]:
    """The directories of a run's sessions, the first one first."""
    folder = run_dir / "sessions"
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def new_session(run_dir: Path, label: str, ending: str = "") -> SessionPaths:
    """Make ``<run>/sessions/<number>-<label><ending>``, numbered on from those that are there."""
    import re  # the agent, too, imports this module

    numbers = [
        int(found[1]) for path in sessions_of(run_dir) if (found := re.match(r"(\d+)-", path.name))
    ]
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", label)[:60] or "session"
    root = run_dir / "sessions" / f"{max(numbers, default=0) + 1:04d}-{word}{ending}"
    root.mkdir(parents=True)
    return SessionPaths(root)


def publish(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path`` so that no reader ever sees half of it (write, flush, rename)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # also Ctrl-C: nothing half-written stays
        temporary.unlink(missing_ok=True)
        raise


def publish_copy(source: Path, path: Path) -> None:
    """Copy ``source`` to ``path`` so that no reader ever sees half of it, also if the disk is full."""
    import shutil  # the agent, too, imports this module

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append_whole(file: FileIO, line: bytes) -> None:
    """Append ``line`` to an unbuffered file and wait until the disk has it; or leave the file as it
    was.

    Half a line would spoil the next one as well, and a buffer would write the rest of it later, as
    if nothing had happened.

    Raises:
        OSError: the disk did not take it.
    """
    before = os.fstat(file.fileno()).st_size
    try:
        # a disk takes what it has room for, and says why not more when it is asked for the rest
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError as error:
        # where not even that can be written, whoever opens the file next finds no end of a line
        with suppress(OSError):
            file.truncate(before)
        raise OSError(error.errno, error.strerror, file.name) from error
