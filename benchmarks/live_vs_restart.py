"""Do live figures agree with those of fresh processes, and those with the bare job?

    python benchmarks/live_vs_restart.py [--jobs digits conv …] [--configurations 8] [--rounds 2]
    [--out benchmarks/live_vs_restart.md]

For each job (the example, and jobs of benchmarks/regret/jobs/):

    bare        a copy of the script that records the time at every optimizer step, without agent
    fresh       a fixed session of the baseline, in turns with bare: ms per iteration
    live        baseline blocks of the live session, against the fresh sessions: time per sample
    speed-ups   the same configurations switched in the live session, and each in fresh processes
                in turns with the baseline

Both ways of trying a configuration measure the same number of its iterations. Also printed: the
wall time of each way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from autotune.executors.base import FixedRun
from autotune.executors.local import LocalExecutor
from autotune.job.configs import in_words, normalize
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.stages.context import RunContext
from autotune.stages.measuring.room import MIN_ITERATIONS
from autotune.stages.measuring.series import BLOCK_S, LiveSeries
from autotune.stages.observe import choose_knobs
from autotune.tracking import open_tracker
from autotune.verdict.iterations import drop_start, first_counted, warm_up_end
from autotune.verdict.timing import cost_per_sample, winsorized_mean
from autotune_spaces.base import Scope
from autotune_trials.protocol.messages import Window

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "regret"))
from jobs_table import job_file, scripts  # noqa: E402

FIRST_EPOCH_S = 60.0  # as in the tool, the live session first reaches the job's evaluation
MEASURED = 60  # iterations of each configuration, after its warm-up
BARE_SECONDS = 10.0  # for a run of the bare job and of the fixed session next to it
JOBS = ("digits", "conv", "transformer", "embedding_heavy", "memory_churning")
KNOBS = (
    "num_workers",
    "amp_dtype",
    "channels_last",
    "intra_op_threads",
    "optimizer_impl",
    "persistent_workers",
    "malloc",
    "gc",
)
CLOCK = (
    (
        "import argparse, atexit, json, os, time; TIMES = []; atexit.register(lambda:"
        " json.dump(TIMES, open(os.environ['TIMES'], 'w')))"
    ),
    "optimizer.step(); TIMES.append(time.perf_counter())",
)


@dataclass(frozen=True)
class Compared:
    """One job, measured in every way."""

    job: str
    bare_s: float  # per iteration
    fresh_s: float  # the same, for the fixed sessions next to it
    level: float  # cost per sample of live baseline blocks / of fresh processes
    configs: tuple[dict, ...]
    live: tuple[float, ...]  # log ratios to the baseline, one per configuration
    rounds: tuple[tuple[float, ...], ...]  # the same of fresh processes, each round's
    live_wall_s: float  # for all configurations, once each
    fresh_wall_s: float

    @property
    def fresh(self) -> tuple[float, ...]:
        return tuple(map(statistics.fmean, self.rounds))

    @property
    def distances(self) -> list[float]:
        """Of the live estimate from that of fresh processes."""
        return [abs(math.expm1(a - b)) for a, b in zip(self.live, self.fresh, strict=True)]

    @property
    def between_rounds(self) -> list[float]:
        """How far two rounds of fresh processes are apart, on average."""
        return [
            statistics.fmean(abs(math.expm1(a - b)) for a, b in itertools.combinations(each, 2))
            for each in self.rounds
            if len(each) > 1
        ]


def compare(job: str, count: int, rounds: int) -> Compared:
    spec = load_job(job_file(job))
    with tempfile.TemporaryDirectory() as folder:
        run_dir, begin = Path(folder), time.monotonic()
        journal = Journal(
            run_dir / "journal.jsonl", lambda before: before + time.monotonic() - begin
        )
        with (
            closing(journal),
            closing(LocalExecutor(spec, run_dir)) as executor,
            open_progress("quiet", 0) as progress,
        ):
            context = RunContext(
                spec,
                executor,
                journal,
                progress,
                open_tracker(None, "bench", run_dir, True),
                run_dir,
            )
            epoch = steady(executor, {}, MEASURED).epoch_iterations or 0
            executor.first_epoch_s = FIRST_EPOCH_S
            begin = time.monotonic()
            with LiveSeries(context, BLOCK_S / MIN_ITERATIONS) as live:
                log_costs(live, {})
                configs = configurations(context, live, count)
                executor.loader_key = live.session.job.loader.key if live.session.job.loader else ""
                levels = [math.exp(log_cost) for log_cost in log_costs(live, *[{}] * 4)]
                by_live = [beside_own(live, config) for config in configs]
                levels += [math.exp(log_cost) for log_cost in log_costs(live, *[{}] * 4)]
            live_wall_s = time.monotonic() - begin
            bare, beside, whole = against_bare(job, executor, run_dir, rounds)
            begin, baselines = time.monotonic(), []
            by_fresh: list[list[float]] = [[] for _ in configs]
            for number in range(rounds):
                for found, config in zip(by_fresh, configs, strict=True):
                    pair = [{}, config][:: 1 if number % 2 == 0 else -1]
                    costs = [cost(steady(executor, c, epoch + MEASURED)) for c in pair][
                        :: 1 if number % 2 == 0 else -1
                    ]
                    found.append(math.log(costs[1] / costs[0]))
                    baselines.append(costs[0])
            fresh_wall_s = (time.monotonic() - begin) / (2 * rounds)
    return Compared(
        job,
        bare,
        beside,
        statistics.median(levels) / statistics.median([*whole, *baselines]),
        tuple(configs),
        tuple(by_live),
        tuple(map(tuple, by_fresh)),
        live_wall_s,
        fresh_wall_s,
    )


def log_costs(live: LiveSeries, *configs: dict) -> list[float]:
    """Of blocks, one after another; other load makes it measure them again."""
    while True:
        blocks = live.measure(configs)
        if failure := next((block.failure for block in blocks if block.failure), None):
            raise failure
        if all(block.log_cost is not None for block in blocks):
            return [block.log_cost for block in blocks]


def beside_own(live: LiveSeries, config: dict) -> float:
    """Log ratio to the unchanged job; linear drift cancels."""
    order = [{}, config, config, {}, {}, config, config, {}]
    found = list(zip(order, log_costs(live, *order), strict=True))
    return statistics.fmean(log_cost if c else -log_cost for c, log_cost in found) * 2


def configurations(context: RunContext, live: LiveSeries, count: int) -> list[dict]:
    """Random configurations of the job's live knobs."""
    domains, defaults, _ = choose_knobs(context, live.session.machine, live.session.job)
    names = [n for n in KNOBS if n in domains and context.spec.search_space[n].scope is Scope.LIVE]
    every: list[dict] = []
    for values in itertools.product(*(domains[n] for n in names)):
        config = normalize(
            dict(zip(names, values, strict=True)), defaults, context.spec.search_space
        )
        if config and config not in every:
            every.append(config)
    return random.Random(0).sample(every, min(count, len(every)))


def steady(executor: LocalExecutor, config: dict, iterations: int, seconds: float = 0.0) -> Window:
    """A window of a fresh process, at least so long, without its warm-up and its first epoch."""
    window = executor.run_fixed(
        FixedRun(config, 0, steps=iterations + 20, min_seconds=seconds, label="fresh")
    ).window
    return drop_start(window, first_counted(window))


def cost(window: Window) -> float:
    return cost_per_sample(window)


def against_bare(
    job: str, executor: LocalExecutor, folder: Path, rounds: int
) -> tuple[float, float, list[float]]:
    """(Seconds per iteration of the bare job, seconds per iteration of fixed sessions in turns with
    it, cost per sample of these sessions).
    """
    script = folder / scripts()[job].name
    text = scripts()[job].read_text(encoding="utf-8")
    if text.count(CLOCK[1].split(";")[0]) != 1:
        raise SystemExit(f"{scripts()[job]}: no place, or several, for a clock")
    script.write_text(
        text.replace("import argparse", CLOCK[0], 1).replace("optimizer.step()", CLOCK[1], 1),
        encoding="utf-8",
    )
    windows = [steady(executor, {}, MEASURED, BARE_SECONDS)]
    epoch = windows[0].epoch_iterations or len(windows[0].times_s)
    epochs = max(2, math.ceil(BARE_SECONDS / (epoch * winsorized_mean(windows[0].times_s))))
    bare = [bare_iteration_s(script, epochs, epoch)]
    for _ in range(rounds - 1):
        bare.append(bare_iteration_s(script, epochs, epoch))
        windows.append(steady(executor, {}, MEASURED, BARE_SECONDS))
    sessions = [winsorized_mean(w.times_s) for w in windows]
    return statistics.fmean(bare), statistics.fmean(sessions), [cost(w) for w in windows]


def bare_iteration_s(script: Path, epochs: int, epoch: int) -> float:
    """Mean time from step to step in the second epoch and later, without the time between epochs,
    as in a session.
    """
    output = script.with_suffix(".json")
    command = [sys.executable, str(script), "--epochs", str(epochs)]
    subprocess.run(
        command,
        cwd=script.parent,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TIMES": str(output)},
    )
    times = json.loads(output.read_text(encoding="utf-8"))
    gaps = [b - a for n, (a, b) in enumerate(itertools.pairwise(times), 1) if n % epoch]
    later = gaps[epoch - 1 :]
    return winsorized_mean(later[warm_up_end(later) :])


def report(found: Sequence[Compared]) -> list[str]:
    every = [distance for c in found for distance in c.distances]
    noise = [distance for c in found for distance in c.between_rounds]
    lines = [
        "# Live figures, fresh processes, and the bare job",
        "",
        f"Made by `python benchmarks/live_vs_restart.py` on {this_machine()}.",
        "",
        (
            f"Median distance of the two speed-up estimates over all {len(every)} configurations:"
            f" {statistics.median(every):.1%}. Two rounds of fresh processes are"
            f" {_median(noise)} apart themselves."
        ),
        "",
        (
            "| job | bare | fresh baseline | apart | live baseline / fresh | live speed-ups /"
            " fresh, median distance | two rounds of fresh | a configuration live | restarted |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for c in found:
        lines.append(
            f"| {c.job} | {1e3 * c.bare_s:.2f} ms | {1e3 * c.fresh_s:.2f} ms |"
            f" {c.fresh_s / c.bare_s - 1:+.1%} | {c.level - 1:+.1%} |"
            f" {_median(c.distances)} | {_median(c.between_rounds)} |"
            f" {c.live_wall_s / len(c.configs):.1f} s | {c.fresh_wall_s / len(c.configs):.1f} s |"
        )
    lines += ["", "| job | configuration | live | fresh |", "|---|---|---|---|"]
    for c in found:
        for config, a, b in zip(c.configs, c.live, c.fresh, strict=True):
            lines.append(
                f"| {c.job} | {in_words(config)} | {math.exp(-a):.2f}x | {math.exp(-b):.2f}x |"
            )
    return lines


def _median(distances: Sequence[float]) -> str:
    return f"{statistics.median(distances):.1%}" if distances else "–"


def this_machine() -> str:
    from autotune_spaces.machine import probe

    machine = probe()
    return f"{machine.cores} cores ({machine.cpu_model}), torch {machine.torch_version}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=sorted(scripts()))
    parser.add_argument("--configurations", type=int, default=8)
    parser.add_argument(
        "--rounds", type=int, default=2, help="of fresh processes, each beside a baseline"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: list[Compared] = []
    for job in options.jobs:
        found.append(compare(job, options.configurations, options.rounds))
        lines = report(found)  # keep what is known so far
        if options.out:
            options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(report(found)))


if __name__ == "__main__":
    main()
