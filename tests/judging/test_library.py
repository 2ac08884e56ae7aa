"""The commands as functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from autotune.errors import InputError
from autotune.export.tuned import TunedConfig, TunedKnob, write_tuned


def test_a_job_that_marks_its_steps_loads_nothing_of_the_tuner() -> None:
    code = (
        "import sys, autotune; autotune.step(loss=1.0); print([m for m in sys.modules if"
        " m.startswith('autotune.')])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], text=True, capture_output=True, check=True
        ).stdout
        == "[]\n"
    )


def test_every_name_is_there_and_no_other() -> None:
    assert all(
        callable(getattr(autotune, name)) for name in autotune.__all__ if name != "__version__"
    )
    with pytest.raises(AttributeError, match="no attribute 'tuned'"):
        _ = autotune.tuned


def test_settings_are_exported(tmp_path: Path) -> None:
    write_tuned(
        TunedConfig(
            "job",
            ("python", "train.py"),
            tmp_path,
            knobs={"malloc": TunedKnob("retain", "default")},
        ),
        tmp_path / "tuned.yaml",
    )
    assert autotune.export_settings(tmp_path, "shell").startswith("#!/bin/sh")
    with pytest.raises(InputError, match="no format 'shel'") as refused:
        autotune.export_settings(tmp_path, "shel")
    assert "shell" in refused.value.remedy


@pytest.mark.parametrize("call", [autotune.tune, autotune.profile, autotune.load_result])
def test_bad_input_is_an_error_of_ours(call: object, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        call(tmp_path / "nowhere.yaml")  # type: ignore[operator]


@pytest.mark.slow
def test_a_profile_from_a_thread(tmp_path: Path) -> None:
    """Signals can only be handled in the main thread."""
    (tmp_path / "train.py").write_text(
        "import torch\nlayer = torch.nn.Linear(8, 8)\noptimizer ="
        " torch.optim.SGD(layer.parameters(), lr=0.1)\nfor _ in range(3000):\n   "
        " optimizer.zero_grad(); layer(torch.randn(4, 8)).sum().backward(); optimizer.step()\n"
    )
    (tmp_path / "job.yaml").write_text("command: python train.py\n")
    code = (
        "import autotune, threading\n"
        "def work(): print(autotune.profile('job.yaml').observation.bottleneck)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, timeout=300
    )
    assert done.stdout.strip() in ("compute", "overhead", "optimizer"), done.stderr
    assert (tmp_path / "autotune-runs").is_dir()
