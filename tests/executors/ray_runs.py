"""Runs on a Ray cluster, for the tests in this folder: the job is played, Ray and everything else is real."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.executors.cluster.executor import RayExecutor
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal import QuietProgress
from autotune.stages.bench import Bench
from autotune.tracking import open_tracker
from autotune_trials import warden

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
PYTHONPATH = os.pathsep.join(map(str, (REPO, REPO / "trials", REPO / "search_spaces", REPO / "tests" / "sessions")))
WIDE = "{num_workers: [1, 2, 4], amp_dtype: [bfloat16], optimizer_impl: [fused, foreach]}"


def make_job(folder: Path, ray: str, *, words: str = "", space: str = WIDE, extra: str = "", trials: int = 8) -> Path:
    """A job.yaml beside the played job; ``ray``: the executor's settings."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "played_job.py", folder)
    text = f"""\
name: played
command: python played_job.py {words}
env: {{PYTHONPATH: "{PYTHONPATH}"}}
search_space: {space}
executor: {{ray: {{{ray}}}}}
traces: none
tracking: {{uri: null}}
budget: {{minutes: 5, trials: {trials}}}
convergence: {{steps: 60}}
{extra}"""
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


class Heard(QuietProgress):
    """Remembers what a person would have been told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.notes.append(text)


@contextmanager
def bench_on(path: Path) -> Iterator[Bench]:
    """The bench of a run in ``run`` beside the job file; all of it is gone afterwards."""
    run_dir, began = path.parent / "run", time.monotonic()
    journal, progress = Journal(run_dir / "journal.jsonl", lambda before: before + time.monotonic() - began), Heard()
    try:
        executor = RayExecutor(load_job(path), run_dir, say=progress.note, warn=progress.warning)
        try:
            yield Bench(executor.spec, executor, journal, progress, open_tracker(None, "e", run_dir), run_dir)
        finally:
            executor.close()
    finally:
        journal.close()


@contextmanager
def meanwhile(condition: Callable[[], object], act: Callable[[], None]) -> Iterator[None]:
    """``act`` is done once, as soon as ``condition`` holds, while the block runs."""
    over, done = threading.Event(), threading.Event()

    def wait() -> None:
        while not over.is_set():
            if condition():
                act()
                done.set()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert done.is_set(), "what was to happen meanwhile never did"


def left_over(folder: Path) -> dict[int, str]:
    """Processes of sessions, wardens or played jobs that still live, after a moment's patience."""
    deadline = time.monotonic() + 25.0
    while (found := _of_sessions()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _of_sessions() -> dict[int, str]:
    found = {}
    for pid in warden.all_pids():
        mark = warden.mark_of(pid)
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark or "autotune-slot-" in line or warden.__file__ in line:
            found[pid] = line
    return {pid: line for pid, line in found.items() if pid != os.getpid() and warden.alive(pid)}


def scratch_left() -> list[str]:
    """Directories of slots, sockets and preparations that were not removed, after a moment's patience."""
    deadline = time.monotonic() + 15.0
    while (found := _scratch()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _scratch() -> list[str]:
    import tempfile

    folders = (Path(tempfile.gettempdir()), Path("/dev/shm"))
    return sorted(str(entry) for folder in folders for entry in folder.iterdir() if entry.name.startswith("autotune-"))
