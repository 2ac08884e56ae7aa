"""How a full queue of batches biases the block after a stall, with and without draining it.

    python benchmarks/full_queue.py [--rounds 4] [--out benchmarks/full_queue.md]

The job is input-bound: its workers deliver a batch every 25 ms and a step takes 20 ms; both sleep,
so that other load on the machine does not matter. It stalls for 2 s at the beginning of a block, as
a compile would, so its queue is full. That block is measured as the agent does it, between steady
blocks that settle for as long as a full queue can last, five times its length:

    steady block │ stall, settle, block │ steady block │ stall, settle, block │ …

The figure is the log ratio of the mean time per iteration: stalled blocks against the steady blocks
on either side. "Without" is the same agent without the drain; it trains through the queue's length
and 3 iterations instead.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import Block, SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session

ROOT = Path(__file__).resolve().parents[1]
WORKERS, BATCH_S, STEP_S, STALL_S = 2, 0.025, 0.020, 2.0
MEASURED = 60  # iterations
JOB = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, i):
        time.sleep({item_s})
        return torch.ones(4)

if {without}:
    sys.modules["autotune_trials.agent.core.settling"].Settling.drain_due = lambda self: False
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Slow(), batch_size=2, num_workers={workers}, prefetch_factor={prefetch}):
    optimizer.zero_grad()
    model(x).sum().backward()
    time.sleep({step_s})
    if os.path.exists({stall!r}):
        os.remove({stall!r})
        time.sleep({stall_s})
    optimizer.step()
"""


def biases(folder: Path, queue: int, drained: bool, rounds: int) -> list[float]:
    """Log ratio of each stalled block to the steady blocks next to it."""
    folder.mkdir()
    stall, script = folder / "stall", folder / "job.py"
    script.write_text(
        JOB.format(
            item_s=BATCH_S * WORKERS / 2,
            workers=WORKERS,
            prefetch=queue // WORKERS,
            step_s=STEP_S,
            stall=str(stall),
            stall_s=STALL_S,
            without=not drained,
        )
    )
    config = SessionConfig("live", str(folder / "s"))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = Command([sys.executable, str(script)], ROOT, env)
    with Session(command, SessionPaths(folder / "s"), config) as session:
        session.wait_hello()

        def measured(name: str, settle: int) -> float:
            (report,) = session.run_plan(
                [Block(name, (), MEASURED, min_settle=settle, max_settle=settle + 400)]
            )
            assert report.window is not None and report.settled, report
            return statistics.fmean(report.window.times_s)

        found, before = [], measured("steady", 5 * queue + 20)
        for _ in range(rounds):
            stall.touch()
            stalled = measured("stalled", 5 if drained else 1 + queue + 3)
            after = measured("steady", 5 * queue + 20)
            found.append(math.log(stalled / math.sqrt(before * after)))
            before = after
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        "# The queue after a stall",
        "",
        (
            f"Made by `python benchmarks/full_queue.py --rounds {options.rounds}` ({os.cpu_count()}"
            f" cores, {platform.machine()})."
        ),
        (
            f"{WORKERS} workers give a batch every {1e3 * BATCH_S:.0f} ms, a step takes"
            f" {1e3 * STEP_S:.0f} ms; a stall of {STALL_S:.0f} s before the block, {MEASURED}"
            " iterations measured."
        ),
        (
            "Time an iteration of the block after the stall against the steady blocks beside it:"
            " median, and range."
        ),
        "",
        "| queue | without the drain | with it |",
        "|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        for queue in (8, 16, 32):
            cells = []
            for drained in (False, True):
                found = [
                    math.expm1(b)
                    for b in biases(
                        Path(name) / f"{queue}-{drained}", queue, drained, options.rounds
                    )
                ]
                cells.append(
                    f"{statistics.median(found):+.1%} ({min(found):+.1%} … {max(found):+.1%})"
                )
            lines.append(f"| {queue} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    lines += ["", "The bar is a bias of at most 1.5 %."]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
