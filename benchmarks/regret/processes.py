"""Fresh processes of a job with given knobs: what each costs a sample, by the project's own
estimator, epoch ends and start-up included.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from jobs_table import BUILD, PLANNED_STEPS, job_file
from records import Records

from autotune.executors.base import FixedRun, SessionFailed
from autotune.executors.local import LocalExecutor
from autotune.job.configs import key_of, normalise
from autotune.job.load import load_job
from autotune.job.spec import JobSpec
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.stages.context import RunContext
from autotune.stages.observe import observe
from autotune.tracking import open_tracker
from autotune.verdict.timing import (
    cost_per_sample,
    disturbed,
    drop_start,
    mean_samples,
    start_up_excess,
    warm_up_end,
)
from autotune_trials.protocol.messages import Record, Window

STEPS = 60  # of a window after its warm-up, at least
MOST_SECONDS = 90.0  # of a window, were it ever so slow
REMEASURED = 2  # times that a disturbed run is made again before it is taken as it is
Config = dict[str, Any]


class TimeUp(Exception):
    """The series has used its minutes."""


@dataclass(frozen=True)
class Space:
    domains: Mapping[str, Sequence[Any]]
    defaults: Mapping[str, Any]
    spec: JobSpec

    def normalised(self, values: Mapping[str, Any]) -> Config:
        """Without what equals the job's own value, or means nothing beside the rest."""
        return normalise(
            {name: value for name, value in values.items() if name in self.defaults},
            self.defaults,
            self.spec.search_space,
        )


class Processes:
    """Where the fresh processes of one job run. A context manager."""

    def __init__(self, job: str) -> None:
        self.job, self.records = job, Records(job)
        self.spec = load_job(job_file(job))
        found = self.records.find("space") or self._observe()
        self.space = Space(found["domains"], found["defaults"], self.spec)
        # one place for all: compiled kernels are kept there
        self.executor = LocalExecutor(self.spec, BUILD / job / "runs")
        self.executor.loader_key = found["loader_key"]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.close()

    def _observe(self) -> dict[str, Any]:
        """The knobs that apply, as the tool's own first stage finds them."""
        with tempfile.TemporaryDirectory() as name:
            folder, begin = Path(name), time.monotonic()
            journal = Journal(
                folder / "journal.jsonl", lambda before: before + time.monotonic() - begin
            )
            with (
                closing(journal),
                closing(LocalExecutor(self.spec, folder)) as executor,
                open_progress("quiet", 0) as progress,
            ):
                seen = observe(
                    RunContext(
                        self.spec,
                        executor,
                        journal,
                        progress,
                        open_tracker(None, self.job, folder, True),
                        folder,
                    )
                )
        domains = {name: list(values) for name, values in seen.domains.items()}
        machine = (
            f"{seen.machine.cores} cores ({seen.machine.cpu_model}), torch"
            f" {seen.machine.torch_version}"
        )
        return self.records.append(
            "space",
            domains=domains,
            defaults=dict(seen.defaults),
            withdrawn=dict(seen.withdrawn),
            machine=machine,
            loader_key=seen.job.loader.key if seen.job.loader else "",
            bottleneck=seen.bottleneck,
            iteration_s=seen.anatomy.iteration_s,
        )

    def run(self, config: Config, seconds: float, label: str) -> dict[str, Any]:
        """One process; once more, up to REMEASURED times, if something else ran meanwhile, which no
        method is charged for.
        """
        request = FixedRun(
            config,
            0,
            steps=STEPS,
            min_seconds=seconds,
            max_seconds=MOST_SECONDS,
            label=label,
            more=lambda record: _further(record, seconds),
        )
        for attempt in range(REMEASURED + 1):
            begin, cost, error, spoilt = time.monotonic(), None, "", None
            try:
                window = self.executor.run_fixed(request).window
                cost, spoilt = cost_of(window), disturbed(window)
            except SessionFailed as failure:
                error = f"{failure.kind}: {failure.detail}"[:300]
            if spoilt is None:
                break
            print(f"{label}: {spoilt}{'; again' if attempt < REMEASURED else ''}", flush=True)
        return {
            "config": config,
            "cost_s": cost,
            "wall_s": round(time.monotonic() - begin, 2),
            "error": error or spoilt or "",
        }


def cost_of(window: Window) -> float:
    """Seconds a sample, with epoch ends, and with start-up spread over PLANNED_STEPS. A first
    epoch's end at which something is still being compiled is start-up, too."""
    start = warm_up_end(window.times_s)
    steady, (first, *later) = drop_start(window, start), window.turnovers_s or (0.0,)
    turnover_s = fmean(later or [first])
    start_up_s = start_up_excess(window, start) + max(first - turnover_s, 0.0)
    return cost_per_sample(steady, turnover_s=turnover_s) + start_up_s / (
        PLANNED_STEPS * mean_samples(steady)
    )


def _further(record: Record, seconds: float) -> int:
    """How many iterations a window should have in all that has too little left after warm-up; 0: it
    is long enough.
    """
    times = record.window.times_s
    steady = times[warm_up_end(times) :]
    missing = (
        max(STEPS - len(steady), math.ceil((seconds - math.fsum(steady)) / fmean(steady)))
        if steady
        else STEPS
    )
    return len(times) + missing if missing > 0 and math.fsum(times) < MOST_SECONDS else 0


class Series:
    """Runs made one after the other by one search. What an earlier process of it has measured is
    taken from the records.

    ``done`` holds (seconds spent until then, configuration, log of the cost) of each run that came
    in time.
    """

    def __init__(self, processes: Processes, name: str, limit_s: float, seconds: float) -> None:
        self.processes, self.name, self.limit_s, self.seconds = processes, name, limit_s, seconds
        self.spent_s = 0.0
        self.done: list[tuple[float, Config, float]] = []

    def log_cost(self, config: Config) -> float:
        """inf: such a process fails.

        Raises:
            TimeUp: there is no time for it, or it came too late.
        """
        if self.spent_s >= self.limit_s:
            raise TimeUp
        key = f"{self.name}/{len(self.done)}"
        run = self.processes.records.find("run", key)
        if run is None:
            run = self.processes.records.append(
                "run", key, **self.processes.run(config, self.seconds, self.name)
            )
            print(f"{key}: {config or 'baseline'}: {said(run)}", flush=True)
        elif run["config"] != config:
            raise SystemExit(
                f"{self.processes.records.path}: {key} was made by another version of this search;"
                " remove its lines to search again"
            )
        self.spent_s += run["wall_s"]
        if self.spent_s > self.limit_s:
            raise TimeUp
        cost = math.log(run["cost_s"]) if run["cost_s"] else math.inf
        self.done.append((self.spent_s, config, cost))
        return cost


def digest(configs: Sequence[Config]) -> str:
    return hashlib.sha256("\n".join(key_of(c) for c in configs).encode()).hexdigest()[:8]


def said(run: Mapping[str, Any]) -> str:
    return f"{1e6 * run['cost_s']:.1f} us" if run["cost_s"] else run["error"]


def in_turns(series: Series, configs: Sequence[Config], rounds: int) -> list[list[float]]:
    """Log costs of each configuration, one a round; every second round goes backwards, so that a
    drift hits all alike.

    Raises:
        TimeUp: before one round was whole.
    """
    found: list[list[float]] = []
    try:
        for number in range(rounds):
            order = list(range(len(configs)))[:: 1 if number % 2 == 0 else -1]
            costs = {i: series.log_cost(configs[i]) for i in order}
            found.append([costs[i] for i in range(len(configs))])
    except TimeUp:
        if not found:
            raise
    return [list(costs) for costs in zip(*found, strict=True)]
