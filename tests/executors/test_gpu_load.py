"""Other use of a GPU is detected before the job runs, and reported if the job trains on it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from replay import ReplayExecutor, ReplayTable

from autotune.executors.gpu_load import gpu_load
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.progress import Event, Progress
from autotune.stages.context import RunContext
from autotune.stages.observe import observe
from autotune.tracking import open_tracker


def environ(folder: Path, script: str, **more: str) -> dict[str, str]:
    """Environment in which ``script`` replaces nvidia-smi, which this machine may lack."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **more}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 0, 580, 0", ()),
        ("echo 0, 20480, 0", ("GPU 0: 20.0 GiB in use, busy 0% of the time",)),
        ("echo 0, 3, 0; echo 1, 3, 97", ("GPU 1: 0.0 GiB in use, busy 97% of the time",)),
        ("echo '0, 20480, [N/A]'", ()),
        ("echo 0, 20480, 99; exit 9", ()),
        ("echo 'No devices were found'", ()),
    ],
)
def test_what_nvidia_smi_tells(tmp_path: Path, script: str, said: tuple[str, ...]) -> None:
    assert gpu_load(environ(tmp_path, script)) == said


def test_only_the_jobs_own_gpus_count(tmp_path: Path) -> None:
    variables = environ(
        tmp_path, 'test "$4" = 2,3 && echo 2, 20480, 50', CUDA_VISIBLE_DEVICES="2,3"
    )
    assert len(gpu_load(variables)) == 1


def test_a_machine_without_nvidia_smi_has_nothing_to_tell(tmp_path: Path) -> None:
    assert gpu_load({"PATH": str(tmp_path)}) == ()


class Said(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []

    def show(self, event: Event) -> None:
        if event.kind == "warning":
            self.warnings.append(event.data["text"])


class Shared(ReplayExecutor):
    """A replayed machine whose GPU others use."""

    def gpu_load(self) -> tuple[str, ...]:
        return ("GPU 0: 20.0 GiB in use, busy 97% of the time",)


@pytest.mark.parametrize(("device", "warned"), [("cuda", 1), ("cpu", 0)])
def test_who_trains_on_it_is_told(tmp_path: Path, device: str, warned: int) -> None:
    table = ReplayTable(
        cost_s=0.0005,
        otherwise=1.0,
        machine={"device": device, "device_memory_gib": 80.0, "compute_capability": [9, 0]},
    )
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(
        "command: python train.py\nsearch_space: {num_workers: [2]}\ntraces: none\ntracking: {uri:"
        " null}\n"
    )
    with closing(Journal(tmp_path / "run" / "journal.jsonl", lambda before: before)) as journal:
        said, spec = Said(), load_job(tmp_path / "job.yaml")
        tracker = open_tracker(None, "e", tmp_path / "run")
        context = RunContext(spec, Shared(table, 0), journal, said, tracker, tmp_path / "run")
        observe(context)
    assert len([text for text in said.warnings if "GPU 0: 20.0 GiB in use" in text]) == warned
