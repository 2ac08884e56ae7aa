"""What the agent costs in a measured window.

    python benchmarks/overhead.py [--rounds 6] [--steps 300]    the example job, bare and with the
                                                                agent in turns
    python benchmarks/overhead.py --direct [--rounds 60]        microseconds per iteration, in a
                                                                loop that does little else

The first way: both sides time themselves in the same way: a script around the example's own loop
records the time at every optimizer step. The agent's side is a `fixed` session with every phase
recorded, as in confirmation. Rounds alternate; the figure is the median of the pairwise ratios.

The second way: one process installs the agent, brings it to the measuring stage, times 200
iterations of a tiny job and removes it, then times the same job bare, in turns. It uses CPU time of
the training thread, which other load on the machine does not lengthen. The figure is the median of
the pairwise differences.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import json, os, sys, time
sys.path.insert(0, {example!r})
sys.argv = ["train.py", "--epochs", "{epochs}"]
import torch, train
times = []
step = torch.optim.AdamW.step
def timed(self, *args, **kwargs):
    out = step(self, *args, **kwargs)
    times.append(time.perf_counter())
    if len(times) == {steps}:
        with open({output!r}, "w") as file:
            json.dump(times, file)
        if not os.environ.get("AUTOTUNE_SESSION"):
            os._exit(0)
    return out
torch.optim.AdamW.step = timed
train.main()
"""


def iteration_s(times: list[float]) -> float:
    """Median step-to-step time in seconds after 30 steps of warm-up; the median ignores epoch ends
    (evaluation).
    """
    gaps = [b - a for a, b in zip(times[30:], times[31:], strict=False)]
    return statistics.median(gaps)


def bare(script: Path, output: Path) -> float:
    subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.DEVNULL)
    return iteration_s(json.loads(output.read_text()))


def under_agent(script: Path, output: Path, steps: int, folder: Path) -> float:
    from autotune_trials.paths import SessionPaths
    from autotune_trials.protocol.messages import SessionConfig
    from autotune_trials.session.launch_environment import Command
    from autotune_trials.session.session import Session

    paths = SessionPaths(folder)
    config = SessionConfig("fixed", str(folder), steps=steps + 20, seed=None)
    command = Command([sys.executable, str(script)], ROOT, dict(os.environ))
    with Session(command, paths, config) as session:
        session.wait_hello()
        session.wait_record()
    return iteration_s(json.loads(output.read_text()))


MODES = (
    "nothing",
    "launch",
    "live, inside a window",
    "fixed, recording",
    "fixed, recording, streams matched",
    "fixed, probed steps",
)
WARM, TIMED = 40, 200  # iterations; 8 are timed if only the first 8 are probed
LARGE = 3162  # rows and columns of a model with 10 M parameters


def direct(rounds: int) -> None:
    """Print the table of :data:`MODES`, then what probed steps cost a model of 10 M parameters."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        print(
            "| agent | added to an iteration, median | quartiles | bar | holds from"
            " |\n|---|---|---|---|---|"
        )
        for mode in MODES:
            pairs = [pair(torch, Path(name), mode, turn) for turn in range(rounds)]
            added = [1e6 * (agent - plain) for agent, plain in pairs]
            low, middle, high = statistics.quantiles(added, n=4)
            bar = {"l": 0.01, "f": 0.02}.get(mode[0])
            holds = (
                f"{1e2 * bar:.0f} % | {middle / bar / 1e3:.1f} ms an iteration"
                if bar and "probed" not in mode
                else "| "
            )
            print(f"| {mode} | {middle:.1f} µs | {low:.1f} … {high:.1f} | {holds} |", flush=True)
        print(f"\nbare: {1e6 * statistics.median(plain for _, plain in pairs):.0f} µs an iteration")
        probed_steps(torch, Path(name))


def pair(torch: Any, folder: Path, mode: str, turn: int) -> tuple[float, float]:
    """(with the agent, bare) in seconds per iteration; which one runs first alternates."""
    sides: list[Callable[[], float]] = [
        lambda: tiny_job(torch, folder, mode),
        lambda: tiny_job(torch, folder, "nothing"),
    ]
    if "probed" in mode:  # the first iterations differ from later ones, bare as well
        sides[1] = lambda: tiny_job(torch, folder, "nothing", warm=0, timed=8)
    if turn % 2:
        plain = sides[1]()
        return sides[0](), plain
    return sides[0](), sides[1]()


def tiny_job(torch: Any, folder: Path, mode: str, warm: int = WARM, timed: int = TIMED) -> float:
    """CPU seconds per iteration of a job that does almost nothing."""
    if "probed" in mode:
        warm, timed = 0, 8
    with installed_agent(torch, folder, mode):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = torch.utils.data.TensorDataset(torch.ones(64 * (warm + timed + 1), 4))
        loader = iter(torch.utils.data.DataLoader(data, batch_size=2))
        steps = training(torch, model, optimizer, (x for (x,) in loader))
        for _ in itertools.islice(steps, warm):
            pass
        began = time.thread_time()
        for _ in itertools.islice(steps, timed):
            pass
        return (time.thread_time() - began) / timed


def training(torch: Any, model: Any, optimizer: Any, batches: Iterator[Any]) -> Iterator[None]:
    """The loop; yields after every step."""
    for x in batches:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def probed_steps(torch: Any, folder: Path) -> None:
    """Cost of the first steps with 10 M parameters: norms, parameter clones, gradient sketches."""
    rows: dict[str, list[list[float]]] = {"fixed, probed steps": [], "nothing": []}
    for _ in range(5):
        for mode, seen in rows.items():
            with installed_agent(torch, folder, mode):
                model = torch.nn.Linear(LARGE, LARGE, bias=False)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                times, last = [], time.thread_time()
                for _ in itertools.islice(
                    training(torch, model, optimizer, itertools.repeat(torch.ones(2, LARGE))), 7
                ):
                    times.append(time.thread_time() - last)
                    last = time.thread_time()
                seen.append(times)
    first, later = (
        {m: statistics.median(statistics.median(t[part]) for t in seen) for m, seen in rows.items()}
        for part in (slice(0, 1), slice(2, 7))
    )
    for words, each in (
        ("the first step (with the sketch)", first),
        ("each other probed step", later),
    ):
        agent, plain = each["fixed, probed steps"], each["nothing"]
        print(
            f"10 M parameters, {words}: {1e3 * (agent - plain):.0f} ms more than the"
            f" {1e3 * plain:.0f} ms it takes bare"
        )


@contextmanager
def installed_agent(torch: Any, folder: Path, mode: str) -> Iterator[None]:
    """The agent in this process, connected to a tuner of a few lines; removed at the end."""
    if mode == "nothing":
        yield
        return
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.protocol.messages import SessionConfig

    path = str(folder / "s")
    kind = mode.partition(",")[0]
    probe = 8 if "probed" in mode else 0
    config = SessionConfig(
        kind,
        str(folder),
        "" if kind == "launch" else path,
        steps=10**9,
        max_steps=10**9,
        probe_steps=probe,
        match_streams="matched" in mode,
    )
    with serving(path):
        agent = Agent(torch, config)
        agent.install()
        try:
            yield
            assert not agent.state.stopped, "the agent has stepped aside: see agent.log"
            if kind == "live":
                assert agent.mode.stage.name == "MEASURING", (
                    "timed while the block was still settling"
                )
        finally:
            agent.mode._crashed = True  # no record at exit
            agent.stop()
            agent.channel.close()


@contextmanager
def serving(path: str) -> Iterator[None]:
    """Answer Hello with a plan of one endless block."""
    from autotune_trials.protocol.messages import Block, Plan, dump

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            with suppress(OSError):  # nobody connected, or the agent has hung up
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as lines:
                    if b'"Hello"' in lines.readline():
                        connection.sendall(
                            dump(Plan(1, (Block("b", (), 10**9, max_settle=20, max_seconds=1e9),)))
                        )
                        lines.read()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            os.unlink(path)
            thread.join(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--direct", action="store_true", help="count the microseconds an iteration instead"
    )
    options = parser.parse_args()
    if options.direct:
        direct(options.rounds or 60)
    else:
        by_pairs(options.rounds or 6, options.steps)


def by_pairs(rounds: int, steps: int) -> None:
    """Print the example job's time per iteration with the agent, relative to bare."""
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, output = folder / "job.py", folder / "times.json"
        epochs = math.ceil((steps + 60) / 24)
        script.write_text(
            SCRIPT.format(
                example=str(ROOT / "examples" / "digits"),
                epochs=epochs,
                steps=steps,
                output=str(output),
            )
        )
        for number in range(rounds):
            sides = [
                lambda: bare(script, output),
                lambda n=number: under_agent(script, output, steps, folder / f"s{n}"),
            ]
            if number % 2:
                agent, plain = sides[1](), sides[0]()
            else:
                plain, agent = sides[0](), sides[1]()
            ratios.append(agent / plain)
            print(
                f"round {number}: bare {1e3 * plain:.2f} ms, under the agent {1e3 * agent:.2f} ms,"
                f" ratio {ratios[-1]:.4f}",
                flush=True,
            )
    print(
        f"\nagent / bare: median {statistics.median(ratios):.4f} (from {min(ratios):.4f} to"
        f" {max(ratios):.4f}, {len(ratios)} pairs)"
    )


if __name__ == "__main__":
    main()
