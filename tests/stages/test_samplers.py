"""Optuna's samplers on a machine that disturbs their trials."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay import Loss
from replayed import Machine, job, run, table

from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Block, BlockReport

KILLED = "knob: loader settings: DataLoader worker (pid 7) is killed by signal: Killed."


class Unlucky(Machine):
    """Loses a worker when each of the first ``times`` blocks of a candidate begins."""

    def __init__(self, times: int) -> None:
        super().__init__(table(Loss()))
        self.times = times

    def report(self, block: Block, config: Config) -> BlockReport:
        if not config or not self.times:
            return super().report(block, config)
        self.times -= 1
        return BlockReport(block.id, 0, None, error=KILLED)


@pytest.mark.parametrize("search", ["tpe", "random"])
@pytest.mark.parametrize("trials", ["", ", trials: 1"])
def test_a_proposal_that_was_not_measured_is_measured_again(
    tmp_path: Path, search: str, trials: str
) -> None:
    spec = job(
        tmp_path, "{num_workers: [2]}", f"budget: {{minutes: 10{trials}}}\nsearch: {search}\n"
    )
    result = run(tmp_path, Unlucky(2), spec)
    assert result.verdict == "tuned" and dict(result.knobs) == {"num_workers": 2}
    assert len(result.trials) == 1
