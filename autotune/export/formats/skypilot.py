"""Exports the job as a SkyPilot task for `sky launch`.

The job's directory is copied to the same path on the rented machine. The user must choose the GPU:
SkyPilot rejects the placeholder name.
"""

from __future__ import annotations

from typing import Any

from autotune.export.formats.base import Format
from autotune.export.formats.k8s import manifest
from autotune.export.formats.resources import names_rendezvous, resources_of, slug
from autotune.export.formats.whole_script import rendezvous, through_launch, whole_script
from autotune.export.launching import uses_launch
from autotune.export.shell_words import comment, head, knob_comments
from autotune.export.tuned import TunedConfig

GPU = "FILL-IN"
SETUP = "pip install FILL-IN\n"
FIRST = '$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'  # first node


def write(tuned: TunedConfig) -> str:
    title = [*head(tuned, "run with tuned settings, by SkyPilot"), *knob_comments(tuned), "#"]
    if resources_of(tuned).gpus:
        title += comment(f"Replace {GPU} with the GPU type; SkyPilot rejects the task until then.")
    title += comment("Add to setup what the job's environment needs.")
    if uses_launch(tuned):
        title += comment("Replace FILL-IN there with a wheel or a clone of autotune-torch.")
    for secret in tuned.env_from_launch:
        title += comment(f"sky launch --secret {secret} passes on the secret from your shell.")
    return manifest(title, _task(tuned))


def _task(tuned: TunedConfig) -> dict[str, Any]:
    wanted, place = resources_of(tuned), str(tuned.workdir)
    spread = wanted.nodes > 1 and not names_rendezvous(tuned)
    lines = ["set -eu", *(rendezvous(wanted.nodes, "$SKYPILOT_TASK_ID", FIRST) if spread else [])]
    memory = {"memory": f"{wanted.memory_gib}+"} if wanted.memory_gib else {}
    gpus = {"accelerators": {GPU: wanted.gpus}} if wanted.gpus else {}
    secrets = {"secrets": dict.fromkeys(tuned.env_from_launch)} if tuned.env_from_launch else {}
    return {
        "name": slug(tuned.name),
        "num_nodes": wanted.nodes,
        "resources": {"cpus": f"{wanted.cpus}+", **memory, **gpus},
        "file_mounts": {place: place},
        **secrets,
        **({"setup": SETUP} if uses_launch(tuned) else {}),
        "run": whole_script(tuned, lines, "exec", through_launch(tuned, "python")),
    }


SKYPILOT = Format("skypilot", "a SkyPilot task that runs the job with its tuned settings", write)
