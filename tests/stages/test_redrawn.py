"""What a loss check asks for depends on the model where a knob makes dropout draw other numbers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from replayed import Machine, job, table

from autotune.journal import Journal
from autotune.report.terminal import open_progress
from autotune.stages.bench import Bench
from autotune.stages.converge import asked
from autotune.stages.observe import observe
from autotune.tracking import open_tracker
from autotune_spaces.base import Config
from autotune_spaces.codec import encode

SPACE = "{micro_batch_size: auto, optimizer_impl: auto, num_workers: [2], batch_size: [64]}"


@pytest.mark.parametrize(("dropouts", "config", "numerics"), [
    (0, {"micro_batch_size": 8}, "rounding"),
    (2, {"micro_batch_size": 8}, "random-stream"),
    (2, {"micro_batch_size": 8, "optimizer_impl": "fused", "num_workers": 2}, "random-stream"),
    (2, {"micro_batch_size": 8, "batch_size": 64}, "statistical"),
    (2, {"optimizer_impl": "fused"}, "rounding"),
])  # fmt: skip
def test_dropout_under_a_micro_batch_is_another_random_stream(
    tmp_path: Path, dropouts: int, config: Config, numerics: str
) -> None:
    machine = Machine(table())
    model = replace(machine.hello().job.models[0], dropouts=dropouts)
    machine = Machine(table(job={"models": [encode(model)]}))
    journal = Journal(tmp_path / "run" / "journal.jsonl", lambda before: before)
    with closing(journal), open_progress("quiet", 60.0) as progress:
        bench = Bench(job(tmp_path, SPACE), machine, journal, progress, open_tracker(None, "e", tmp_path / "run"), tmp_path / "run")
        assert observe(bench).domains["micro_batch_size"] == (4, 8, 16, 32)
        assert asked(bench, config).numerics == numerics
