"""Distributed programs of other libraries, which build DistributedDataParallel themselves: two CPU
ranks each, unmodified.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import Block, KnobChoice, SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session
from autotune_trials.session.waiting import Timeouts
from autotune_trials.supervisor import process_tags

PYTHON = os.environ.get("AUTOTUNE_COMPAT_PYTHON", "")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not PYTHON,
        reason="AUTOTUNE_COMPAT_PYTHON names no interpreter with accelerate and transformers",
    ),
]
OFFLINE = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
}
# Every rank prints what it built, and the loss as the program would log it: gathered from all
# ranks.
ACCELERATE = """
import sys, torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=80)])
x = torch.randn(512, 32)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())
model = torch.nn.Sequential(torch.nn.Linear(32, 600), torch.nn.ReLU(), torch.nn.Linear(600, 600), torch.nn.ReLU(), torch.nn.Linear(600, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
sys.stdout.write(f"built {accelerator.process_index} {model.bucket_bytes_cap} {model.gradient_as_bucket_view}\\n")
for epoch in range(10_000):
    for x, y in loader:
        loss = (model(x).float() - y).square().mean()
        accelerator.backward(loss)
        mean = accelerator.reduce(loss.detach(), "mean")
        sys.stdout.write(f"step {accelerator.process_index} {len(x)} {mean.item()!r}\\n")
        sys.stdout.flush()
        optimizer.step()
        optimizer.zero_grad()
"""
TRAINER = """
import sys, torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 600), torch.nn.ReLU(), torch.nn.Linear(600, 600), torch.nn.ReLU(), torch.nn.Linear(600, 1))
    def forward(self, x=None, labels=None):
        loss = (self.net(x).float() - labels).square().mean()
        return {"loss": loss}
class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(512, 32, generator=torch.Generator().manual_seed(1))
    def __len__(self):
        return 512
    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.x[i].sum(0, keepdim=True).sin()}
args = TrainingArguments(
    output_dir=sys.argv[1], use_cpu=True, max_steps=100_000, per_device_train_batch_size=8, report_to="none", save_strategy="no", logging_steps=10**6,
    disable_tqdm=True, ddp_bucket_cap_mb=80, ddp_find_unused_parameters=False, learning_rate=1e-3, remove_unused_columns=False,
)
Trainer(model=Model(), args=args, train_dataset=Data()).train()
"""
LIGHTNING = """
import torch, lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 600), torch.nn.ReLU(), torch.nn.Linear(600, 600), torch.nn.ReLU(), torch.nn.Linear(600, 1))
    def training_step(self, batch, index):
        x, y = batch
        return (self.net(x).float() - y).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
if __name__ == "__main__":
    x = torch.randn(512, 32, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=8, shuffle=True)
    strategy = lightning.pytorch.strategies.DDPStrategy(bucket_cap_mb=80)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=-1, **quiet).fit(Model(), loader)
"""


def accelerate() -> list[str]:
    """With --multi_gpu, accelerate starts several CPU processes by torchrun; the program says
    cpu=True.
    """
    options = [
        "--multi_gpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
    ]
    return [
        str(Path(PYTHON).with_name("accelerate")),
        "launch",
        *options,
        "--main_process_port",
        "0",
        "train.py",
    ]


def trainer() -> list[str]:
    return [
        PYTHON,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
        "{trial_dir}",
    ]


def lightning() -> list[str]:
    """The command is Lightning's first rank, which starts the others."""
    return [PYTHON, "train.py"]


EVERY = pytest.mark.parametrize(
    ("argv", "program"),
    [(accelerate, ACCELERATE), (trainer, TRAINER), (lightning, LIGHTNING)],
    ids=["accelerate", "transformers", "lightning"],
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    made: list[Session] = []

    def start(
        argv: list[str], program: str, config: SessionConfig, knobs: dict[str, Any] | None = None
    ) -> Session:
        from autotune_spaces.knobs import get

        (tmp_path / "train.py").write_text(program)
        overrides: dict[str, str] = {}
        for name, value in (knobs or {}).items():
            overrides |= get(name).environment(value)
        paths = SessionPaths(tmp_path / f"session{len(made)}")
        paths.root.mkdir()
        session = Session(
            Command(argv, tmp_path, OFFLINE, overrides),
            paths,
            config,
            timeouts=Timeouts(startup_timeout_s=240.0, hang_timeout_s=90.0, grace_s=1.0),
        )
        made.append(session)
        session.start()
        return session

    yield start
    for session in made:
        session.close()
        assert not process_tags.marked(session.mark)


def printed(session: Session, rank: int) -> list[tuple[int, float]]:
    lines = (
        line.split()
        for line in session.paths.stdout.read_text().splitlines()
        if line.startswith(f"step {rank} ")
    )
    return [(int(size), float(loss)) for _, _, size, loss in lines]


@EVERY
def test_ranks_that_a_library_starts_switch_together(
    start: Callable[..., Session], argv: Callable[[], list[str]], program: str
) -> None:
    session = start(argv(), program, SessionConfig("live", ""))
    hello = session.wait_hello()
    assert (hello.job.world_size, hello.job.samples_per_step) == (2, 16.0)
    assert [d.bucket_cap_mb for d in hello.job.ddp] == [80.0]
    knobs = (KnobChoice("amp_dtype", "bfloat16"), KnobChoice("num_workers", 1))
    reports = session.run_plan(
        [Block("own", (), 10), Block("c", knobs, 10), Block("again", (), 10)]
    )
    assert [r.window.samples for r in reports if r.window] == [(16.0,) * 10] * 3
    assert all(not r.error and not r.no_effect and r.notes["ranks"] == 2 for r in reports)


@EVERY
def test_constructor_arguments_reach_what_a_library_builds(
    start: Callable[..., Session], argv: Callable[[], list[str]], program: str
) -> None:
    chosen = {"ddp_bucket_cap_mb": 1, "gradient_as_bucket_view": True}
    config = SessionConfig(
        "fixed",
        "",
        steps=30,
        seed=0,
        process_knobs=tuple(KnobChoice(k, v) for k, v in chosen.items()),
    )
    session = start(argv(), program, config, chosen)
    session.wait_hello()
    record = session.wait_record()
    assert record.no_effect == {} and record.notes["ranks"] == 2
    assert record.window.samples == (16.0,) * 30
    if program is ACCELERATE:
        built = sorted(
            line
            for line in session.paths.stdout.read_text().splitlines()
            if line.startswith("built")
        )
        assert built == [f"built {rank} {2**20} True" for rank in (0, 1)]
        assert list(record.losses) == pytest.approx(
            [loss for _, loss in printed(session, 0)][:30], rel=1e-5
        )
    other = SessionConfig(
        "fixed", "", steps=10, seed=0, process_knobs=(KnobChoice("ddp_bucket_cap_mb", 5),)
    )
    plain = start(argv(), program, other)
    plain.wait_hello()
    assert "built with 83886080" in plain.wait_record().no_effect["ddp_bucket_cap_mb"]


JOB = """\
name: job
command: {command}
env: {{OMP_NUM_THREADS: 1}}
traces: none
tracking: {{uri: null}}
search_space: {{num_workers: [0, 1], batch_size: auto, ddp_bucket_cap_mb: [1]}}
budget: {{minutes: 4, trials: 3}}
convergence: {{steps: 60}}
"""


def test_accelerate_launch_through_the_front_door(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ACCELERATE)
    (tmp_path / "job.yaml").write_text(JOB.format(command=json.dumps(accelerate())))
    done = subprocess.run(
        ["autotune", "run", "job.yaml", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = tmp_path / "autotune-runs" / "job"
    result = json.loads((run_dir / "result.json").read_text())
    seen = result["observation"]
    assert result["verdict"] in ("tuned", "keep-baseline")
    assert (seen["job"]["world_size"], seen["job"]["samples_per_step"]) == (2, 16.0)
    assert "BatchSamplerShard" in seen["withdrawn"]["batch_size"]
    assert {"num_workers", "ddp_bucket_cap_mb"} <= set(seen["domains"]) and seen["defaults"][
        "ddp_bucket_cap_mb"
    ] == 80
    assert result["trials"] and all(not t["no_effect"] for t in result["trials"])
    records = [json.loads(p.read_text()) for p in (run_dir / "records").glob("*.json")]
    assert records and all(r["notes"]["ranks"] == 2 and not r["no_effect"] for r in records)
