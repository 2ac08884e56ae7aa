"""The k8s, kubeflow and skypilot formats: their script runs the job; kubeflow's and skypilot's own
tools read the last two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from pydantic import ValidationError
from test_cluster_formats import (
    AWKWARD,
    CASES,
    CPU,
    GPU,
    LIVE,
    SPREAD,
    VIA,
    container,
    folder,  # noqa: F401
    tuned,
)

from autotune.export.formats import FORMATS
from autotune.export.formats.resources import slug
from autotune.export.tuned import Provenance, TunedConfig

FORMS = ["k8s", "kubeflow", "skypilot"]


def document(form: str, config: TunedConfig) -> dict[str, Any]:
    (only,) = yaml.safe_load_all(FORMATS[form].write(config))
    assert isinstance(only, dict)
    return only


def command_in(form: str, found: dict[str, Any]) -> list[str]:
    if form == "skypilot":
        return ["bash", "-c", found["run"]]
    words = container(found)["command"] if form == "k8s" else found["spec"]["trainer"]["command"]
    assert not any("$(" in word.replace("$$", "") for word in words)
    return [word.replace("$$", "$") for word in words]  # as Kubernetes does


def run(command: list[str], tmp_path: Path, **variables: str) -> dict[str, Any]:
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        **variables,
    }
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert isinstance(seen, dict)
    return seen


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("knobs", [VIA, {**LIVE, **VIA}], ids=["plain", "launched"])
def test_the_script_in_it_runs_the_job(
    form: str,
    knobs: dict[str, Any],
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    config = tuned(folder, knobs, *AWKWARD, env={"A": "$(b) c"}, env_from_launch=("API_KEY",))
    seen = run(command_in(form, document(form, config)), tmp_path, API_KEY="k")
    assert seen["argv"] == [*AWKWARD, "--dtype", "it's on"] and seen["cwd"] == str(folder)
    assert seen["env"]["OMP_SCHEDULE"] == "a b" and seen["env"]["A"] == "$(b) c"
    assert seen["env"]["API_KEY"] == "k"
    assert ("AUTOTUNE_SESSION" in seen["env"]) == (knobs is not VIA)


@pytest.mark.parametrize(
    ("name", "slugged"), [("3D U-Net", "job-3d-u-net"), ("a_b", "a-b"), ("…", "job")]
)
def test_names_begin_with_a_letter(name: str, slugged: str) -> None:
    assert slug(name) == slugged and len(slug("9" * 90, longest=44)) == 44


@pytest.mark.parametrize("where", [CPU, GPU, SPREAD, Provenance()])
@pytest.mark.parametrize(("knobs", "more"), CASES)
def test_a_train_job_is_one_once_the_image_is_filled_in(
    knobs: dict[str, Any],
    more: dict[str, Any],
    where: Provenance,
    folder: Path,  # noqa: F811
) -> None:
    found = document("kubeflow", tuned(folder, knobs, *AWKWARD, where=where, **more))
    with pytest.raises(ValidationError, match="image"):
        TrainerV1alpha1TrainJob.from_dict(found)
    trainer = found["spec"]["trainer"]
    trainer["image"] = "registry/digits:1"
    read = TrainerV1alpha1TrainJob.from_dict(found)
    assert read is not None and read.to_dict() == found, "it knows every field"
    assert trainer["numNodes"] == (2 if where is SPREAD else 1)
    processes = {id(GPU): 2, id(SPREAD): 4}.get(id(where), 1)
    assert trainer["numProcPerNode"] == processes, "for a torchrun that is not told how many"
    assert trainer["resourcesPerNode"].get("limits", {}).get("nvidia.com/gpu") == {
        id(GPU): "2",
        id(SPREAD): "4",
    }.get(id(where))


@pytest.mark.parametrize("words", [(), ("--nnodes=2",)], ids=["as tuned", "in the command"])
def test_nodes_that_are_rented_find_each_other(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    """Otherwise each node would train a complete job on its own."""
    command = (str(tmp_path / "torchrun"), *words, "t.py")
    Path(command[0]).write_text("#!/bin/sh\nenv | grep ^PET_ | sort\n")
    Path(command[0]).chmod(0o755)
    where = CPU if words else SPREAD
    config = tuned(folder, VIA, command=command, where=where)
    script = command_in("skypilot", document("skypilot", config))
    nodes = {"SKYPILOT_TASK_ID": "sky-7", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    done = subprocess.run(script, env={**os.environ, **nodes}, capture_output=True, text=True)
    assert done.stdout.split() == [
        "PET_NNODES=2",
        "PET_RDZV_BACKEND=c10d",
        "PET_RDZV_ENDPOINT=10.0.0.1:29500",
        "PET_RDZV_ID=sky-7",
    ], done.stderr


READ = """
import sky, sys
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)  # by its schema
    if "H100" not in open(path).read():  # which clouds have one is asked of a catalogue on the network
        task.validate()
    assert "train me.py" in task.run
    print(path, task.num_nodes, "autotune launch" in task.run)
"""


@pytest.mark.slow
def test_skypilot_reads_its_tasks(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    """Read by SkyPilot itself, in a separate environment."""
    home = tmp_path / "sky"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "skypilot"], check=True)
    told = []
    for where in (CPU, GPU, SPREAD, Provenance()):
        for knobs, more in CASES:
            config = tuned(folder, knobs, *AWKWARD, where=where, **more)
            task = tmp_path / f"{len(told)}.yaml"
            written = FORMATS["skypilot"].write(config)
            task.write_text(written.replace("FILL-IN: ", "H100: "))
            told.append((task, 2 if where is SPREAD else 1, "num_workers" in knobs))
    done = subprocess.run(
        [python, "-c", READ, *(str(task) for task, *_ in told)],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [" ".join(map(str, facts)) for facts in told]
