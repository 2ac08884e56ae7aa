"""OBSERVE on real small jobs: the observed reader decides how many workers are tried, and what is
called the bottleneck.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from replay import Loss
from replayed import Machine, job, run, table

from autotune.executors.local import LocalExecutor
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.results import Observation
from autotune.stages.context import RunContext
from autotune.stages.measuring import fresh
from autotune.stages.observe import copy_share, observe
from autotune.tracking import open_tracker
from autotune.words import factor_words
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Block, BlockReport, Window

JOB = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
item, workers, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
torch.set_num_threads(1)
class Items(Dataset):
    def __len__(self):
        return length
    def __getitem__(self, i):
        if item == "waits":
            time.sleep(0.003)
        elif item == "computes":
            began = time.thread_time()
            while time.thread_time() - began < 0.001:
                sum(range(100))
        return torch.full((8,), float(i % 7)), i % 3
loader = DataLoader(Items(), batch_size=16, shuffle=True, num_workers=workers)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """These results hold on a busy machine, too, so nothing needs to be measured again."""
    monkeypatch.setattr(fresh, "MIN_SECONDS", 0.5)
    monkeypatch.setattr(fresh, "REMEASURED", 0)


def observed(folder: Path, item: str, workers: int, length: int = 16_000) -> Observation:
    (folder / "train.py").write_text(JOB)
    (folder / "job.yaml").write_text(
        f"command: {sys.executable} train.py {item} {workers} {length}\nsearch_space:"
        " {num_workers: auto, persistent_workers: auto}\ntraces: none\ntracking: {uri:"
        " null}\nconvergence: {steps: 60}\n"
    )
    spec, run_dir = load_job(folder / "job.yaml"), folder / "run"
    started = time.monotonic()
    journal = Journal(run_dir / "journal.jsonl", lambda before: before + time.monotonic() - started)
    with (
        closing(journal),
        open_progress("quiet", 60.0) as progress,
        closing(LocalExecutor(spec, run_dir)) as executor,
    ):
        tracker = open_tracker(None, "e", run_dir)
        context = RunContext(spec, executor, journal, progress, tracker, run_dir)
        found = observe(context)
        assert observe(context) == found, "a resumed run finds the same in its journal"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_waits_is_tried_with_workers_far_beyond_the_cores(
    tmp_path: Path, workers: int
) -> None:
    found = observed(tmp_path, "waits", workers)
    assert (
        found.job.reader is not None
        and found.job.reader.cpu_share < 0.3
        and found.job.reader.fetch_s > 0.048
    )
    assert found.bottleneck == "loader"
    assert 32 in found.domains["num_workers"] and found.machine.cores < 32
    assert (
        found.job.loader is not None
        and found.job.loader.batch_tensors == 2
        and found.job.loader.batch_mib > 0
    )
    assert found.job.process.most_files > found.job.process.open_files > 0
    assert found.job.process.host == os.uname().nodename


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_computes_keeps_the_cores(tmp_path: Path, workers: int) -> None:
    found = observed(tmp_path, "computes", workers)
    assert found.job.reader is not None and found.job.reader.cpu_share > 0.8
    assert found.bottleneck == "loader"
    assert max(found.domains["num_workers"]) == max(found.machine.cores, workers)  # type: ignore[type-var]


@pytest.mark.slow
def test_short_epochs_are_named_by_their_ends(tmp_path: Path) -> None:
    found = observed(tmp_path, "ready", 2, length=5 * 16)
    assert found.bottleneck == "epoch ends"
    assert "every 5 iterations, where its workers are restarted" in found.bottleneck_why
    assert (
        found.ceiling is not None
        and found.ceiling > 2
        and factor_words(found.ceiling) in found.bottleneck_why
    )
    assert max(found.domains["num_workers"]) <= 5, "a sixth worker would never have a batch"  # type: ignore[operator]


def test_what_needs_workers_is_not_searched_where_their_number_is_not(tmp_path: Path) -> None:
    space = "{prefetch_factor: [4], persistent_workers: [true], amp_dtype: [bfloat16]}"
    found = run(tmp_path, Machine(table(Loss())), job(tmp_path, space)).observation
    assert list(found.domains) == ["amp_dtype"]
    assert found.withdrawn["prefetch_factor"] == (
        "it has no effect with num_workers=0, which is not searched"
    )


def test_the_share_of_copies_is_that_of_an_iteration_that_waits_for_no_batch() -> None:
    window = Window((0.2,) * 4, (8.0,) * 4, {"to_device": 0.1, "forward": 0.3, "data": 0.4})
    assert copy_share([window, window]) == pytest.approx(0.25)
    assert copy_share([Window((0.1,), (1.0,), {})]) == 0.0, "of a job whose phases are not known"


class Paused(Machine):
    """Other programs pause during the first block with batches from memory."""

    ceilings = 0

    def report(self, block: Block, config: Config) -> BlockReport:
        report = super().report(block, config)
        if not block.cached_batches:
            return report
        self.ceilings += 1
        assert report.window is not None
        times_s = report.window.times_s
        fast = tuple(t / 2 for t in times_s) if self.ceilings == 1 else times_s
        return replace(report, window=replace(report.window, times_s=fast))


def test_a_ceiling_that_waiting_does_not_explain_is_measured_twice(tmp_path: Path) -> None:
    machine = Paused(table(phases={"data": 0.03, "forward": 0.5, "backward": 0.47}, factors={}))
    observation = run(tmp_path, machine, job(tmp_path)).observation
    assert machine.ceilings == 2
    assert observation.bottleneck == "compute"
    assert observation.ceiling is not None and observation.ceiling < 1.15
