"""The same 20 configurations tried by restarting the job each time, and by switching them in a live session.

    python benchmarks/live_vs_restart.py [--job examples/digits/job.yaml] [--out benchmarks/live_vs_restart.md]

Both ways measure as many iterations of each configuration; the live way measures as many of the baseline beside them on top.
Printed: wall time of each way, their ratio, and how far the two estimates of each configuration's speed-up lie apart.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from autotune.executors.base import FixedRun
from autotune.executors.local import LocalExecutor
from autotune.job.configs import in_words, normalise
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal import open_progress
from autotune.stages.bench import Bench
from autotune.stages.live import LiveComparison
from autotune.stages.observe import choose_knobs
from autotune.tracking import open_tracker
from autotune.verdict.timing import cost_per_sample, drop_start, warm_up_end

ROOT = Path(__file__).resolve().parents[1]
MEASURED = 60  # iterations of each configuration
KNOBS = ("num_workers", "amp_dtype", "channels_last", "intra_op_threads", "optimizer_impl", "persistent_workers")


def configurations(bench: Bench, live: LiveComparison, count: int) -> list[dict]:
    """The first ``count`` configurations of the job's space, spread evenly over it."""
    domains, defaults, _ = choose_knobs(bench, live.session.machine, live.session.job)
    names = [n for n in KNOBS if n in domains]
    every: list[dict] = []
    for values in itertools.product(*(domains[n] for n in names)):
        config = normalise(dict(zip(names, values, strict=True)), defaults, bench.spec.search_space)
        if config and config not in every:
            every.append(config)
    return every[:: max(1, len(every) // count)][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--job", type=Path, default=ROOT / "examples" / "digits" / "job.yaml")
    parser.add_argument("--configurations", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spec = load_job(options.job)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        started = time.monotonic()
        journal = Journal(run_dir / "journal.jsonl", lambda before: before + time.monotonic() - started)
        with closing(journal), closing(LocalExecutor(spec, run_dir)) as executor, open_progress("quiet", 0) as progress:
            tracker = open_tracker(None, "bench", run_dir, True)
            bench = Bench(spec, executor, journal, progress, tracker, run_dir)
            begin = time.monotonic()
            with LiveComparison(bench) as live:
                live.reference({})
                configs = configurations(bench, live, options.configurations)
                executor.loader_key = live.session.job.loader.key if live.session.job.loader else ""
                by_live = [live.compare(c, {}, prune=False).ratio.estimate for c in configs]
            live_s = time.monotonic() - begin

            def cost(config: dict) -> float:
                record = executor.run_fixed(FixedRun(config, 0, steps=MEASURED + 20, label="restart"))
                window = record.window
                return cost_per_sample(drop_start(window, warm_up_end(window.times_s)))

            begin = time.monotonic()
            baseline = cost({})
            by_restart = [math.log(cost(c) / baseline) for c in configs]
            restart_s = time.monotonic() - begin
    lines = [
        f"# {len(configs)} configurations, by restart and live", "",
        f"Made by `python benchmarks/live_vs_restart.py` on {this_machine()}.", "",
        "| way | wall time | a configuration |", "|---|---|---|",
        f"| restart the job each time | {restart_s:.0f} s | {restart_s / len(configs):.1f} s |",
        f"| live session, ABBA beside the baseline | {live_s:.0f} s | {live_s / len(configs):.1f} s |", "",
        f"Restart / live: {restart_s / live_s:.2f}. Median distance of the two speed-up estimates: "
        f"{statistics.median(abs(math.expm1(a - b)) for a, b in zip(by_live, by_restart, strict=True)):.1%}.", "",
        "| configuration | live | restart |", "|---|---|---|",
        *(f"| {in_words(c)} | {math.exp(-a):.2f}x | {math.exp(-b):.2f}x |" for c, a, b in zip(configs, by_live, by_restart, strict=True)),
    ]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def this_machine() -> str:
    from autotune_spaces.machine import probe

    machine = probe()
    return f"{machine.cores} cores ({machine.cpu_model}), torch {machine.torch_version}"


if __name__ == "__main__":
    main()
