"""A job that trains nothing: it speaks the agent's protocol and answers from a replay table.

    python played_job.py [--block-s SECONDS] [--run-s SECONDS] [--leave-behind]

Its sessions start at once and take as long as requested, so that one machine can simulate many.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from fake_agent import Agent
from replay import Loss, ReplayExecutor, ReplayTable

from autotune.executors.base import FixedRun
from autotune.export.fingerprint import here
from autotune_spaces.codec import encode
from autotune_trials.protocol.messages import PlanDone

FACTORS = {
    "num_workers": {"1": 0.9, "2": 0.7, "4": 0.75},
    "amp_dtype": {"bfloat16": 0.6},
    "optimizer_impl": {"fused": 0.9, "foreach": 0.95},
}


def table() -> ReplayTable:
    machine = {**encode(here((sys.executable,), os.environ, Path.cwd())), "bfloat16": "native"}
    return ReplayTable(cost_s=0.0005, factors=FACTORS, otherwise=1.0, machine=machine, loss=Loss())


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--block-s", type=float, default=0.02)
    words.add_argument("--run-s", type=float, default=0.1)
    words.add_argument("--leave-behind", action="store_true")
    asked = words.parse_args()
    if asked.leave_behind:  # a child in its own session and process group
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    machine = ReplayExecutor(table(), seed=os.getpid())
    agent = Agent(hello=False)
    agent.send(replace(machine.hello(), pid=os.getpid()))
    if agent.config.mode == "live":
        while (plan := agent.plan()) is not None:
            for block in plan.blocks:
                time.sleep(asked.block_s)
                agent.send(
                    machine.report(block, {choice.name: choice.value for choice in block.knobs})
                )
            agent.send(PlanDone(plan.id, 0))
    else:
        config, knobs = agent.config, (*agent.config.knobs, *agent.config.process_knobs)
        time.sleep(asked.run_s)
        request = FixedRun(
            {k.name: k.value for k in knobs},
            config.seed or 0,
            config.steps,
            config.min_seconds,
            config.max_seconds,
        )
        agent.send(machine.run_fixed(request))
        agent.pause()


if __name__ == "__main__":
    main()
