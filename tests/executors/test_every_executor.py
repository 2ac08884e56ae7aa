"""What the stages require of every executor, tested with a simulated job.

One entry per executor; an executor without an entry fails.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from ray_runs import HERE, PYTHONPATH
from tiers import slow

from autotune.executors import executor_for
from autotune.executors.base import Executor, FixedRun
from autotune.job.load import load_job
from autotune.job.spec import EXECUTORS
from autotune_trials.protocol.messages import Block, KnobChoice

IN_JOB_YAML = {"local": "local", "ray": "{ray: {address: local}}"}
JOB = """\
name: played
command: python played_job.py
env: {{PYTHONPATH: "{path}"}}
search_space: {{num_workers: [1, 2], optimizer_impl: [fused]}}
executor: {executor}
"""


def test_each_executor_has_an_entry() -> None:
    assert list(IN_JOB_YAML) == list(EXECUTORS)


@pytest.mark.parametrize("name", [slow(name) if name == "ray" else name for name in IN_JOB_YAML])
def test_blocks_are_measured_and_a_fresh_run_is_recorded(name: str, tmp_path: Path) -> None:
    shutil.copy(HERE / "played_job.py", tmp_path)
    text = JOB.format(path=PYTHONPATH, executor=IN_JOB_YAML[name])
    (tmp_path / "job.yaml").write_text(text)
    spec = load_job(tmp_path / "job.yaml")
    assert spec.executor.kind == name
    with closing(executor_for(spec, tmp_path / "run")) as executor:
        assert isinstance(executor, Executor)
        [lane, *_] = executor.lanes() or [executor]
        with lane.open_live() as live:
            plan = [Block("usual", (), 40), Block("faster", (KnobChoice("num_workers", 2),), 40)]
            usual, faster = live.measure(plan)
        assert usual.window is not None and faster.window is not None
        assert sum(faster.window.times_s) < sum(usual.window.times_s)
        record = lane.run_fixed(FixedRun({"num_workers": 2}, seed=0, steps=8))
    assert len(record.losses) >= 8
