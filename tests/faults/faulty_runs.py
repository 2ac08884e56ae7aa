"""Small real jobs with a planted gain, what is done to them, and what their runs must satisfy
afterwards.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import Job, make_job

from autotune_trials.supervisor import procfs

# Reading a batch sleeps, which a worker hides: twice as fast, even on a busy machine.
READS = """\
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        time.sleep({reading_s})
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(16, generator=generator)
        return x, x.sum() * 0.5

if __name__ == "__main__":
    torch.manual_seed(0)
    {at_start}
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Slow(), batch_size=8, shuffle=True)
    for step, (x, y) in enumerate(batch for _ in range(1000) for batch in loader):
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.008)
        {every_step}
"""
# The smallest run that ends with a verdict: one trial and the proof.
PROVEN = """\
name: job
command: {command}
traces: none
tracking: {{uri: null}}
search_space: {{num_workers: [0, 2]}}
budget: {{minutes: 6, trials: 1}}
convergence: {{steps: 120}}
"""
# One trial that clearly loses, because workers read more slowly: a search, and the verdict that
# nothing is worth changing.
SEARCHED = PROVEN.replace("num_workers: [0, 2]", "num_workers: [0, 1]")
GAINING_S, LOSING_S = "0.001", "0.008 if torch.utils.data.get_worker_info() else 0.001"


def faulty_job(
    folder: Path,
    at_start: str = "pass",
    every_step: str = "pass",
    text: str = SEARCHED,
    command: str = "python mine.py",
) -> Job:
    """A job whose script runs ``at_start`` before training and ``every_step`` after each step
    (Python lines).
    """
    job = make_job(folder, command, text)
    lines = {
        "at_start": at_start.replace("\n", "\n    "),
        "every_step": every_step.replace("\n", "\n        "),
    }
    reading_s = GAINING_S if text == PROVEN else LOSING_S
    (folder / "mine.py").write_text(READS.format(**lines, reading_s=reading_s), encoding="utf-8")
    return job


def trials_of(job: Job) -> list[dict[str, Any]]:
    return [e["data"] for e in whole_entries(job) if e["kind"] == "trial"]


def whole_entries(job: Job, run_dir: Path | None = None) -> list[dict[str, Any]]:
    """The journal as a reader must take it: an incomplete last line is ignored."""
    path = (run_dir or job.run_dir) / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


# ------------------------------------------------------------------------------------------ killing


def tree_of(process: subprocess.Popen[str]) -> dict[int, str]:
    """The processes below the tuner, each with its command line."""
    found = {}
    for pid in procfs.descendants(process.pid):
        try:
            found[pid] = (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
        except OSError:
            continue
    return found


def parent_of(pid: int) -> int:
    stat = procfs.stat_of(pid)
    return stat[1] if stat else 0


def the_tuner(process: subprocess.Popen[str]) -> list[int]:
    return [process.pid]


def the_job(process: subprocess.Popen[str]) -> list[int]:
    """The user's command: the child of the supervisor."""
    return [
        pid
        for pid, line in tree_of(process).items()
        if "mine.py" in line
        and "autotune_trials.supervisor.supervisor" not in line
        and not _is_worker(pid)
    ]


def one_rank(process: subprocess.Popen[str]) -> list[int]:
    ranks = [
        pid
        for pid, line in tree_of(process).items()
        if "mine.py" in line and "torchrun" not in line and not _is_worker(pid)
    ]
    return ranks[-1:]


def a_worker(process: subprocess.Popen[str]) -> list[int]:
    """A DataLoader worker: forked from the job, so it has the job's command line."""
    return [pid for pid, line in tree_of(process).items() if "mine.py" in line and _is_worker(pid)][
        :1
    ]


def _is_worker(pid: int) -> bool:
    try:
        line = Path(f"/proc/{parent_of(pid)}/cmdline").read_bytes()
    except OSError:
        return False
    return b"mine.py" in line and b"torchrun" not in line


@dataclass
class Killer:
    """Kills ``whom`` with SIGKILL at random moments of a run.

    ``paced``: wait until something finishes before killing again. Work that is killed three times
    in a row is itself blamed and given up.
    """

    whom: Callable[[subprocess.Popen[str]], list[int]]
    random: random.Random
    between_s: tuple[float, float]
    left: int
    done: int = 0
    paced: bool = False

    def until_the_end(self, job: Job, process: subprocess.Popen[str], timeout_s: float) -> None:
        """Return when the run has ended, by itself or because of the kills."""
        deadline = time.monotonic() + timeout_s
        while self.left and process.poll() is None:
            finished = len(whole_entries(job))
            while (
                self.paced
                and self.done
                and len(whole_entries(job)) == finished
                and process.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.05)
            moment = time.monotonic() + self.random.uniform(*self.between_s)
            while time.monotonic() < moment and process.poll() is None:
                time.sleep(0.02)
            while (
                not (victims := self.whom(process))
                and process.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.02)
            for pid in victims if process.poll() is None else ():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.left, self.done = self.left - 1, self.done + 1
                break
        process.communicate(timeout=max(1.0, deadline - time.monotonic()))


def killed_and_resumed(
    job: Job, killer: Killer, timeout_s: float, most_starts: int = 60
) -> list[int]:
    """Repeat the command until it succeeds; returns the exit codes.

    Checks that no finished work is lost in between.
    """
    codes: list[int] = []
    deadline = time.monotonic() + timeout_s
    before: list[dict[str, Any]] = []
    while not codes or codes[-1] != 0:
        assert len(codes) < most_starts and time.monotonic() < deadline, f"no end: {codes}"
        process = job.start()
        killer.until_the_end(job, process, deadline - time.monotonic())
        codes.append(process.returncode)
        now = whole_entries(job)
        assert now[: len(before)] == before, "what was finished is kept as it was"
        before = now
    return codes


def counted_once(job: Job) -> None:
    """Check that no finished work is in the journal twice, and that the result has all trials."""
    entries = [
        (e["kind"], e["key"])
        for e in whole_entries(job)
        if e["kind"] in ("study", "observation", "trial", "run", "search-done", "finished")
    ]
    assert len(set(entries)) == len(entries), "counted twice"
    trials = trials_of(job)
    assert [t["number"] for t in trials] == list(range(len(trials)))
    assert [t["config"] for t in job.result["trials"]] == [t["config"] for t in trials]
