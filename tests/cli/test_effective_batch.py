"""A whole run on a job that ends while it is being measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import QUICK, Job, make_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(660)]
SPACE = "search_space: {{amp_dtype: auto, optimizer_impl: auto, intra_op_threads: auto}}"
# It counts its own steps; its schedule raises when stepped too often, and its table has an end,
# too.
ENDS = """\
import torch
from common import dataset, loss_function, model
from torch.utils.data import DataLoader
STEPS = 400
torch.manual_seed(0)
net = model(width=256)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=STEPS)
rates = [1e-3] * STEPS
step = 0
while step < STEPS:
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        (loss_function(net(inputs), labels) * rates[step] * 1e3).backward()
        optimizer.step()
        schedule.step()
        step += 1
"""


def finished(
    folder: Path, command: str, space: str, source: str = ""
) -> tuple[Job, dict[str, Any]]:
    job = make_job(
        folder,
        command,
        QUICK.replace(SPACE, f"search_space: {space}").replace("minutes: 1", "minutes: 3"),
    )
    if source:
        (job.folder / "mine.py").write_text(source)
    done = job.run(timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return job, job.result


def test_a_job_that_ends_again_and_again_is_searched_all_the_same(tmp_path: Path) -> None:
    space = "{{optimizer_impl: [foreach, fused], amp_dtype: [bfloat16]}}"
    job, result = finished(tmp_path / "job", "python mine.py", space, ENDS)
    assert result["trials"] and all(
        t["state"] in ("complete", "pruned") for t in result["trials"]
    ), result["trials"]
    assert sum("live" in p.name for p in (job.run_dir / "sessions").iterdir()) >= 3, (
        "the job never came to its end"
    )
