"""Which slots a cluster has: nodes as a whole, or fixed shares of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """One slot's share of one node: what its actor asks Ray for."""

    node_id: str
    host: str
    index: int  # among the slots of its node
    of: int  # how many slots the node has
    cpus: float
    gpus: float
    resource: str = ""  # one unit of it as well

    @property
    def name(self) -> str:
        """How people are told of it; the same as long as the node is part of the cluster."""
        return f"{self.host}-{self.node_id[:6]}" + (f".{self.index}" if self.of > 1 else "")

    def cores(self, cores: Sequence[int]) -> tuple[int, ...]:
        """Its part of the node's ``cores``: neighbours, which share caches and the memory they stand beside."""
        each = max(1, len(cores) // self.of)
        return tuple(cores[self.index * each : (self.index + 1) * each])


def places(nodes: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Iterator[Place]:
    """The slots of ``nodes`` (as :func:`ray.nodes` gives them), those of the same node one after the other."""
    for node in nodes:
        if not node.get("Alive"):
            continue
        has = node.get("Resources", {})
        count, resource = slots_of(has, options), options.get("resource") or ""
        for index in range(count):
            yield Place(
                node["NodeID"], node.get("NodeManagerHostname") or node.get("NodeManagerAddress", ""), index, count,
                cpus=options.get("cpus_per_slot") or has.get("CPU", 0.0) // count,
                gpus=options.get("gpus_per_slot") or has.get("GPU", 0.0) // count, resource=resource,
            )  # fmt: skip


def slots_of(has: Mapping[str, float], options: Mapping[str, Any]) -> int:
    """How many slots a node with these resources has."""
    counts = []
    for option, key in (("gpus_per_slot", "GPU"), ("cpus_per_slot", "CPU")):
        if options.get(option):
            counts.append(int(has.get(key, 0.0) // options[option]))
    if options.get("resource"):
        counts.append(int(has.get(options["resource"], 0.0)))
    return min(counts) if counts else int(has.get("CPU", 0.0) >= 1)
