"""Which cores the job may run on."""

from __future__ import annotations

import os
import re
import sys
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
    Value,
)
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.gpus import near, near_gpus, slot_of
from autotune_spaces.topology import Topology, as_list, parse_list, read

VARIABLE = "AUTOTUNE_KNOB_CPU_AFFINITY"
# what the first Python process of the command might run on, for those that it starts
OWN_VARIABLE = "AUTOTUNE_OWN_CPUS"
NODE = re.compile(r"node-(\d+)")
WORDS = ("all", "physical", "gpu-node", "node-per-rank", "spare-1")
FEWEST_TO_SPARE = 4  # CPUs; of fewer, one is too much to take from training
# OpenMP then binds each thread by itself
PINNING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")
SPAWNED = "--multiprocessing-fork"  # in the arguments of a process that multiprocessing has spawned


class CpuAffinity(Knob):
    """Set when the interpreter starts, before any library counts the cores to size its pool of
    threads.

    A live knob it cannot be: threads that exist keep their own mask.
    """

    name = "cpu_affinity"
    scope = Scope.PROCESS
    # on fewer cores torch takes fewer threads, unless the job says how many
    numerics = Numerics.ROUNDING
    ordered = False
    example = "0-3"
    range = (
        "all, physical, gpu-node (CUDA), node-0 …, node-per-rank, spare-1, or CPUs such as 0-3,8"
    )
    card = Card(
        what=(
            "The cores that the job may run on. physical takes one hardware thread of each core,"
            " node-N the cores of one NUMA node, gpu-node gives each rank the node that its GPU's"
            " PCI slot is on (rank N is taken to use the N-th GPU it sees), node-per-rank spreads"
            " the ranks of this machine over its nodes in the order of LOCAL_RANK, and spare-1"
            " leaves the last core free of training, for DataLoader workers. Where the job does not"
            " set its number of threads, it follows."
        ),
        when_it_helps=(
            "Several NUMA nodes, since memory of another node is slower, and a copy to a GPU of"
            " another node crosses the link between them; two hardware threads a core, which get"
            " into each other's way in large products; workers that are kept waiting for a core."
            " 'torchrun --numa-binding=node' does the same as gpu-node."
        ),
        when_it_does_not=(
            "One node and one hardware thread a core: then there is nothing to choose. GPU training"
            " that hardly uses the CPU. DataLoader workers keep to the same cores, except under"
            " spare-1, where they may use all of them."
        ),
        changes_loss=(
            "Not by itself. Where the number of threads follows, sums are split at other places and"
            " round differently. The loss check covers it."
        ),
        source="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#utilize-non-uniform-memory-access-numa-controls",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return "all"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if pinned := [name for name in PINNING if job.own_settings.get(name)]:
            raise NotApplicable(f"the job binds its threads to cores itself ({pinned[0]})")
        return ["all", *_choices(*_seen(job), machine, job)]

    def domain(self, machine: Machine, job: JobFacts) -> Domain:
        try:
            return super().domain(machine, job)
        except NotApplicable as withdrawn:
            if self.values is not None or "itself" in str(withdrawn):
                raise
            topology, own = _seen(job)
            if not own:
                raise NotApplicable(
                    "this system does not say which cores the job may run on"
                ) from None
            nodes = len(topology.nodes_of(own))
            on = "one NUMA node" if nodes < 2 else f"{nodes} NUMA nodes"
            raise NotApplicable(
                f"there is nothing to choose on {on} with {len(own)} CPUs, no two of which share a"
                " core"
            ) from None

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        topology, own = _seen(job)
        if value == "node-per-rank":
            return (
                None
                if len(topology.nodes_of(own)) > 1
                else "there are no NUMA nodes to spread ranks over"
            )
        if value == "gpu-node":
            return _no_gpu_node(topology, own, job)
        wanted = cpus_of(str(value), topology, own, {}) if own else None
        if wanted:
            return None
        return (
            f"none of the CPUs {value} is among those that the job may run on"
            f" ({as_list(own) or 'not known'})"
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
        return f"{value!r} is neither {', '.join(WORDS)}, node-N nor a list of CPUs such as 0-3,8"

    def survey(self, start: Start) -> Any:
        found = replace(read(), gpus=near_gpus(start.env))
        return {
            name: [as_list(cpus) for cpus in getattr(found, name)]
            for name in ("cores", "nodes", "gpus")
        }

    def environment(self, value: Value) -> dict[str, str]:
        return {VARIABLE: str(value)}

    def at_start(self, environ: Mapping[str, str]) -> None:
        value = environ.get(VARIABLE, "")
        own = parse_list(environ.get(OWN_VARIABLE, "")) or frozenset(os.sched_getaffinity(0))
        if not value or self.check_value(value):
            return
        os.environ[OWN_VARIABLE] = as_list(own)
        wanted = cpus_of(value, _here(value, environ), own, environ)
        if value == "spare-1":
            if SPAWNED in sys.orig_argv:
                wanted = own
            os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, own))
        if wanted:
            os.sched_setaffinity(0, wanted)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        now, own = frozenset(os.sched_getaffinity(0)), parse_list(os.environ.get(OWN_VARIABLE, ""))
        if value == "node-per-rank" and "LOCAL_RANK" not in os.environ:
            return "LOCAL_RANK was not set when this rank started, so its node is not known"
        wanted = (
            cpus_of(str(value), _here(value, os.environ), own, os.environ) if own else frozenset()
        )
        if not wanted or wanted == own:
            return f"the job may run on {as_list(own or now)} anyway" if value != "all" else None
        if now != wanted:
            return (
                f"the job runs on {as_list(now)} and not on {as_list(wanted)}: it chooses its cores"
                " itself"
            )
        return _beside_another_gpu(live, now) if value == "gpu-node" else None

    def snippet(self, value: Value) -> str:
        if value == "all":
            return ""
        if value == "spare-1":
            return (
                "os.sched_setaffinity(0, (own := os.sched_getaffinity(0)) - {max(own)})"
                "  # before torch is imported\n"
                "os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, own))"
            )
        topology, own = read(), frozenset(os.sched_getaffinity(0))
        if value == "node-per-rank":
            nodes = [_set(node) for node in topology.nodes_of(own)] or [_set(own)]
            where = (
                f'[{", ".join(nodes)}][int(os.environ["LOCAL_RANK"]) * {len(nodes)} //'
                ' int(os.environ["LOCAL_WORLD_SIZE"])]'
            )
        elif value == "gpu-node":
            gpus = [_set(cpus & own or own) for cpus in near_gpus(os.environ)] or [_set(own)]
            where = f'[{", ".join(gpus)}][int(os.environ.get("LOCAL_RANK", 0))]'
        elif str(value)[0].isdigit():
            where = _set(parse_list(str(value)))
            return f"os.sched_setaffinity(0, {where})  # before torch is imported"
        else:
            where = _set(cpus_of(str(value), topology, own, {}) or own)
        return (
            f"os.sched_setaffinity(0, {where})  # before torch is imported; CPUs of the machine"
            " that wrote this line"
        )


def cpus_of(
    value: str, topology: Topology, own: frozenset[int], environ: Mapping[str, str]
) -> frozenset[int]:
    """The CPUs among ``own`` that ``value`` means in a process with these variables; none if it
    means nothing here.
    """
    nodes = topology.nodes_of(own)
    if value == "all":
        return own
    if value == "physical":
        return topology.first_of_each_core(own)
    if value == "spare-1":
        return own - {max(own)} if len(own) > 1 else frozenset()
    if value == "node-per-rank":
        return _node_of_rank(nodes, environ)
    if value == "gpu-node":
        return _node_of_gpu(topology.gpus, environ) & own
    if found := NODE.fullmatch(value):
        return (
            topology.nodes[int(found[1])] & own
            if int(found[1]) < len(topology.nodes)
            else frozenset()
        )
    return parse_list(value) & own


def _node_of_rank(nodes: Sequence[frozenset[int]], environ: Mapping[str, str]) -> frozenset[int]:
    """Neighbouring ranks share a node, as neighbouring GPUs mostly do; a launcher, which is no
    rank, is left where it is.
    """
    rank = environ.get("LOCAL_RANK", "")
    ranks = environ.get("LOCAL_WORLD_SIZE") or environ.get("WORLD_SIZE") or "1"
    if not (rank.isdigit() and ranks.isdigit() and nodes):
        return frozenset()
    return nodes[int(rank) * len(nodes) // max(int(ranks), int(rank) + 1)]


def _node_of_gpu(gpus: Sequence[frozenset[int]], environ: Mapping[str, str]) -> frozenset[int]:
    """Of the GPU with the rank's number; where each rank sees only its own, of that."""
    rank = environ.get("LOCAL_RANK", "")
    return gpus[(int(rank) if rank.isdigit() else 0) % len(gpus)] if gpus else frozenset()


def _no_gpu_node(topology: Topology, own: frozenset[int], job: JobFacts) -> str | None:
    """Why no rank can be bound to its GPU's node, or None."""
    if job.device != "cuda":
        return f"gpu-node is for CUDA, and the job trains on {job.device}"
    if len(topology.nodes_of(own)) < 2:
        return "the CPUs that the job may run on are all on one NUMA node"
    if not topology.gpus or not all(cpus & own for cpus in topology.gpus):
        return (
            "the system does not say which NUMA node the GPU is on, or the job may run on no CPU"
            " of it"
        )
    return None


def _beside_another_gpu(live: LiveJob, now: frozenset[int]) -> str | None:
    """Why ``now`` is not on the node of the GPU that the rank trains on, as torch names it; None if
    it is, or nobody knows.
    """
    slot = slot_of(live.torch.cuda.get_device_properties(live.cuda))
    wanted = near(slot) if slot else frozenset()
    if not wanted or now <= wanted:
        return None
    return (
        f"the job runs on {as_list(now)}, but its GPU ({slot}) is on the node of {as_list(wanted)}"
    )


def _choices(topology: Topology, own: frozenset[int], machine: Machine, job: JobFacts) -> list[str]:
    """What differs from ``own`` on this machine and makes sense for this job."""
    found = ["physical"] if len(topology.first_of_each_core(own)) < len(own) else []
    nodes = [index for index, node in enumerate(topology.nodes) if node & own]
    beside_gpu = _no_gpu_node(topology, own, job) is None  # then no other node is worth a trial
    if beside_gpu:
        found, nodes = [*found, "gpu-node"], []
    if job.world_size > 1:
        return found + (["node-per-rank"] if len(nodes) > 1 else [])
    found += [f"node-{index}" for index in nodes] if len(nodes) > 1 else []
    whole = machine.cores >= len(own)  # a quota of the container is no core that could be left free
    return found + (
        ["spare-1"] if job.loader is not None and whole and len(own) >= FEWEST_TO_SPARE else []
    )


def _seen(job: JobFacts) -> tuple[Topology, frozenset[int]]:
    """The machine as it was surveyed, and what the unchanged job might run on."""
    survey = job.surveys.get(CpuAffinity.name) or {}
    topology = Topology(
        *(tuple(map(parse_list, survey.get(name, ()))) for name in ("cores", "nodes", "gpus"))
    )
    own = parse_list(job.own_settings.get("cpus", ""))
    return topology, own or frozenset(cpu for core in topology.cores for cpu in core)


def _here(value: Value, environ: Mapping[str, str]) -> Topology:
    """This machine; of its GPUs only where ``value`` asks for them."""
    return replace(read(), gpus=near_gpus(environ)) if value == "gpu-node" else read()


def _set(cpus: frozenset[int]) -> str:
    return "{" + ", ".join(map(str, sorted(cpus))) + "}"
