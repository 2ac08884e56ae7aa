"""What a long search costs the tuner itself: 1000 trials at no more than 50 ms of its own time
each, with memory that does not grow with them.

    python benchmarks/scale.py [--trials 1000] [--no-mlflow] [--write]   --write: update scale.md

Then sends the record of a search a fifth as long to an MLflow server on this machine, to see how
long a server takes. scale_nodes.py measures what several machines gain.

The stages, the proposer (Optuna), the journal, the spool and MLflow (sqlite) are real; the job and
its time are replayed, so all measured time is the tuner's. The time the replay itself takes to
generate its figures is subtracted. Every trial can still find a small gain, and the search is told
not to stop on a plateau, so that it reaches its last trial.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from replay import ReplayExecutor, ReplayTable  # noqa: E402

from autotune.job.load import load_job  # noqa: E402
from autotune.job.spec import JobSpec  # noqa: E402
from autotune.journal import Journal  # noqa: E402
from autotune.report.terminal.plain import open_progress  # noqa: E402
from autotune.search import proposer, sampler_stopping  # noqa: E402
from autotune.stages.context import RunContext  # noqa: E402
from autotune.stages.observe import observe  # noqa: E402
from autotune.stages.search import search  # noqa: E402
from autotune.tracking import open_tracker, records, sync  # noqa: E402
from autotune.tracking.stores import resolve  # noqa: E402
from autotune.tracking.ui import free_port, server_command  # noqa: E402
from autotune_spaces.base import Config  # noqa: E402
from autotune_trials.protocol.messages import Block, BlockReport, dump  # noqa: E402

MOST_MS, MOST_GROWN_MIB_A_THOUSAND = 50.0, 64.0
TENTHS = 10
JOB = """\
name: scale
command: python train.py
search_space:
  preset: cpu
  batch_size: {values: [8, 16, 32, 64, 128, 256], lr_scaling: none}
budget: {minutes: 10000, trials: TRIALS}
traces: none
search: tpe
"""
# One factor per value; the best values together are 4 times as fast as the original job.
FACTORS = {
    "num_workers": {"1": 0.9, "2": 0.8, "4": 0.75, "8": 0.85},
    "amp_dtype": {"bfloat16": 0.7},
    "optimizer_impl": {"fused": 0.9, "foreach": 0.93},
    "batch_size": {"8": 2.0, "16": 1.4, "64": 0.85, "128": 0.8, "256": 0.78},
    "intra_op_threads": {"1": 1.8, "2": 1.3, "4": 1.05},
    "matmul_precision": {"high": 0.98, "medium": 0.97},
    "channels_last": {"true": 0.97},
    "prefetch_factor": {"4": 0.99, "8": 0.995},
    "compile_mode": {"default": 0.9, "reduce-overhead": 0.95, "max-autotune": 0.92},
}


@dataclass
class Meter:
    """Seconds spent in one part of the tuner, in total and in the current trial."""

    total_s: float = 0.0
    calls: int = 0
    of_trials: list[float] = field(default_factory=list)
    _before_s: float = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.total_s += time.perf_counter() - began
                self.calls += 1

        return timed

    def next_trial(self) -> None:
        self.of_trials.append(self.total_s - self._before_s)
        self._before_s = self.total_s


class Replayed(ReplayExecutor):
    """The replayed machine; ``meter`` times the generation of reports and their measuring."""

    def __init__(self, table: ReplayTable, meter: Meter) -> None:
        super().__init__(table, seed=1)
        self.report_bytes = 0
        self.report = meter.around(self._weighed)  # type: ignore[method-assign]

    def _weighed(self, block: Block, config: Config) -> BlockReport:
        report = ReplayExecutor.report(self, block, config)
        self.report_bytes += len(dump(report))
        return report


@dataclass
class Marks:
    """Measurements after each trial."""

    began_s: float = 0.0
    cpu_s: float = 0.0  # of this process, from the first trial to the last
    ended_s: list[float] = field(default_factory=list)
    resident_mib: list[float] = field(default_factory=list)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@contextmanager
def no_plateau() -> Iterator[None]:
    before = sampler_stopping.PLATEAU_TRIALS
    sampler_stopping.PLATEAU_TRIALS = 10**9
    try:
        yield
    finally:
        sampler_stopping.PLATEAU_TRIALS = before


NOTES = """
## What misses its bar

The bar of 50 ms is missed since the model judges what samplers propose (2026-11-28): after each
trial it says of all configurations how fast they are, which takes longer the more there are. A
trial of a real job takes two seconds and more; with a hundred trials the tuner takes 40 ms for one.
"""


@dataclass
class Figures:
    """Results of ``trials`` trials; ``server_ms``: to send one to a server, 0 if not measured."""

    trials: int
    tuner_ms: list[float]  # while the search runs
    parts_ms: dict[str, float]
    resident_mib: list[float]
    files_bytes: dict[str, int]
    requests: int
    blocks: float  # per trial
    report_bytes: float  # per block
    server_ms: float = 0.0
    cpu_ms: float = 0.0  # per trial, without the replay's own


def measure(trials: int, mlflow: bool, folder: Path) -> Figures:
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text(JOB.replace("TRIALS", str(trials)))
    spec = load_job(folder / "job.yaml", check=False)
    meters = {name: Meter() for name in ("replay", "proposer", "journal", "tracking")}
    marks, run_dir = Marks(), folder / "runs" / "scale"
    executor = run(spec, run_dir, mlflow, meters, marks)
    walls = [b - a for a, b in itertools.pairwise([marks.began_s, *marks.ended_s])]
    own = [1e3 * (wall - replay) for wall, replay in zip(walls, meters["replay"].of_trials)]
    tracking, *during = (
        1e3 * meters[name].total_s / len(walls) for name in ("tracking", "proposer", "journal")
    )
    parts = dict(zip(("proposer", "journal"), during, strict=True))
    parts["all else"] = statistics.fmean(own) - sum(during)
    parts["tracking, when the search ends"] = tracking
    return Figures(
        len(walls),
        own,
        parts,
        marks.resident_mib,
        sizes(run_dir),
        REQUESTS.calls,
        meters["replay"].calls / len(walls),
        executor.report_bytes / meters["replay"].calls,
        cpu_ms=1e3 * (marks.cpu_s - meters["replay"].total_s) / len(walls),
    )


REQUESTS = Meter()


def count_requests() -> None:
    """Count the calls of MLflow's client: each would be a request to an MLflow server."""
    from mlflow import MlflowClient

    for name in (
        "search_runs",
        "create_run",
        "log_batch",
        "set_terminated",
        "update_run",
        "get_run",
        "get_experiment_by_name",
    ):
        setattr(MlflowClient, name, REQUESTS.around(getattr(MlflowClient, name)))


def measure_server(trials: int, folder: Path) -> float:
    """Milliseconds per trial to send a search's record to a server with one worker, on sqlite."""
    folder.mkdir()
    measure(trials, False, folder)
    store, port = resolve(f"sqlite:///{folder / 'server' / 'mlflow.db'}"), free_port(5600)
    assert store is not None
    (folder / "server").mkdir()
    argv, env = server_command(store, port)
    server = subprocess.Popen(
        argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        uri, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{uri}/health", timeout=2):
                break
            time.sleep(0.2)
        began = time.perf_counter()
        sync(folder / "runs" / "scale", uri=uri)
        return 1e3 * (time.perf_counter() - began) / trials
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def run(
    spec: JobSpec, run_dir: Path, mlflow: bool, meters: dict[str, Meter], marks: Marks
) -> Replayed:
    table = ReplayTable(
        cost_s=0.001, factors=FACTORS, otherwise=1.0, machine={"bfloat16": "native"}, noise=0.02
    )
    executor = Replayed(table, meters["replay"])
    for name in ("next", "tell", "enqueue"):
        setattr(
            proposer.Proposer, name, meters["proposer"].around(getattr(proposer.Proposer, name))
        )
    started = time.monotonic()
    journal = Journal(run_dir / "journal.jsonl", lambda before: before + time.monotonic() - started)
    journal.append = meters["journal"].around(journal.append)  # type: ignore[method-assign]
    tracker = open_tracker("auto" if mlflow else None, "scale", run_dir)
    with closing(journal), open_progress("quiet", 1e6) as progress, no_plateau():
        records.begin(tracker, spec, run_dir)
        tracker.trial = meters["tracking"].around(tracker.trial)  # type: ignore[method-assign]
        context = RunContext(spec, executor, journal, progress, tracker, run_dir)
        observation = observe(context)

        def after_trial(*args: Any) -> None:
            marks.ended_s.append(time.perf_counter())
            marks.resident_mib.append(resident_mib())
            for meter in meters.values():
                meter.next_trial()

        progress.trial = after_trial  # type: ignore[method-assign]
        for meter in meters.values():
            meter.total_s, meter.calls = 0.0, 0
        REQUESTS.calls = executor.report_bytes = 0
        marks.began_s, marks.cpu_s = time.perf_counter(), -time.process_time()
        search(context, observation)
        marks.cpu_s += time.process_time()
        records.finish(tracker, "FINISHED")
    return executor


def sizes(run_dir: Path) -> dict[str, int]:
    found = {
        "journal.jsonl": run_dir / "journal.jsonl",
        "optuna.log": run_dir / "optuna.log",
        "spool": run_dir / "tracking" / "spool.jsonl",
        "mlflow.db": run_dir.parent / "mlflow.db",
    }
    return {name: path.stat().st_size for name, path in found.items() if path.exists()}


def tenths(values: Sequence[float]) -> list[float]:
    """Mean of each tenth of the trials."""
    size = max(1, len(values) // TENTHS)
    return [
        statistics.fmean(values[i : i + size])
        for i in range(0, size * TENTHS, size)
        if values[i : i + size]
    ]


def page(figures: Figures, command: str) -> str:
    own = sorted(figures.tuner_ms)
    n = figures.trials
    grown = (figures.resident_mib[-1] - figures.resident_mib[n // 10]) * 1000 / (n - n // 10)
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    lines = [
        "# A long search",
        "",
        (
            f"`{command}` on {cpu}, {os.cpu_count()} cores, Python {platform.python_version()},"
            f" Optuna {version('optuna')}, MLflow {version('mlflow')} (sqlite)."
        ),
        "The job is replayed and takes no time; what is measured is the tuner itself.",
        "",
        "## One trial",
        "",
        "| | ms of the tuner's own time |",
        "|---|---|",
        f"| mean of {n} trials, with tracking | {mean_ms(figures):.1f} (bar: {MOST_MS:.0f}) |",
        f"| while the search runs: mean | {statistics.fmean(own):.1f} |",
        f"| median | {own[n // 2]:.1f} |",
        f"| 95 of 100 | {own[n * 95 // 100]:.1f} |",
        f"| the longest | {own[-1]:.1f} |",
        f"| of the mean, on a core | {figures.cpu_ms:.1f} |",
        *(f"| {name}: mean | {ms:.1f} |" for name, ms in figures.parts_ms.items()),
        "",
        "## Does it grow",
        "",
        "| tenth of the search | " + " | ".join(str(i + 1) for i in range(TENTHS)) + " |",
        "|---" * (TENTHS + 1) + "|",
        "| ms a trial | " + " | ".join(f"{ms:.0f}" for ms in tenths(figures.tuner_ms)) + " |",
        "| resident MiB | "
        + " | ".join(f"{mib:.0f}" for mib in tenths(figures.resident_mib))
        + " |",
        "",
        (
            f"After the first tenth memory grows by {grown:.0f} MiB a thousand trials (bar:"
            f" {MOST_GROWN_MIB_A_THOUSAND:.0f})."
        ),
        "",
        "## On disk and to the server",
        "",
        "| | bytes a trial |",
        "|---|---|",
        *(f"| {name} | {size / n:,.0f} |" for name, size in figures.files_bytes.items()),
        "",
        (
            f"{figures.blocks:.1f} blocks a trial are asked of the job; the answer to one has"
            f" {figures.report_bytes / 1024:.0f} KiB."
        ),
        f"{figures.requests / n:.1f} requests to MLflow a trial"
        + (
            f"; a server with one worker, on sqlite on this machine, takes {figures.server_ms:.0f}"
            " ms for them."
            if figures.server_ms
            else "."
        ),
        "",
    ]
    return "\n".join(lines) + NOTES


def mean_ms(figures: Figures) -> float:
    """Of the tuner's own time a trial, tracking included."""
    return sum(figures.parts_ms.values())


def passed(figures: Figures) -> bool:
    n = figures.trials
    grown = (figures.resident_mib[-1] - figures.resident_mib[n // 10]) * 1000 / (n - n // 10)
    return mean_ms(figures) <= MOST_MS and grown <= MOST_GROWN_MIB_A_THOUSAND


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--no-mlflow", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if not options.no_mlflow:
        count_requests()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options.trials, not options.no_mlflow, Path(folder))
        if not options.no_mlflow:
            figures = replace(
                figures,
                server_ms=measure_server(max(1, options.trials // 5), Path(folder) / "to a server"),
            )
    command = " ".join(["python benchmarks/scale.py", *sys.argv[1:]])
    text = page(figures, command)
    print(text)
    if options.write:
        (HERE / "scale.md").write_text(text)
    return 0 if passed(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
