"""Programs as people write them: recorded by the real agent, patched, and run to the end without
autotune.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patch_sources import changed_lines, comments, refusals
from recorded_jobs import record

from autotune.export.formats import FORMATS
from autotune.export.tuned import Provenance, TunedConfig, TunedKnob
from autotune_spaces.facts import JobFacts

PROGRAMS = Path(__file__).parent / "patch_programs"
KNOBS = {"num_workers": 1, "batch_size": 32, "amp_dtype": "bfloat16", "channels_last": True, "compile_mode": "default", "optimizer_impl": "fused",
         "intra_op_threads": 2}  # fmt: skip
RULE = {"lr_scaling": "linear", "own_batch_size": 16}
AUTOCAST = 'with torch.autocast(device_type="cpu", dtype=torch.bfloat16):'
IMAGE = ".to(memory_format=torch.channels_last)"

CASES = {
    "keyword_options": (
        ("--epochs", "1"),
        {"optimizer_impl": "takes no argument fused"},
        [
            "torch.set_num_threads(2)", AUTOCAST, f"output = model(data{IMAGE})", "loss = F.nll_loss(output, target)",
            'train_loader = torch.utils.data.DataLoader(dataset1, **{**train_kwargs, "num_workers": 1, "batch_size": 32})',
            "model.compile()", "optimizer = optim.Adadelta(model.parameters(), lr=1.0 * 2)", f"model{IMAGE}",
        ],
    ),
    "micro_steps": (
        ("3",),
        dict.fromkeys(("num_workers", "batch_size"), "did not record where the training DataLoader is built"),
        [
            "torch.set_num_threads(2)",
            'return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), **{**extra_args, "fused": True, "foreach": None})',
            "model.compile()", f"model{IMAGE}", AUTOCAST, "with ctx:", "logits, loss = model(X, Y)",
            "loss = loss / gradient_accumulation_steps # scale the loss",
        ],
    ),
    "two_networks": (
        ("1",),
        {"compile_mode": "`compile()` does nothing to Sequential"},
        [
            "torch.set_num_threads(2)", "dataloader = torch.utils.data.DataLoader(dataset, batch_size=32,", "shuffle=True, num_workers=1)",
            "optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002 * 2, betas=(0.5, 0.999), fused=True)",
            "optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002 * 2, betas=(0.5, 0.999), fused=True)",
            f"netD{IMAGE}", f"netG{IMAGE}",
            AUTOCAST, f"output = netD(real{IMAGE})", "errD_real = criterion(output, label)",
            AUTOCAST, f"fake = netG(noise{IMAGE})", "label.fill_(0.0)", f"output = netD(fake.detach(){IMAGE})", "errD_fake = criterion(output, label)",
            AUTOCAST, f"errG = criterion(netD(fake{IMAGE}), label)",
        ],
    ),
    "trainer_class": (
        ("1",),
        {"channels_last": "argument pixel_values of the model's call at train.py:41 is not explicit there"},
        [
            "torch.set_num_threads(2)", "self.model.compile()", "self.loader = DataLoader(train_set, 32, shuffle=True, num_workers=1)",
            "lr=lr * 2,", "fused=True,", AUTOCAST, "loss = self.compute_loss(batch)",
        ],
    ),
}  # fmt: skip


def patch_of(folder: Path, name: str, job: JobFacts) -> str:
    knobs = {
        knob: TunedKnob(value, None, None, RULE if knob == "batch_size" else {})
        for knob, value in KNOBS.items()
    }
    return FORMATS["diff"].write(
        TunedConfig(
            name,
            ("python", "train.py"),
            folder,
            knobs=knobs,
            provenance=Provenance(sites=job.sites),
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_program_is_patched_as_a_person_would(tmp_path: Path, name: str) -> None:
    words, refused, wanted = CASES[name]
    source = (PROGRAMS / f"{name}.py").read_text()
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(source)
    job = record(folder, "train.py", *words[:-1], "10000")
    reasons = refusals(folder, source, job.sites, KNOBS, **RULE)
    assert set(reasons) == set(refused) and all(refused[knob] in reasons[knob] for knob in refused)
    subprocess.run(
        ["patch", "-p1", "--quiet"],
        cwd=folder,
        input=patch_of(folder, name, job),
        text=True,
        check=True,
    )
    after = (folder / "train.py").read_text()
    assert changed_lines(source, after) == wanted
    assert comments(after) == comments(source)
    env = {**os.environ, "PYTHONPATH": "", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "train.py", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == f"done {words[-1]}", done.stderr
