"""The paths of all files of a session, in one class.

<session>/session.json       instructions for the agent
<session>/stdout.log, stderr.log
<session>/agent.log          the agent's own errors
<session>/supervisor.log     the supervisor's errors, if any
<session>/markers/<what>-<pid>   empty files: how far each process of the command came, and what
                             happened to it
<session>/stacks-<pid>.txt   written by the hang watchdog
<session>/trace-<rank>.json.gz
<session>/nsight.nsys-rep, nsight.ncu-rep   report of a profiler wrapped around the command
<session>/out/               {trial_dir}: where the job may write
<session>/written/           ledger of its other writes, until they are undone (see recorder.py); a
                             link, if it shares that of the other session of its pair
<session>/written.json       the outcome of undoing it
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

# in the order a healthy job leaves them
MARKERS = ("python", "torch", "loader", "backward", "step")


class SessionPaths:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "session.json"
        self.stdout = root / "stdout.log"
        self.stderr = root / "stderr.log"
        self.agent_log = root / "agent.log"
        self.supervisor_log = root / "supervisor.log"
        self.markers = root / "markers"
        self.out = root / "out"
        self.written = root / "written"
        self.outcome = root / "written.json"

    def stacks(self, pid: int) -> Path:
        return self.root / f"stacks-{pid}.txt"

    def report(self, suffix: str) -> Path:
        return self.root / f"nsight{suffix}"

    def trace(self, rank: int) -> Path:
        return self.root / f"trace-{rank}.json.gz"


def sessions_of(run_dir: Path) -> list[Path]:
    """The session directories of a run, oldest first."""
    folder = run_dir / "sessions"
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def new_session(run_dir: Path, label: str, ending: str = "") -> SessionPaths:
    """Create ``<run>/sessions/<number>-<label><ending>`` with the next free number."""
    numbers = [
        int(found[1]) for path in sessions_of(run_dir) if (found := re.match(r"(\d+)-", path.name))
    ]
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", label)[:60] or "session"
    root = run_dir / "sessions" / f"{max(numbers, default=0) + 1:04d}-{word}{ending}"
    root.mkdir(parents=True)
    return SessionPaths(root)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file, renamed to ``path`` at the end; removed if anything fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C too: leave no half-written file behind
        temporary.unlink(missing_ok=True)
        raise


def publish(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path`` atomically: write a temporary file, flush, rename."""
    with _replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def write_where_told(path: Path, content: str) -> None:
    """Publish ``content`` at a path that the user named.

    The target of a symlink is replaced; a pipe or a device is written to.
    """
    if path.exists() and not path.is_file():
        path.write_text(content, encoding="utf-8")
    else:
        publish(Path(os.path.realpath(path)), content)


def publish_copy(source: Path, path: Path) -> None:
    """Copy ``source`` to ``path`` atomically; a full disk leaves no partial file behind."""
    with _replacing(path) as temporary:
        shutil.copyfile(source, temporary)


def append_whole(file: FileIO, line: bytes) -> None:
    """Append ``line`` to an unbuffered file and fsync it, or leave the file unchanged.

    A partial line would corrupt the next one too, and a buffered file would write the missing part
    later, as if nothing had happened.

    Raises:
        OSError: the write failed.
    """
    before = os.fstat(file.fileno()).st_size
    try:
        # a nearly full disk first writes what fits; only the next write raises the error
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError as error:
        # if truncating fails too, the next process to open the file finds an unterminated line
        with suppress(OSError):
            file.truncate(before)
        raise OSError(error.errno, error.strerror, file.name) from error
