"""Pairs of fresh processes, run one after the other or at once in slices: how much does the ratio
of a pair scatter, and how long does a pair take?

    python benchmarks/interleaved.py [--pairs 8] [--jobs digits recurrent] [--out TABLE.md]
    python benchmarks/interleaved.py --jobs path/to/job.yaml [--values '{"num_workers": 0}']

Each job of ``benchmarks/regret`` has two sides (``SIDES``), which may be equal; those of a job file
both have ``--values``. The two ways alternate, one pair each, so that both see the machine in the
same state:

    one after the other │ in slices │ one after the other │ in slices │ …

The figure is the standard deviation of the pairs' log ratios. It does not show that they have the
same mean; the table does. Every pair is kept in ``build/interleaved``; the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "regret"))

from jobs_table import ROOT, job_file

from autotune.executors.local import LocalExecutor
from autotune.job.configs import in_words, key_of
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.stages.context import RunContext
from autotune.stages.measuring.may_interleave import WHY_NOT
from autotune.stages.measuring.pairs import Pairs
from autotune.stages.observe import first_run
from autotune.tracking import open_tracker
from autotune_trials.protocol.messages import Record

Config = dict[str, Any]
RETAIN: Config = {"malloc": "retain"}
SIDES: dict[str, list[tuple[Config, Config]]] = {  # (baseline, candidate)
    "digits": [({}, {}), (RETAIN, RETAIN)],
    "recurrent": [({}, {}), ({}, {"optimizer_impl": "fused", **RETAIN})],
}


class InTurn(Pairs):
    way = "one after the other"

    def _interleaved(self, *_: Any) -> dict[str, Record]:
        return {}


class InSlices(Pairs):
    way = "in slices"


def measure(job: str, count: int, values: Config) -> list[str]:
    """A row of the table for each configuration and way."""
    file = job_file(job) if job in SIDES else Path(job)
    name = job if job in SIDES else f"{file.stem}{key_of(values) if values else ''}"
    folder, began = ROOT / "build" / "interleaved" / name, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    spec = load_job(file)
    journal = Journal(folder / "journal.jsonl", lambda before: before + time.monotonic() - began)
    rows = []
    with (
        closing(journal),
        closing(LocalExecutor(spec, folder)) as executor,
        open_progress("quiet", 0) as progress,
    ):
        tracker = open_tracker(None, job, folder, True)
        context = RunContext(spec, executor, journal, progress, tracker, folder)
        first_run(context)
        loader = executor.last_hello and executor.last_hello.job.loader
        executor.loader_key = loader.key if loader else ""
        journal.append(WHY_NOT, "", "")
        for number, (reference, candidate) in enumerate(SIDES.get(job, [(values, values)])):
            ways = [
                kind(context, candidate, reference, f"{kind.way.replace(' ', '-')}-{number}")
                for kind in (InTurn, InSlices)
            ]
            for n in range(count):
                for pairs in ways:
                    pairs.ensure(n + 1)
            rows += [_row(name, pairs) for pairs in ways]
            print("\n".join(rows[-2:]), flush=True)
    return rows


def _row(job: str, pairs: InTurn | InSlices) -> str:
    ratios = pairs.figures.log_speedups()
    reference, candidate = (
        in_words(pairs.configs[side]) or "as it is" for side in ("reference", "candidate")
    )
    what = f"both {candidate}" if candidate == reference else f"{candidate}, against {reference}"
    mean, error = math.exp(fmean(ratios)), stdev(ratios) / math.sqrt(len(ratios))
    assert pairs.interleaved == isinstance(pairs, InSlices)
    return (
        f"| {job} | {what} | {pairs.way} | {len(ratios)} | {mean:.3f}× ± {100 * error:.1f} % |"
        f" {stdev(ratios):.3f} | {pairs.pair_s():.1f} s |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--jobs", nargs="+", default=list(SIDES))
    parser.add_argument("--values", type=json.loads, default={}, help="of a job file's two sides")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [row for job in options.jobs for row in measure(job, options.pairs, options.values)]
    text = (
        f"{platform.machine()}, {platform.python_version()}; {time.strftime('%Y-%m-%d')}\n\n"
        "| job | sides | the two processes | pairs | speed-up | scatter of a pair (log) | a pair"
        " takes |\n|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
