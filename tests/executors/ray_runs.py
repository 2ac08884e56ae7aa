"""Runs on a Ray cluster, for the tests in this folder: the job is simulated, Ray and everything
else is real.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from autotune.executors.cluster import guard
from autotune.executors.cluster.executor import RayExecutor
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal.plain import QuietProgress
from autotune.stages.context import RunContext
from autotune.tracking import open_tracker
from autotune_trials.supervisor import process_tags, procfs

T = TypeVar("T")
HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
PYTHONPATH = os.pathsep.join(
    str(REPO / folder) for folder in (".", "trials", "search_spaces", "tests", "tests/sessions")
)
WIDE = "{num_workers: [1, 2, 4], amp_dtype: [bfloat16], optimizer_impl: [fused, foreach]}"


def make_job(
    folder: Path, ray: str, *, words: str = "", space: str = WIDE, extra: str = "", trials: int = 8
) -> Path:
    """A job.yaml next to the simulated job; ``ray``: the executor's settings."""
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
    """Records the messages to the user."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.notes.append(text)


@contextmanager
def bench_on(path: Path) -> Iterator[RunContext]:
    """The context of a run in ``run`` next to the job file; its slots must leave nothing behind."""
    run_dir, began = path.parent / "run", time.monotonic()
    journal, progress = (
        Journal(run_dir / "journal.jsonl", lambda before: before + time.monotonic() - began),
        Heard(),
    )
    try:
        executor = RayExecutor(load_job(path), run_dir, say=progress.note, warn=progress.warning)
        try:
            yield RunContext(
                executor.spec,
                executor,
                journal,
                progress,
                open_tracker(None, "e", run_dir),
                run_dir,
            )
        finally:
            executor.close()
    finally:
        journal.close()
    assert left_behind(processes_of(executor)) == []


def meanwhile(work: Callable[[], T], condition: Callable[[], object], act: Callable[[], None]) -> T:
    """The result of ``work``; meanwhile calls ``act`` once, as soon as ``condition`` holds.

    The work runs in another thread: Ray starts nodes in the main thread only.
    """
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        while not condition():
            assert not future.done(), (
                f"what was to happen meanwhile never did: {future.exception()}"
            )
            time.sleep(0.02)
        act()
        return future.result()


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def guarded() -> set[int]:
    """The processes of the slots that exist now."""
    found = set()
    for pid in procfs.all_pids():
        with suppress(OSError):  # it ends while we look
            match = re.search(
                re.escape(guard.PREFIX) + r"\d+-(\d+)-",
                Path(f"/proc/{pid}/cmdline").read_text(errors="replace"),
            )
            found |= {int(match[1])} if match else set()
    return found


def processes_of(executor: RayExecutor) -> set[int]:
    """The processes of all slots of this run."""
    return pids_in(executor.about())


def pids_in(environment: Mapping[str, Any]) -> set[int]:
    """The same, from result.json."""
    return {pid for slot in environment["executor"]["slots"].values() for pid in slot["pids"]}


def left_behind(pids: set[int], patience_s: float = 25.0) -> list[str]:
    """What slots in processes ``pids`` leave behind after a while: processes, directories, sockets,
    shared memory.
    """
    assert pids
    deadline = time.monotonic() + patience_s
    while (found := [*_processes(pids), *_files(pids)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _theirs(text: str, pids: set[int]) -> bool:
    return any(f"-{pid}-" in text for pid in pids)


def _processes(pids: set[int]) -> Iterator[str]:
    """Recognized by their session's tag, or by the slot's directory in their arguments (guard) or
    the target of their stderr (supervisor).
    """
    for pid in procfs.all_pids():
        try:
            line = (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
            errors = os.readlink(f"/proc/{pid}/fd/2")
        except OSError:
            continue
        if procfs.alive(pid) and (
            _theirs(process_tags.mark_of(pid), pids)
            or any(guard.PREFIX in t and _theirs(t, pids) for t in (line, errors))
        ):
            yield f"{pid}: {line}"


def _files(pids: set[int]) -> Iterator[str]:
    for folder in (Path(tempfile.gettempdir()), Path("/dev/shm")):
        yield from (
            str(entry)
            for entry in folder.iterdir()
            if entry.name.startswith("autotune-") and _theirs(entry.name, pids)
        )
