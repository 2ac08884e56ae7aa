"""Which cores the job may run on."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune_spaces.base import (
    Card,
    Domain,
    Knob,
    LiveJob,
    NotApplicable,
    Numerics,
    Scope,
    Start,
    Undone,
    Value,
)
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.gpus import near, near_gpus, slot_of
from autotune_spaces.topology import Topology, as_list, parse_list, read

# the original CPUs of the command's first Python process, passed on to its children
OWN_VARIABLE = "AUTOTUNE_OWN_CPUS"
NODE = re.compile(r"node-(\d+)")
WORDS = ("all", "physical", "gpu-node")
# with one of these set, OpenMP binds the threads itself
PINNING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")


class CpuAffinity(Knob):
    """Set when the interpreter starts, before any library counts the cores to size its thread pool.

    It cannot be a live knob: existing threads keep their own mask.
    """

    name = "cpu_affinity"
    scope = Scope.PROCESS
    # on fewer cores torch uses fewer threads, unless the job sets their number
    numerics = Numerics.ROUNDING
    example = "0-3"
    range = "all, physical, gpu-node (CUDA), node-0 …, or CPUs such as 0-3,8"
    card = Card(
        what=(
            "The cores that the job may run on. physical uses one hardware thread per core, node-N"
            " the cores of one NUMA node, and gpu-node binds each rank to the node of its GPU's PCI"
            " slot (rank N is assumed to use the N-th GPU it sees). Unless the job sets its number"
            " of threads, it follows the number of cores."
        ),
        when_it_helps=(
            "Several NUMA nodes: another node's memory is slower, and a copy to another"
            " node's GPU crosses the link between them; two hardware threads per core,"
            " which slow each other down in large products. 'torchrun --numa-binding=node' does the"
            " same as gpu-node."
        ),
        when_it_does_not=(
            "One node and one hardware thread per core, where there is nothing to choose;"
            " GPU training that hardly uses the CPU. DataLoader workers run on the same"
            " cores."
        ),
        changes_loss=(
            "Not by itself. If the number of threads changes with it, sums are split at"
            " different places and round differently. The loss check covers it."
        ),
        source="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#utilize-non-uniform-memory-access-numa-controls",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return "all"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if pinned := [name for name in PINNING if job.own_settings.get(name)]:
            raise NotApplicable(f"the job binds its threads to cores itself ({pinned[0]})")
        return ["all", *_choices(*_seen(job), job)]

    def domain(self, machine: Machine, job: JobFacts) -> Domain:
        if self.values is None and len(self.candidates(machine, job)) == 1:
            raise NotApplicable(
                f"there is nothing to choose: of the job's {len(_seen(job)[1]) or 'unknown'} CPUs"
                " no two share a core, and there are no NUMA nodes to choose between"
            )
        return super().domain(machine, job)

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        topology, own = _seen(job)
        if value == "gpu-node":
            return _no_gpu_node(topology, own, job)
        wanted = cpus_of(str(value), topology, own, {}) if own else None
        if wanted:
            return None
        return (
            f"none of the CPUs {value} is among those that the job may run on"
            f" ({as_list(own) or 'unknown'})"
        )

    def parse(self, value: Value) -> Value:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def check_value(self, value: Value) -> str | None:
        if value in WORDS or (isinstance(value, str) and NODE.fullmatch(value)):
            return None
        try:
            if isinstance(value, str) and parse_list(value):
                return None
        except ValueError:
            pass
        return (
            f"{value!r} is not one of {', '.join(WORDS)}, node-N, or a list of CPUs such as 0-3,8"
        )

    def survey(self, start: Start) -> Any:
        found = replace(read(), gpus=near_gpus(start.env))
        return {
            name: [as_list(cpus) for cpus in getattr(found, name)]
            for name in ("cores", "nodes", "gpus")
        }

    def environment(self, value: Value) -> dict[str, str]:
        return {self.own_variable: str(value)}

    def at_start(self, environ: Mapping[str, str]) -> None:
        value = environ.get(self.own_variable, "")
        own = parse_list(environ.get(OWN_VARIABLE, "")) or frozenset(os.sched_getaffinity(0))
        if not value or self.check_value(value):
            return
        os.environ[OWN_VARIABLE] = as_list(own)
        wanted = cpus_of(value, _here(value, environ), own, environ)
        if wanted:
            os.sched_setaffinity(0, wanted)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        now, own = frozenset(os.sched_getaffinity(0)), parse_list(os.environ.get(OWN_VARIABLE, ""))
        wanted = (
            cpus_of(str(value), _here(value, os.environ), own, os.environ) if own else frozenset()
        )
        if not wanted or wanted == own:
            return f"the job may run on {as_list(own or now)} anyway" if value != "all" else None
        if now != wanted:
            return Undone(
                f"the job runs on {as_list(now)}, not on {as_list(wanted)}: it sets its"
                " CPU affinity itself"
            )
        return _beside_another_gpu(live, now) if value == "gpu-node" else None

    def snippet(self, value: Value) -> str:
        if value == "all":
            return ""
        own = frozenset(os.sched_getaffinity(0))
        if value == "gpu-node":
            gpus = [_set(cpus & own or own) for cpus in near_gpus(os.environ)] or [_set(own)]
            where = f'[{", ".join(gpus)}][int(os.environ.get("LOCAL_RANK", 0))]'
        elif str(value)[0].isdigit():
            where = _set(parse_list(str(value)))
            return f"os.sched_setaffinity(0, {where})  # before torch is imported"
        else:
            where = _set(cpus_of(str(value), read(), own, {}) or own)
        return (
            f"os.sched_setaffinity(0, {where})  # before torch is imported; CPUs of the machine"
            " that wrote this line"
        )


def cpus_of(
    value: str, topology: Topology, own: frozenset[int], environ: Mapping[str, str]
) -> frozenset[int]:
    """The CPUs of ``own`` that ``value`` selects in a process with this environment; none if it
    selects nothing here.
    """
    if value == "all":
        return own
    if value == "physical":
        return topology.first_of_each_core(own)
    if value == "gpu-node":
        return _node_of_gpu(topology.gpus, environ) & own
    if found := NODE.fullmatch(value):
        return (
            topology.nodes[int(found[1])] & own
            if int(found[1]) < len(topology.nodes)
            else frozenset()
        )
    return parse_list(value) & own


def _node_of_gpu(gpus: Sequence[frozenset[int]], environ: Mapping[str, str]) -> frozenset[int]:
    """CPUs near the GPU with the rank's number, or near the only GPU that the rank sees."""
    rank = environ.get("LOCAL_RANK", "")
    return gpus[(int(rank) if rank.isdigit() else 0) % len(gpus)] if gpus else frozenset()


def _no_gpu_node(topology: Topology, own: frozenset[int], job: JobFacts) -> str | None:
    """Why ranks cannot be bound to their GPU's node, or None."""
    if job.device != "cuda":
        return f"gpu-node is for CUDA, and the job trains on {job.device}"
    if len(topology.nodes_of(own)) < 2:
        return "the CPUs that the job may run on are all on one NUMA node"
    if not topology.gpus or not all(cpus & own for cpus in topology.gpus):
        return "the system does not report the GPU's NUMA node, or the job may use none of its CPUs"
    return None


def _beside_another_gpu(live: LiveJob, now: frozenset[int]) -> str | None:
    """Why ``now`` is not on the node of the GPU that, according to torch, the rank trains on; None
    if it is, or if that is unknown.
    """
    slot = slot_of(live.torch.cuda.get_device_properties(live.cuda))
    wanted = near(slot) if slot else frozenset()
    if not wanted or now <= wanted:
        return None
    return Undone(
        f"the job runs on {as_list(now)}, but its GPU ({slot}) is on the node with CPUs"
        f" {as_list(wanted)}"
    )


def _choices(topology: Topology, own: frozenset[int], job: JobFacts) -> list[str]:
    """Values that differ from ``own`` on this machine and make sense for this job."""
    found = ["physical"] if len(topology.first_of_each_core(own)) < len(own) else []
    if _no_gpu_node(topology, own, job) is None:  # then no other node is worth a trial
        return [*found, "gpu-node"]
    nodes = [f"node-{index}" for index, node in enumerate(topology.nodes) if node & own]
    return found + nodes if len(nodes) > 1 and job.world_size == 1 else found


def _seen(job: JobFacts) -> tuple[Topology, frozenset[int]]:
    """The surveyed topology, and the CPUs that the unchanged job may run on."""
    survey = job.surveys.get(CpuAffinity.name) or {}
    topology = Topology(
        *(tuple(map(parse_list, survey.get(name, ()))) for name in ("cores", "nodes", "gpus"))
    )
    own = parse_list(job.own_settings.get("cpus", ""))
    return topology, own or frozenset(cpu for core in topology.cores for cpu in core)


def _here(value: Value, environ: Mapping[str, str]) -> Topology:
    """This machine's topology; with its GPUs only if ``value`` needs them."""
    return replace(read(), gpus=near_gpus(environ)) if value == "gpu-node" else read()


def _set(cpus: frozenset[int]) -> str:
    return "{" + ", ".join(map(str, sorted(cpus))) + "}"
