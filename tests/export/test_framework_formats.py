"""The fragment for a framework's Trainer has that Trainer's arguments, and is refused for a job
without one.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_jobs import make_tuned, record

from autotune.export.formats import FORMATS
from autotune.export.load import load_tuned
from autotune.export.tuned import Provenance, TunedConfig, TunedKnob, write_tuned
from autotune_spaces.sites import ForwardSite, JobSites, SourceCall

KNOBS = {
    "num_workers": TunedKnob(2, 0),
    "prefetch_factor": TunedKnob(4, None),
    "persistent_workers": TunedKnob(True, False),
    "amp_dtype": TunedKnob("bfloat16", "off"),
    "compile_mode": TunedKnob("default", "off"),
    "optimizer_impl": TunedKnob("fused", "default"),
    "channels_last": TunedKnob(True, False),
    "malloc": TunedKnob("retain", "default"),
}
LOADS = {
    "training-arguments": (
        "from transformers import TrainingArguments\nit = TrainingArguments(output_dir='out',"
        " use_cpu=True, **TUNED)\nassert it.dataloader_num_workers == 2 and"
        " it.dataloader_prefetch_factor == 4 and it.bf16 and it.torch_compile\nassert it.optim =="
        " 'adamw_torch_fused'\n"
    ),
    "lightning": (
        "import torch\n"
        "from lightning import Trainer\n"
        "from torch.utils.data import DataLoader\n"
        "assert Trainer(accelerator='cpu', logger=False, **TRAINER).precision == 'bf16-mixed'\n"
        "assert DataLoader(torch.zeros(4), **DATALOADER).num_workers == 2\n"
    ),
}
HUGGING_FACE = """\
import torch
from transformers import Trainer, TrainingArguments
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i): return {"x": torch.full((8,), float(i % 5)), "labels": torch.tensor(float(i % 5))}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 1)
    def forward(self, x, labels):
        return {"loss": ((self.line(x).squeeze(-1) - labels) ** 2).mean()}
options = TrainingArguments(output_dir="out", use_cpu=True, num_train_epochs=50, report_to=[], save_strategy="no", disable_tqdm=True)
Trainer(model=Net(), args=options, train_dataset=Rows()).train()
"""


def exported(tuned: Path, form: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["autotune", "export", str(tuned), "--format", form],
        text=True,
        capture_output=True,
        timeout=300,
    )


def tuned_in(folder: Path, library: str) -> Path:
    """A tuned.yaml of a job whose optimizer steps in a file of ``library``."""
    call = SourceCall(f"{library}/trainer.py", 1, 0, 1, 5, "step()", "train", own=False)
    config = TunedConfig(
        "job",
        ("python", "train.py"),
        folder,
        knobs=KNOBS,
        provenance=Provenance(sites=JobSites(steps=(call,))),
    )
    write_tuned(config, folder / "tuned.yaml")
    return folder / "tuned.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "library"),
    [("training-arguments", "transformers"), ("lightning", "pytorch_lightning")],
)
def test_the_framework_takes_the_fragment(tmp_path: Path, form: str, library: str) -> None:
    done = exported(tuned_in(tmp_path, library), form)
    assert done.returncode == 0, done.stderr
    assert "channels_last" in done.stdout and "malloc" in done.stdout, "what is no argument is told"
    load = subprocess.run(
        [sys.executable, "-c", done.stdout + LOADS[form]],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert load.returncode == 0, load.stderr


@pytest.mark.parametrize("form", ["training-arguments", "lightning", "python"])
def test_no_workers_leave_no_argument_that_torch_refuses_without_them(
    tmp_path: Path, form: str
) -> None:
    tuned = load_tuned(tuned_in(tmp_path, {"training-arguments": "transformers"}.get(form, form)))
    knobs = {"num_workers": TunedKnob(0, 2), "pin_memory": TunedKnob(False, True)}
    text = FORMATS[form].write(replace(tuned, knobs=knobs))
    for word in ("num_workers", "persistent_workers", "prefetch_factor"):
        assert text.count(f"{word}=" if form == "python" else f"{word}':") == 1


PRODUCTS = 'torch.set_float32_matmul_precision("highest")'


@pytest.mark.parametrize(("module", "batch_size"), [("DataParallel", 32), ("LlamaForCausalLM", 64)])
def test_what_trainer_does_by_itself_on_gpus_is_reckoned_with(
    tmp_path: Path, module: str, batch_size: int
) -> None:
    """It multiplies the batch size by the replicas of nn.DataParallel, and compiles with TF32."""
    call = SourceCall("transformers/trainer.py", 1, 0, 1, 5, "model()", "train", own=False)
    config = TunedConfig(
        "job",
        ("python", "train.py"),
        tmp_path,
        knobs={"batch_size": TunedKnob(64, 32), "compile_mode": TunedKnob("default", "off")},
        provenance=Provenance(
            job_device="cuda",
            machine={"device_count": 2},
            sites=JobSites(forwards=(ForwardSite(module, (call,)),)),
        ),
    )
    text = FORMATS["training-arguments"].write(config)
    found: dict[str, Any] = {}
    exec(text, found)
    assert found["TUNED"]["per_device_train_batch_size"] == batch_size
    assert PRODUCTS in text, "torch_compile turns on TF32"
    on_cpu = replace(config, provenance=replace(config.provenance, job_device="cpu"))
    assert PRODUCTS not in FORMATS["training-arguments"].write(on_cpu)


def test_what_accelerate_does_when_it_compiles_is_told(tmp_path: Path) -> None:
    knobs = {"compile_mode": TunedKnob("default", "off")}
    on_gpu = Provenance(job_device="cuda")
    config = TunedConfig("job", ("python", "train.py"), tmp_path, knobs=knobs, provenance=on_gpu)
    assert PRODUCTS in FORMATS["accelerate"].write(config)
    knobs["amp_dtype"] = TunedKnob("bfloat16", "off")  # accelerate then leaves TF32 alone
    assert PRODUCTS not in FORMATS["accelerate"].write(config)


@pytest.mark.parametrize(
    ("rule", "said"),
    [("sqrt", "Multiply the learning rate by (64 / 32) ** 0.5"), ("none", "Leave")],
)
def test_a_batch_size_comes_with_its_learning_rate(tmp_path: Path, rule: str, said: str) -> None:
    tuned = tuned_in(tmp_path, "transformers")
    knobs = {"batch_size": TunedKnob(64, 32, None, {"lr_scaling": rule})}
    text = FORMATS["training-arguments"].write(replace(load_tuned(tuned), knobs=knobs))
    assert said in text and "optimizer" not in text, "which Trainer builds only in train()"


@pytest.mark.parametrize(
    ("form", "library"),
    [("training-arguments", "lightning"), ("lightning", "transformers"), ("lightning", "mine.py")],
)
def test_a_job_of_another_kind_is_refused(tmp_path: Path, form: str, library: str) -> None:
    done = exported(tuned_in(tmp_path, library), form)
    assert (
        done.returncode == 2
        and "does not train with" in done.stderr
        and "--format python" in done.stderr
    )
    assert not done.stdout


@pytest.mark.slow
def test_a_real_trainer_is_known_by_what_the_agent_saw(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(HUGGING_FACE)
    knobs: dict[str, Any] = {
        "num_workers": 2,
        "prefetch_factor": 4,
        "amp_dtype": "bfloat16",
        "optimizer_impl": "fused",
    }
    make_tuned(folder, record(folder, "train.py"), ("train.py",), knobs, tmp_path / "tuned.yaml")
    done = exported(tmp_path / "tuned.yaml", "training-arguments")
    assert done.returncode == 0, done.stderr
    assert "dataloader_num_workers" in done.stdout
