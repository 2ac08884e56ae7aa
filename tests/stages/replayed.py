"""Whole runs on the replay executor: every stage is real, the job and its time are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from replay import Loss, ReplayExecutor, ReplayTable

from autotune.executors.base import Executor, FixedRun
from autotune.job.load import load_job
from autotune.job.spec import JobSpec
from autotune.journal import Journal
from autotune.journal import clock as real_clock
from autotune.report.terminal.plain import open_progress
from autotune.results import Result
from autotune.stages.context import RunContext
from autotune.tracking import open_tracker
from autotune.tuner import tune
from autotune_trials.protocol.messages import Record

SPACE = "{num_workers: [2], amp_dtype: [bfloat16], optimizer_impl: [fused]}"
CHANGES = Loss(changed_by={"amp_dtype": {"bfloat16": 0.2}})
Changed = Callable[[FixedRun, Record], Record]


class Machine(ReplayExecutor):
    """A replayed machine that can alter records, and keeps the requests it got."""

    def __init__(
        self, table: ReplayTable, alter: Changed = lambda request, record: record, seed: int = 0
    ) -> None:
        super().__init__(table, seed)
        self.alter, self.requests = alter, list[FixedRun]()

    def run_fixed(self, request: FixedRun) -> Record:
        self.requests.append(request)
        return self.alter(request, super().run_fixed(request))

    def confirmed(self) -> list[FixedRun]:
        return [r for r in self.requests if r.label.startswith("confirm")]


def job(folder: Path, space: str = SPACE, extra: str = "") -> JobSpec:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text(
        f"command: python train.py\nsearch_space: {space}\ntraces: none\ntracking: {{uri:"
        f" null}}\n{extra}"
    )
    return load_job(folder / "job.yaml")


def table(
    loss: Loss = CHANGES, factors: Mapping[str, Mapping[str, float]] | None = None, **fields: Any
) -> ReplayTable:
    speeds = {
        "num_workers": {"2": 0.7},
        "amp_dtype": {"bfloat16": 0.6},
        "optimizer_impl": {"fused": 0.9},
    }
    return replace(
        ReplayTable(
            cost_s=0.0005,
            factors=speeds if factors is None else factors,
            otherwise=1.0,
            loss=loss,
            machine={"cores": 4, "bfloat16": "native"},
        ),
        **fields,
    )


@contextmanager
def context_of(
    folder: Path,
    executor: Executor,
    spec: JobSpec | None = None,
    clock: Callable[[float], float] = lambda before: before,
    shown: str = "quiet",
) -> Iterator[RunContext]:
    """A run of the job on ``executor``, in ``folder / "run"``.

    ``clock``: the run's time in seconds, given that of earlier processes.
    """
    run_dir = folder / "run"
    journal = Journal(run_dir / "journal.jsonl", clock)
    with closing(journal), open_progress(shown, 60.0) as progress:
        yield RunContext(
            job(folder) if spec is None else spec,
            executor,
            journal,
            progress,
            open_tracker(None, "e", run_dir),
            run_dir,
        )


def run(
    folder: Path,
    machine: ReplayExecutor,
    spec: JobSpec | None = None,
    clock: Callable[[float], float] | None = None,
    shown: str = "quiet",
) -> Result:
    """Tune the job on ``machine``; ``clock``: as of :func:`context_of`, None: real time."""
    clock = real_clock() if clock is None else clock
    with context_of(folder, machine, spec, clock, shown) as context:
        return tune(context)
