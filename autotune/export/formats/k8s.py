"""Exports the job as a Kubernetes Job with an inline start script.

Only the user knows the image. The placeholder is a mapping where a string is required, which
kubectl and the API server reject by type; a forgotten placeholder therefore fails at once instead
of waiting for an image that does not exist.

A job on several nodes is an indexed Job: each pod has a number, and a headless Service gives pod 0
the name at which the others find it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from autotune.export.formats.base import Format
from autotune.export.formats.resources import Resources, resources_of, slug
from autotune.export.formats.whole_script import through_launch, whole_script
from autotune.export.launching import uses_launch
from autotune.export.shell_words import comment, head, knob_comments
from autotune.export.tuned import TunedConfig

IMAGE = {"FILL-IN": "the image that holds the job and its Python environment"}
INDEX = "batch.kubernetes.io/job-completion-index"  # annotation of an indexed Job's pods


def write(tuned: TunedConfig) -> str:
    name = slug(tuned.name)
    title = title_of(tuned, name, "under Kubernetes", kind="Job", shell="a shell")
    wanted = resources_of(tuned)
    job = _job(tuned, name, wanted)
    if wanted.nodes == 1:
        return manifest(title, job)
    spec = {"completions": wanted.nodes, "parallelism": wanted.nodes, "completionMode": "Indexed"}
    job["spec"] = {**spec, **job["spec"]}
    pod = job["spec"]["template"]["spec"]
    pod["subdomain"] = name
    pod["containers"][0]["env"] += _rendezvous(name, wanted.nodes)
    return manifest(title, _service(name)) + manifest([], job)


def _rendezvous(name: str, nodes: int) -> list[dict[str, Any]]:
    """Environment entries from which torchrun reads how its nodes find each other."""
    number = {"fieldPath": f"metadata.annotations['{INDEX}']"}
    return [
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": number}},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": "29500"},
    ]


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}},
    }


def manifest(title: Sequence[str], document: Mapping[str, Any]) -> str:
    """The file's text: comments, then the document as YAML."""
    dumped = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        width=160,
        allow_unicode=True,
        explicit_start=True,
    )
    return "".join(f"{line}\n" for line in title) + dumped


def _job(tuned: TunedConfig, name: str, wanted: Resources) -> dict[str, Any]:
    script = whole_script(tuned, ["set -eu"], "exec", through_launch(tuned, "python"))
    container = {
        "name": "train",
        "image": IMAGE,
        "command": ["sh", "-c", literal(script), name],
        "env": secrets(tuned, name),
        "resources": resources(wanted),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": [shared_memory(wanted)]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }


def title_of(tuned: TunedConfig, name: str, where: str, *, kind: str, shell: str) -> list[str]:
    """The file's first comments: the settings, what the image must contain, the Secret."""
    title = [*head(tuned, f"run with tuned settings, {where}"), *knob_comments(tuned)]
    title += ["#", *comment(f"Fill in the image; kubectl rejects the {kind} until you do.")]
    title += comment(
        f"It must contain {shell} and the job at {tuned.workdir}"
        + (
            ", and autotune-torch, which applies settings inside the running job."
            if uses_launch(tuned)
            else "."
        )
    )
    if tuned.env_from_launch:
        title += comment(
            f"Secrets are read from a Secret: kubectl create secret generic {name}-secrets"
            + "".join(f" --from-literal={secret}=…" for secret in tuned.env_from_launch)
        )
    return title


def secrets(tuned: TunedConfig, name: str) -> list[dict[str, Any]]:
    """Environment entries whose values come from the Secret."""
    return [
        {"name": secret, "valueFrom": {"secretKeyRef": {"name": f"{name}-secrets", "key": secret}}}
        for secret in tuned.env_from_launch
    ]


def literal(text: str) -> str:
    """``text`` as Kubernetes needs it, which expands ``$(NAME)`` and reads ``$$`` as ``$``."""
    return text.replace("$", "$$")


def shared_memory(wanted: Resources) -> dict[str, Any]:
    """A volume for /dev/shm, through which data loader workers pass batches (default: 64 MiB)."""
    limit = f"{max(1, wanted.memory_gib // 2)}Gi"
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}}


def resources(wanted: Resources) -> dict[str, Any]:
    """Memory and GPUs as hard limits; cores only as a request, as a limit would throttle bursts."""
    memory = {"memory": f"{wanted.memory_gib}Gi"} if wanted.memory_gib else {}
    gpus = {"nvidia.com/gpu": str(wanted.gpus)} if wanted.gpus else {}
    limits = {**memory, **gpus}
    return {
        "requests": {"cpu": str(wanted.cpus), **memory},
        **({"limits": limits} if limits else {}),
    }


class _Dumper(yaml.SafeDumper):
    """Dumps multi-line strings as block scalars."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _text)

K8S = Format("k8s", "a Kubernetes Job that runs the job with its tuned settings", write)
