"""What the agent costs in a measured window: the example job bare and under the agent, in turn, in one run.

    python benchmarks/overhead.py [--rounds 6] [--steps 300]

Both sides time themselves from inside, in the same way: a script around the example's own loop notes the time at every optimizer
step. The agent's side is a `fixed` session with every phase recorded, which is what confirmation uses. Rounds alternate, the
figure is the median of the pairwise ratios.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = '''
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
'''


def iteration_s(times: list[float]) -> float:
    """Median step-to-step time in seconds after 30 steps of warm-up; epoch ends (evaluation) are the tail it ignores."""
    gaps = [b - a for a, b in zip(times[30:], times[31:], strict=False)]
    return statistics.median(gaps)


def bare(script: Path, output: Path) -> float:
    subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.DEVNULL)
    return iteration_s(json.loads(output.read_text()))


def under_agent(script: Path, output: Path, steps: int, folder: Path) -> float:
    from autotune_trials.paths import SessionPaths
    from autotune_trials.protocol import SessionConfig
    from autotune_trials.session import Session

    paths = SessionPaths(folder)
    config = SessionConfig("fixed", str(folder), steps=steps + 20, seed=None)
    with Session([sys.executable, str(script)], workdir=ROOT, env=dict(os.environ), paths=paths, config=config) as session:
        session.wait_hello()
        session.wait_record()
    return iteration_s(json.loads(output.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, output = folder / "job.py", folder / "times.json"
        epochs = math.ceil((options.steps + 60) / 24)
        script.write_text(SCRIPT.format(example=str(ROOT / "examples" / "digits"), epochs=epochs, steps=options.steps, output=str(output)))
        for number in range(options.rounds):
            sides = [lambda: bare(script, output), lambda n=number: under_agent(script, output, options.steps, folder / f"s{n}")]
            if number % 2:
                agent, plain = sides[1](), sides[0]()
            else:
                plain, agent = sides[0](), sides[1]()
            ratios.append(agent / plain)
            print(f"round {number}: bare {1e3 * plain:.2f} ms, under the agent {1e3 * agent:.2f} ms, ratio {ratios[-1]:.4f}", flush=True)
    print(f"\nagent / bare: median {statistics.median(ratios):.4f} (from {min(ratios):.4f} to {max(ratios):.4f}, {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
