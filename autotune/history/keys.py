"""Is it the same job, or a similar one?

Keys        three hashes: job, machine, software. All equal: an exact hit
space_of    what a search may try, so that a narrower search does not answer for a wider one
features    what decides which knobs matter, as numbers
likeness    exp(-d²/2), with d² the sum of the squared differences of the features, each divided
            by its scale; 0 between a CPU and a GPU. 1: the same; 0.6: one scale apart; 0.1: two
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from autotune import __version__
from autotune.history.records import Keys, digest
from autotune.job.spec import JobSpec
from autotune.results import Observation
from autotune.secrets import mask, mask_command
from autotune_spaces.base import SearchSpace
from autotune_spaces.codec import encode

MACHINE = ("device", "device_name", "device_count", "compute_capability", "cpu_model", "cores")
SOFTWARE = ("torch_version", "python_version", "cuda_version", "cudnn_version", "platform")
# of LoaderFacts: where it is in the code, not what it is, and what was measured of it
NOT_OF_LOADER = ("site", "key", "batch_mib")
SETTINGS = """
    device own_autocast own_scaler own_compile matmul_precision cudnn_benchmark intra_op_threads
    world_size backend sharded attention
""".split()
# Feature -> the difference that counts as one scale. Shares are of an iteration; "log" is the
# natural logarithm.
SCALES: Mapping[str, float] = {
    "waiting": 0.25,  # share that the job would save if batches cost nothing
    "to_device": 0.25,
    "forward": 0.25,
    "backward": 0.25,
    "optimizer": 0.15,
    "other": 0.25,
    "log_iteration_s": 2.0,
    "log_parameters": 2.5,
    "log_samples": 2.0,  # per step
    "log_cores": 1.0,
    "log_ranks": 1.0,
    "capability": 1.0,  # of the GPU: 8.0, 9.0
    "convolutional": 1.0,  # 0 or 1, like the three below
    "attention": 1.0,
    "repeated_blocks": 1.0,
    "autocast": 0.7,  # the job's own
    "log_workers": 1.0,  # log(1 + the job's own number)
}


def keys_of(spec: JobSpec, observation: Observation, code: Mapping[str, str]) -> Keys:
    """The hashes of this run. Values that look like secrets are masked before they are hashed.

    Args:
        code: digests of the job's files when the run began, see :mod:`autotune.job.sources`.
    """
    job, machine = encode(observation.job), encode(observation.machine)
    loader = {k: v for k, v in (job["loader"] or {}).items() if k not in NOT_OF_LOADER}
    of_job = {
        "code": dict(code),
        "command": list(mask_command(spec.command)),
        "env": mask(dict(spec.env)),
        "objective": spec.objective,
        "settings": {name: job[name] for name in SETTINGS},
        "models": [{k: v for k, v in m.items() if k != "input_shapes"} for m in job["models"]],
        "optimizers": job["optimizers"],
        "loader": loader,
        "executor": encode(spec.executor.identity()),
    }
    of_machine = {
        **{name: machine[name] for name in MACHINE},
        "memory_gib": round(machine["memory_gib"]),
    }
    of_software = {**{name: machine[name] for name in SOFTWARE}, "autotune": __version__}
    return Keys(digest(of_job), digest(of_machine), digest(of_software))


def space_of(space: SearchSpace) -> tuple[str, ...]:
    """A hash of each knob with each requested value, or with None if autotune chooses values."""
    return tuple(
        digest([knob.name, knob.options, value])
        for knob in space.knobs
        for value in (knob.values if knob.values is not None else (None,))
    )


def features_of(observation: Observation) -> dict[str, float]:
    """The features of a job that decide which knobs matter."""
    job, machine, parts = observation.job, observation.machine, observation.anatomy
    whole = sum(parts.phases_s.values()) or 1.0
    waiting = (
        parts.reader_ratio if observation.ceiling is None else 1 - 1 / max(observation.ceiling, 1.0)
    )
    capability = (
        float(f"{machine.compute_capability[0]}.{machine.compute_capability[1]}")
        if len(machine.compute_capability) > 1
        else 0.0
    )
    found = {
        "waiting": waiting,
        **{
            phase: parts.phases_s.get(phase, 0.0) / whole
            for phase in ("to_device", "forward", "backward", "optimizer", "other")
        },
        "log_iteration_s": math.log(max(parts.iteration_s, 1e-9)),
        "log_parameters": math.log(1 + sum(m.parameters for m in job.models)),
        "log_samples": math.log(max(job.samples_per_step, 1e-9)),
        "log_cores": math.log(machine.cores),
        "log_ranks": math.log(max(job.world_size, 1)),
        "capability": capability if job.device == "cuda" else 0.0,
        "convolutional": float(any(m.convolutions for m in job.models)),
        "attention": float(bool(job.attention)),
        "repeated_blocks": float(any(m.repeated_blocks > 1 for m in job.models)),
        "autocast": float(bool(job.own_autocast)),
        "log_workers": math.log1p(job.loader.num_workers) if job.loader else 0.0,
        "gpu": float(job.device == "cuda"),
    }
    return {name: round(value, 4) for name, value in found.items()}


def likeness(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Likeness of two jobs, 0 to 1; a feature that one of them lacks counts as one scale apart."""
    if a.get("gpu") != b.get("gpu"):
        return 0.0
    apart = [(a[k] - b[k]) / scale if k in a and k in b else 1.0 for k, scale in SCALES.items()]
    return math.exp(-0.5 * math.fsum(d * d for d in apart))
