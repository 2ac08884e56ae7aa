"""The job as a Kubernetes Job. Settings that need the agent come as tuned.yaml in a ConfigMap, from
which ``autotune launch`` reads.

Nobody but its owner knows the image. Its place holds a mapping where a string belongs, which every
kubectl and every API server refuses by type, so that a forgotten one is no Job that waits for an
image that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from autotune.export.formats.base import Format
from autotune.export.formats.resources import Resources, resources_of, slug
from autotune.export.launching import knobs_of, needs_agent
from autotune.export.shell_words import comment, head, knob_comments
from autotune.export.tuned import FILE_NAME, TunedConfig, embedded_yaml
from autotune.job.command import fill
from autotune_spaces.space import command_line

MOUNT = "/etc/autotune"
IMAGE = {"FILL-IN": "the image that holds the job and its Python environment"}


def write(tuned: TunedConfig) -> str:
    knobs, name = knobs_of(tuned), slug(tuned.name)
    launched = any(needs_agent(knob) for knob in knobs.values())
    title = [*head(tuned, "run with tuned settings, under Kubernetes"), *knob_comments(tuned)]
    title += ["#", *comment("Fill in the image; kubectl refuses the Job until you have.")]
    title += comment(
        f"It must hold the job at {tuned.workdir}"
        + (" and autotune-torch, which sets what is set in the running job." if launched else ".")
    )
    title += secrets_comment(tuned, name)
    documents = [_config_map(tuned, name)] if launched else []
    documents.append(_job(tuned, name, launched))
    return manifest(title, documents)


def manifest(title: Sequence[str], documents: Sequence[Mapping[str, Any]]) -> str:
    """The file: comments, then the documents as YAML."""
    dumped = yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        width=160,
        allow_unicode=True,
        explicit_start=True,
    )
    return "\n".join(title) + f"\n{dumped}"


def _config_map(tuned: TunedConfig, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-tuned"},
        "data": {FILE_NAME: embedded_yaml(tuned)},
    }


def _job(tuned: TunedConfig, name: str, launched: bool) -> dict[str, Any]:
    wanted = resources_of(tuned)
    container = {
        "name": "train",
        "image": IMAGE,
        "workingDir": str(tuned.workdir),
        **(_launch() if launched else _words(tuned)),
        "env": _environment(tuned, name, launched),
        "resources": resources(wanted),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [shared_memory(wanted)]
    if launched:
        container["volumeMounts"] += [{"name": "tuned", "mountPath": MOUNT, "readOnly": True}]
        volumes.append({"name": "tuned", "configMap": {"name": f"{name}-tuned"}})
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }


def _launch() -> dict[str, Any]:
    return {
        "command": ["python", "-P", "-m", "autotune"],
        "args": ["launch", f"{MOUNT}/{FILE_NAME}"],
    }


def _words(tuned: TunedConfig) -> dict[str, Any]:
    """The command, in which Kubernetes expands ``$(NAME)`` and nothing else."""
    values = {name: choice.value for name, choice in tuned.knobs.items()}
    words = [
        literal(word) for word in command_line(tuned.command, knobs_of(tuned).values(), values)
    ]
    first, *rest = [_secrets(word, tuned) for word in fill(words, _places(tuned))]
    return {"command": [first], "args": rest}


def _environment(tuned: TunedConfig, name: str, launched: bool) -> list[dict[str, Any]]:
    found = secrets(tuned, name)
    variables = (
        {}
        if launched
        else {
            key: _secrets(literal(fill([value], _places(tuned))[0]), tuned)
            for key, value in tuned.env.items()
        }
    )
    for knob_name, knob in ({} if launched else knobs_of(tuned)).items():
        variables |= {
            key: literal(value)
            for key, value in knob.environment(tuned.knobs[knob_name].value).items()
        }
    return found + [{"name": key, "value": value} for key, value in variables.items()]


def secrets_comment(tuned: TunedConfig, name: str) -> list[str]:
    """How the Secret is made; [] where the job has none."""
    if not tuned.env_from_launch:
        return []
    return comment(
        f"Secrets are read from a Secret: kubectl create secret generic {name}-secrets"
        f" --from-literal={tuned.env_from_launch[0]}=…"
    )


def secrets(tuned: TunedConfig, name: str) -> list[dict[str, Any]]:
    """Variables that come from a Secret."""
    return [
        {"name": secret, "valueFrom": {"secretKeyRef": {"name": f"{name}-secrets", "key": secret}}}
        for secret in tuned.env_from_launch
    ]


def _places(tuned: TunedConfig) -> dict[str, str]:
    return {"seed": "0", "trial_dir": str(tuned.workdir / "out")}


def literal(text: str) -> str:
    """``text``, of which Kubernetes expands nothing."""
    return text.replace("$(", "$$(")


def _secrets(text: str, tuned: TunedConfig) -> str:
    return re.sub(
        r"\$\{(\w+)\}", lambda m: f"$({m[1]})" if m[1] in tuned.env_from_launch else m[0], text
    )


def shared_memory(wanted: Resources) -> dict[str, Any]:
    """A volume for /dev/shm, where DataLoader workers hand batches over: a container has 64 MiB of
    it unless it is told otherwise."""
    limit = f"{max(1, wanted.memory_gib // 2)}Gi"
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}}


def resources(wanted: Resources) -> dict[str, Any]:
    """Memory and GPUs as limits: beyond them there is nothing to be had. Cores as a request: a
    limit would throttle workers in bursts.
    """
    memory = {"memory": f"{wanted.memory_gib}Gi"} if wanted.memory_gib else {}
    gpus = {"nvidia.com/gpu": str(wanted.gpus)} if wanted.gpus else {}
    limits = {**memory, **gpus}
    return {
        "requests": {"cpu": str(wanted.cpus), **memory},
        **({"limits": limits} if limits else {}),
    }


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, as people write them."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _text)

K8S = Format("k8s", "a Kubernetes Job that runs the job with its tuned settings", write)
