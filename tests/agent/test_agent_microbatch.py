"""The micro-batch: other portions for the model, and nothing else. Held against the same job
without it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_tuner import Tuner, block, run_bare

from autotune_trials.protocol.messages import Record

SAME = pytest.approx
SPLIT = (
    "plain",
    "uneven",
    "accumulating",
    "contrastive",
    "closure",
    "wrapped",
    "own gradients",
    "checkpointed",
)
LEFT_ALONE = {  # style -> what is said
    "balanced": "adds a loss of the batch as a whole",
    "larger than the batch": "no call of the model had more than 32 samples",
}


@pytest.fixture(scope="module")
def styles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("session")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    program = [
        sys.executable,
        str(Path(__file__).with_name("micro_batch_styles.py")),
        str(directory),
    ]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=120)
    log = directory / "agent.log"
    assert done.returncode == 0 and not (log.exists() and "Traceback" in log.read_text()), (
        done.stderr[-3000:]
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not found.pop("stopped")
    return found


def test_every_style_has_its_promise(styles: dict[str, Any]) -> None:
    assert set(styles) == {*SPLIT, *LEFT_ALONE}


@pytest.mark.parametrize("name", [*SPLIT, *LEFT_ALONE])
def test_the_job_trains_as_it_does_alone(styles: dict[str, Any], name: str) -> None:
    """Losses, number of steps, weights and their running average after all clipping, within the
    rounding of float32.
    """
    alone, micro = styles[name]["alone"], styles[name]["micro"]
    assert micro["steps"] == alone["steps"] >= 10 or name == "closure"
    wide = 100 if name == "closure" else 1  # LBFGS makes much of little
    assert micro["losses"] == SAME(alone["losses"], rel=2e-5 * wide, abs=1e-6)
    for kind in ("parameters", "average"):
        for ours, theirs in zip(micro[kind], alone[kind], strict=True):
            assert ours == SAME(theirs, rel=1e-4 * wide, abs=2e-6 * wide)


@pytest.mark.parametrize("name", SPLIT)
def test_batches_are_split(styles: dict[str, Any], name: str) -> None:
    alone, micro = styles[name]["alone"], styles[name]["micro"]
    assert micro["effect"] is None and not micro["failure"]
    assert max(alone["passes"]) == 8 and max(micro["passes"][-10:]) <= 4
    assert len(micro["passes"]) > 1.3 * len(alone["passes"])


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_cannot_be_known_is_left_alone_and_said(styles: dict[str, Any], name: str) -> None:
    micro = styles[name]["micro"]
    assert LEFT_ALONE[name] in micro["effect"] and not micro["failure"]
    assert set(micro["passes"][-10:]) <= {8, 4}


ACCUMULATING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(256, 16), torch.randint(0, 4, (256,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
steps = 0
while steps < STEPS:
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / 4
        loss.backward()
        print("loss", loss.item())
        if (i + 1) % 4 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            steps += 1
            if steps == STEPS:
                break
for p in model.parameters():
    print("weights", *p.detach().flatten().tolist())
print("lr", schedule.get_last_lr()[0])
"""


def numbers(output: str, word: str) -> list[float]:
    return [
        float(x) for line in output.splitlines() if line.startswith(word) for x in line.split()[1:]
    ]


def test_launched_with_it_the_whole_job_is_the_same(tuner: Tuner, tmp_path: Path) -> None:
    source = ACCUMULATING.replace("STEPS", "20")
    (tmp_path / "bare").mkdir()
    bare = run_bare(tmp_path / "bare", source)
    tuner.start(source, "launch", knobs={"micro_batch_size": 4})
    code, out, err = tuner.finish()
    assert code == 0 and tuner.log == "", (err, tuner.log)
    assert out != bare  # other rounding: the knob has done something
    assert numbers(out, "lr") == numbers(bare, "lr")
    assert len(numbers(out, "loss")) == 80
    assert numbers(out, "loss") == SAME(numbers(bare, "loss"), rel=2e-5)
    assert numbers(out, "weights") == SAME(numbers(bare, "weights"), rel=1e-4, abs=2e-6)


def test_a_fixed_run_records_the_users_steps(tuner: Tuner) -> None:
    tuner.start(
        ACCUMULATING.replace("STEPS", "1000"), "fixed", knobs={"micro_batch_size": 4}, steps=24
    )
    assert type(tuner.receive()).__name__ == "Hello"
    record = tuner.receive()
    assert (
        isinstance(record, Record) and not record.no_effect and "knob_failures" not in record.notes
    )
    assert set(record.window.samples) == {32.0} and len(record.losses) == 24
    assert list(record.samples_before) == [32.0 * i for i in range(24)]
    assert tuner.process is not None
    tuner.process.kill()
    losses = numbers(tuner.process.communicate()[0], "loss")
    steps = [sum(losses[i : i + 4]) for i in range(0, len(losses) - 3, 4)]
    assert list(record.losses[: len(steps)]) == SAME(steps, rel=1e-6) and len(steps) >= 20
    assert all(n > 0 for n in record.gradient_norms)


def test_it_is_switched_between_blocks_and_steps_stay_the_users(tuner: Tuner) -> None:
    source = (
        ACCUMULATING.replace("STEPS", "100000")
        .replace('print("loss", loss.item())', "seen.append(len(x))")
        .replace("steps = 0", "steps, seen, passes = 0, [], []")
        .replace("nn.Sequential(", "nn.Sequential(Watch(), ")
        .replace(
            "torch.manual_seed(0)",
            "class Watch(nn.Module):\n    def forward(self, x):\n        passes.append(len(x))\n   "
            "     return x\ntorch.manual_seed(0)",
        )
        .replace(
            "optimizer.zero_grad()",
            "optimizer.zero_grad(); print('step', *seen, '/', *passes, flush=True); seen.clear();"
            " passes.clear()",
        )
    )
    tuner.start(source)
    hello = tuner.receive()
    assert hello.job.samples_per_step == 32 and hello.job.backwards_per_step == 4
    reports = tuner.measure(
        block("b"),
        block("m", micro_batch_size=4),
        block("b2"),
        block("s", micro_batch_size=2),
        block("b3"),
    )
    assert [r.error for r in reports] == [""] * 5 and not any(r.no_effect for r in reports)
    assert all(set(r.window.samples) == {32.0} and len(r.window.times_s) == 6 for r in reports)
    assert tuner.process is not None
    tuner.process.kill()
    lines = [
        line.split(" / ") for line in tuner.process.communicate()[0].splitlines() if " / " in line
    ]
    assert all(left == "step 8 8 8 8" for left, _ in lines)
    kinds = [right for i, (_, right) in enumerate(lines) if i == 0 or right != lines[i - 1][1]]
    # In between: the test whether samples are independent, which calls the model on the whole and
    # on its parts.
    wanted = ["8 8 8 8", " ".join("4" * 8), "8 8 8 8", " ".join("2" * 16), "8 8 8 8"]
    assert [k for k in kinds if k in wanted] == wanted, kinds
    assert tuner.log == ""


RANKS = """
import contextlib, os, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.set_num_threads(1); torch.manual_seed(0)
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 4, (256,)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model = nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(4):
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % 4 == 0
        with contextlib.nullcontext() if last else model.no_sync():
            (nn.functional.cross_entropy(model(x), y) / 4).backward()
        if last:
            optimizer.step(); optimizer.zero_grad()
print("weights", *(v for p in model.parameters() for v in p.detach().flatten().tolist()))
"""


def two_ranks(tuner: Tuner, knobs: dict[str, Any]) -> list[list[float]]:
    """The weights each rank ends with."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    tuner.start(RANKS, "launch", knobs=knobs, env={**env, "RANK": "0"})
    variables = {**os.environ, **tuner.environment, **env, "RANK": "1"}
    second = subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=tuner.directory,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first_code, first, first_err = tuner.finish()
    other, other_err = second.communicate(timeout=60)
    assert first_code == second.returncode == 0 and tuner.log == "", (
        first_err,
        other_err,
        tuner.log,
    )
    return [numbers(first, "weights"), numbers(other, "weights")]


@pytest.mark.slow
def test_two_ranks_stay_the_same_model(tuner: Tuner) -> None:
    alone = two_ranks(tuner, {})
    together = two_ranks(tuner, {"micro_batch_size": 4})
    assert alone[0] == alone[1] and together[0] == together[1], (
        "the ranks have drifted apart: an exchange is missing"
    )
    assert together[0] == SAME(alone[0], rel=1e-4, abs=2e-6) and together != alone


@pytest.mark.slow
def test_a_model_that_is_not_of_independent_samples_has_no_effect_from_it(tuner: Tuner) -> None:
    source = ACCUMULATING.replace("STEPS", "100000").replace(
        "nn.ReLU()", "nn.ReLU(), nn.BatchNorm1d(32)"
    )
    tuner.start(source)
    assert tuner.receive().job.models[0].batch_norms == 1
    reports = tuner.measure(block("s", micro_batch_size=4))
    assert [r.error for r in reports] == [""]
    assert all("BatchNorm1d changes its own" in r.no_effect["micro_batch_size"] for r in reports)
