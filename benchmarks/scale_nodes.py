"""Whether twice the machines run twice the trials: a search on 1, 2 and 4 nodes of a Ray cluster,
all simulated on this machine.

    python benchmarks/scale_nodes.py [--nodes 1 2 4] [--trials 15] [--block-s 0.7] [--write]

The job speaks the agent's protocol and sleeps for the length of a block; Ray, its slots, the
sessions and the search are real. Each node gets as many trials as the single node: scaling is
linear if the wall time stays the same. No trial is better than the others, so all take the same
number of blocks. The time of a trial beyond its blocks is the overhead of tuner and Ray.

--write: update scale_nodes.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scale import no_plateau

from autotune.executors.base import Executor
from autotune.executors.cluster import lane
from autotune.executors.cluster.executor import RayExecutor
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.stages.context import RunContext
from autotune.stages.observe import observe
from autotune.stages.search import search
from autotune.tracking import open_tracker

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TESTS = ROOT / "tests"
LEAST_SHARE = 0.9  # of linear scaling
ALIKE_S = 60.0  # until all slots are there
PROGRAM = """\
from dataclasses import replace

import played_job

table = played_job.table
played_job.table = lambda: replace(table(), factors={}, noise=1e-4, block_noise=0.0)
played_job.main()
"""
JOB = """\
name: nodes
command: python sleeps.py --block-s {block_s}
env: {{PYTHONPATH: "{path}"}}
search_space: {{num_workers: [1, 2, 4, 8], amp_dtype: [bfloat16], optimizer_impl: [fused, foreach], batch_size: {{values: [8, 16, 32, 64], lr_scaling: none}}}}
executor: {{ray: {{address: "{address}"}}}}
traces: none
tracking: {{uri: null}}
budget: {{minutes: 600, trials: {trials}}}
"""


@dataclass(frozen=True)
class Figures:
    """Results of one search on ``nodes`` nodes."""

    nodes: int
    trials: int
    blocks: int
    wall_s: float
    opening_s: float  # part of wall_s: until the sessions of all lanes were there
    cpu_s: float  # of the tuner's process

    @property
    def trials_a_minute(self) -> float:
        return 60 * self.trials / self.wall_s


@contextmanager
def token(folder: Path) -> Iterator[None]:
    """Token for our own cluster."""
    (folder / "token").write_text(os.urandom(16).hex())
    before = dict(os.environ)
    os.environ |= {"RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def measure(nodes: int, options: argparse.Namespace, address: str, folder: Path) -> Figures:
    folder.mkdir()
    shutil.copy(TESTS / "executors" / "played_job.py", folder)
    (folder / "sleeps.py").write_text(PROGRAM)
    path = os.pathsep.join(
        map(str, (ROOT, ROOT / "trials", ROOT / "search_spaces", TESTS / "sessions"))
    )
    (folder / "job.yaml").write_text(
        JOB.format(
            block_s=options.block_s, path=path, address=address, trials=options.trials * nodes
        )
    )
    spec, run_dir, began = load_job(folder / "job.yaml"), folder / "run", time.monotonic()
    journal = Journal(run_dir / "journal.jsonl", lambda before: before + time.monotonic() - began)
    with (
        closing(journal),
        open_progress("quiet", 1e6) as progress,
        no_plateau(),
        closing(RayExecutor(spec, run_dir, say=str)) as executor,
    ):
        context = RunContext(
            spec, executor, journal, progress, open_tracker(None, "nodes", run_dir), run_dir
        )
        observation = observe(context)
        wait_for(executor, nodes)
        with counted() as count:
            began, cpu_s = time.monotonic(), cpu_seconds()
            trials = search(context, observation)
            wall_s, cpu_s = time.monotonic() - began, cpu_seconds() - cpu_s
    places = {trial.node for trial in trials}
    assert len(places) == nodes and {trial.state for trial in trials} == {"complete"}, (
        places,
        [trial.state for trial in trials],
    )
    return Figures(nodes, len(trials), count.blocks, wall_s, max(count.opened_s) - began, cpu_s)


def wait_for(executor: Executor, slots: int) -> None:
    deadline = time.monotonic() + ALIKE_S
    while len(executor.lanes() or ()) < slots:
        assert time.monotonic() < deadline, f"{slots} slots were to come"
        time.sleep(0.2)


class Count:
    """Blocks requested from all slots, and when each session was there."""

    def __init__(self) -> None:
        self.blocks = 0
        self.opened_s: list[float] = []


@contextmanager
def counted() -> Iterator[Count]:
    count, measure_, open_ = Count(), lane.SlotLiveSession.measure, lane.Lane.open_live

    def measured(self: Any, blocks: Sequence[Any]) -> Any:
        count.blocks += len(blocks)
        return measure_(self, blocks)

    def opened(self: Any, config: Any) -> Any:
        session = open_(self, config)
        count.opened_s.append(time.monotonic())
        return session

    lane.SlotLiveSession.measure, lane.Lane.open_live = measured, opened  # type: ignore[method-assign]
    try:
        yield count
    finally:
        lane.SlotLiveSession.measure, lane.Lane.open_live = measure_, open_  # type: ignore[method-assign]


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def page(found: Sequence[Figures], command: str, block_s: float) -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    lines = [
        "# A search on several nodes",
        "",
        (
            f"`{command}` on {cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, Ray"
            f" {version('ray')}. All nodes are played on this one machine;"
        ),
        (
            f"a block of the job is {block_s} s of sleep. What is measured is what tuner and Ray"
            " add, and whether it adds up with the nodes."
        ),
        "",
        (
            "| nodes | trials | wall s | of that, until all sessions run | trials a minute | of"
            " linear | ms a trial beyond its blocks | of the tuner's CPU |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for figures in found:
        beyond_ms = (
            1e3 * (figures.wall_s * figures.nodes - figures.blocks * block_s) / figures.trials
        )
        lines.append(
            f"| {figures.nodes} | {figures.trials} | {figures.wall_s:.1f} | {figures.opening_s:.1f}"
            f" | {figures.trials_a_minute:.1f} | {share(figures, found[0]):.0%} | {beyond_ms:.0f} |"
            f" {1e3 * figures.cpu_s / figures.trials:.0f} |"
        )
    blocks = found[0].blocks / found[0].trials
    lines += [
        "",
        (
            f"Of linear: trials a minute and node, against those of {found[0].nodes} (bar:"
            f" {LEAST_SHARE:.0%}). {blocks:.1f} blocks a trial."
        ),
        "",
    ]
    return "\n".join(lines)


def share(figures: Figures, first: Figures) -> float:
    return (figures.trials_a_minute / figures.nodes) / (first.trials_a_minute / first.nodes)


def main() -> int:
    from ray.cluster_utils import Cluster

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--trials", type=int, default=15, help="a node")
    parser.add_argument("--block-s", type=float, default=0.7)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    with tempfile.TemporaryDirectory() as temporary, token(Path(temporary)):
        cluster = Cluster(initialize_head=True, head_node_args={**small, "num_cpus": 0})
        try:
            found, there = [], 0
            for nodes in sorted(options.nodes):
                for _ in range(nodes - there):
                    cluster.add_node(wait=True, **{**small, "num_cpus": 1})
                there = nodes
                found.append(
                    measure(nodes, options, str(cluster.address), Path(temporary) / f"on {nodes}")
                )
        finally:
            cluster.shutdown()
    text = page(
        found, " ".join(["python benchmarks/scale_nodes.py", *sys.argv[1:]]), options.block_s
    )
    print(text)
    if options.write:
        (HERE / "scale_nodes.md").write_text(text)
    return 0 if all(share(figures, found[0]) >= LEAST_SHARE for figures in found) else 1


if __name__ == "__main__":
    sys.exit(main())
