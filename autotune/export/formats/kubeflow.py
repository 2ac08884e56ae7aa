"""Exports the job as a Kubeflow Trainer TrainJob on its torch runtime.

That runtime sets the variables that tell torchrun how the nodes find each other. A script starts
the job, since a TrainJob has no working directory. The image is a placeholder as in k8s.py.
"""

from __future__ import annotations

from typing import Any

from autotune.export.formats.base import Format
from autotune.export.formats.k8s import (
    IMAGE,
    literal,
    manifest,
    resources,
    secrets,
    shared_memory,
    title_of,
)
from autotune.export.formats.resources import resources_of, slug
from autotune.export.formats.whole_script import through_launch, whole_script
from autotune.export.tuned import TunedConfig

RUNTIME = "torch-distributed"  # ships with Kubeflow Trainer
NODE = "node"  # name of the runtime's training job and container


def write(tuned: TunedConfig) -> str:
    name = slug(tuned.name, longest=44)  # its pods' names add 19 characters of 63
    title = title_of(tuned, name, "by Kubeflow Trainer", kind="TrainJob", shell="bash")
    return manifest(title, _train_job(tuned, name))


def _train_job(tuned: TunedConfig, name: str) -> dict[str, Any]:
    wanted = resources_of(tuned)
    script = whole_script(tuned, ["set -eu"], "exec", through_launch(tuned, "python"))
    pod = {
        "volumes": [shared_memory(wanted)],
        "containers": [{"name": NODE, "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}],
    }
    # what the runtime's pods that train have in addition
    more = {"name": NODE, "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": {
                "image": IMAGE,
                "numNodes": wanted.nodes,
                "numProcPerNode": wanted.processes,  # by default one for every core
                "command": ["bash", "-c", literal(script), name],
                "env": secrets(tuned, name),
                "resourcesPerNode": resources(wanted),
            },
            "runtimePatches": [
                {
                    "manager": "autotune",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [more]}}},
                }
            ],
        },
    }


KUBEFLOW = Format(
    "kubeflow", "a Kubeflow Trainer TrainJob that runs the job with its tuned settings", write
)
