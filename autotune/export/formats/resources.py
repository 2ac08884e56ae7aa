"""Resources to request from a cluster, derived from what the job used where it was tuned."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import InputError
from autotune.export.formats.launchers import Parts, take_apart
from autotune.export.shell_words import words_of
from autotune.export.tuned import TunedConfig

HEADROOM = 1.5  # times the memory seen: other epochs or batches may need more
LEAST_MEMORY_GIB = 4


@dataclass(frozen=True)
class Resources:
    """Resources per node, except ``nodes``."""

    nodes: int
    processes: int  # training processes
    cpus: int
    gpus: int
    memory_gib: int  # 0: unknown


def resources_of(tuned: TunedConfig) -> Resources:
    """One core per data loader worker and compute thread, at most those of the tuning machine.

    One GPU per training process if the job used GPUs, with nn.DataParallel all of that machine.
    """
    p, parts = tuned.provenance, _parts(tuned)
    nodes = _number(parts, ("--nnodes",)) or p.footprint.nodes
    processes = _number(
        parts, ("--nproc-per-node", "--nproc_per_node", "--num_processes", "--num-processes")
    ) or p.footprint.processes // max(1, p.footprint.nodes)
    on_gpu = p.job_device == "cuda"
    workers = _value(tuned, "num_workers", p.footprint.num_workers)
    threads = _value(tuned, "intra_op_threads", 1 if on_gpu else p.footprint.threads)
    wanted = max(1, processes) * max(1, workers + threads)
    cores = int(known(p.machine, "cores")) or wanted
    return Resources(
        nodes,
        max(1, processes),
        min(wanted, cores),
        processes * replicas(tuned) if on_gpu else 0,
        _memory_gib(tuned, processes * replicas(tuned)),
    )


def replicas(tuned: TunedConfig) -> int:
    """GPUs over which nn.DataParallel distributed each batch."""
    p = tuned.provenance
    parallel = any(site.module == "DataParallel" for site in p.sites.forwards)
    return max(1, int(known(p.machine, "device_count"))) if parallel else 1


def _memory_gib(tuned: TunedConfig, gpus: int) -> int:
    p = tuned.provenance
    if p.footprint.host_memory_gib:
        return max(
            LEAST_MEMORY_GIB,
            math.ceil(HEADROOM * p.footprint.host_memory_gib / max(1, p.footprint.nodes)),
        )
    devices = max(1, int(known(p.machine, "device_count")))
    return int(known(p.machine, "memory_gib") * min(1.0, gpus / devices))


def known(machine: Mapping[str, Any], name: str) -> float:
    """A positive number from the machine facts; 0.0 if there is none."""
    value = machine.get(name)
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
        else 0.0
    )


def _value(tuned: TunedConfig, knob: str, otherwise: int) -> int:
    value = tuned.knobs[knob].value if knob in tuned.knobs else otherwise
    return value if isinstance(value, int) else otherwise


def _parts(tuned: TunedConfig) -> Parts | None:
    try:
        return take_apart(words_of(tuned))
    except InputError:
        return None  # another program: unknown what it starts


def _number(parts: Parts | None, names: Sequence[str]) -> int:
    """The number given by a launcher option; 0 if there is none ("auto", "1:4")."""
    options = list(parts.options) if parts is not None else []
    for word, after in zip(options, [*options[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name in names and (value if equals else after).isdigit():
            return int(value if equals else after)
    return 0


def names_rendezvous(tuned: TunedConfig) -> bool:
    """Whether the launcher's options name a rendezvous or master address."""
    parts = _parts(tuned)
    return parts is not None and any(
        re.match(r"--(rdzv|master|main_process_ip|main-process-ip)", option)
        for option in parts.options
    )


def slug(name: str, longest: int = 50) -> str:
    """``name`` reduced to what Slurm job names and DNS labels that begin with a letter (Kubeflow's,
    SkyPilot's) allow."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "job"
    return (f"job-{words}" if words[0].isdigit() else words)[:longest].strip("-")
