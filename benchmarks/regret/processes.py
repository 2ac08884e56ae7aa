"""Fresh processes of a job with given knobs: cost per sample by the project's own estimator,
including epoch ends and start-up.
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
from autotune.job.configs import key_of, normalize
from autotune.job.load import load_job
from autotune.job.spec import JobSpec
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.stages.context import RunContext
from autotune.stages.observe import observe
from autotune.tracking import open_tracker
from autotune.verdict.disturbed import disturbed
from autotune.verdict.iterations import drop_start, mean_samples, warm_up_end
from autotune.verdict.timing import cost_per_sample, start_up_excess
from autotune_trials.protocol.messages import Record, Window

STEPS = 60  # minimum per window, after its warm-up
MOST_SECONDS = 90.0  # maximum per window, however slow
REMEASURED = 2  # repetitions of a disturbed run before it is accepted
Config = dict[str, Any]


class TimeUp(Exception):
    """The series has used up its minutes."""


@dataclass(frozen=True)
class Space:
    domains: Mapping[str, Sequence[Any]]
    defaults: Mapping[str, Any]
    spec: JobSpec

    def normalized(self, values: Mapping[str, Any]) -> Config:
        """Drop values that equal the job's own, or have no effect next to the others."""
        return normalize(
            {name: value for name, value in values.items() if name in self.defaults},
            self.defaults,
            self.spec.search_space,
        )


class Processes:
    """Runs the fresh processes of one job. A context manager."""

    def __init__(self, job: str, file: Path | None = None, records: Records | None = None) -> None:
        """``file``, ``records``: of a job that is not in jobs/."""
        self.job, self.records = job, records or Records(job)
        self.spec = load_job(file or job_file(job))
        found = self.records.find("space") or self._observe()
        self.space = Space(found["domains"], found["defaults"], self.spec)
        # one folder for all runs, so that they share compiled kernels
        self.executor = LocalExecutor(self.spec, BUILD / job / "runs")
        self.executor.loader_key = found["loader_key"]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.close()

    def _observe(self) -> dict[str, Any]:
        """The knobs that apply, as found by the tool's own first stage."""
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
        """Run one process; repeat it, up to REMEASURED times, if something else ran meanwhile. No
        method is charged for the repetitions.
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
    """Seconds per sample, including epoch ends, and start-up spread over PLANNED_STEPS. If
    something is still compiled at the end of the first epoch, that end is start-up, too.
    """
    start = warm_up_end(window.times_s)
    steady, (first, *later) = drop_start(window, start), window.turnovers_s or (0.0,)
    turnover_s = fmean(later or [first])
    start_up_s = start_up_excess(window, start) + max(first - turnover_s, 0.0)
    return cost_per_sample(steady, turnover_s=turnover_s) + start_up_s / (
        PLANNED_STEPS * mean_samples(steady)
    )


def _further(record: Record, seconds: float) -> int:
    """Total iterations needed by a window that is too short after warm-up; 0: it is long enough."""
    times = record.window.times_s
    steady = times[warm_up_end(times) :]
    missing = (
        max(STEPS - len(steady), math.ceil((seconds - math.fsum(steady)) / fmean(steady)))
        if steady
        else STEPS
    )
    return len(times) + missing if missing > 0 and math.fsum(times) < MOST_SECONDS else 0


class Series:
    """Consecutive runs of one search. Runs of an earlier process of the same search come from the
    records.

    ``done`` holds (seconds spent so far, configuration, log of the cost) of each run that finished
    in time.
    """

    def __init__(self, processes: Processes, name: str, limit_s: float, seconds: float) -> None:
        self.processes, self.name, self.limit_s, self.seconds = processes, name, limit_s, seconds
        self.spent_s = 0.0
        self.done: list[tuple[float, Config, float]] = []

    def log_cost(self, config: Config) -> float:
        """Log cost of a fresh process; inf: it fails.

        Raises:
            TimeUp: there is no time for it, or it finished too late.
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
    """Log costs of each configuration, one per round; every second round runs backwards, so that
    drift affects all equally.

    Raises:
        TimeUp: before the first round was complete.
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
