"""Which slots a cluster has: nodes as a whole, or fixed shares of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    resource: str = ""  # of which the slot takes one unit, too
    others: tuple[str, ...] = ()  # further nodes of the slot, with the same share of each

    @property
    def name(self) -> str:
        """Its name for people; the same as long as the node is part of the cluster."""
        return (
            f"{self.host}-{self.node_id[:6]}"
            + (f".{self.index}" if self.of > 1 else "")
            + "".join(f"+{node[:6]}" for node in self.others)
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node_id, *self.others)

    def cores(self, cores: Sequence[int]) -> tuple[int, ...]:
        """Its part of the node's ``cores``: neighbors, which share caches and nearby memory."""
        each = max(1, len(cores) // self.of)
        return tuple(cores[self.index * each : (self.index + 1) * each])


def places(nodes: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Iterator[Place]:
    """The slots of ``nodes`` (as :func:`ray.nodes` gives them), node by node."""
    for node in nodes:
        if not node.get("Alive"):
            continue
        has = node.get("Resources", {})
        count, resource = slots_of(has, options), options.get("resource") or ""
        for index in range(count):
            yield Place(
                node["NodeID"],
                node.get("NodeManagerHostname") or node.get("NodeManagerAddress", ""),
                index,
                count,
                cpus=options.get("cpus_per_slot") or has.get("CPU", 0.0) // count,
                gpus=options.get("gpus_per_slot") or has.get("GPU", 0.0) // count,
                resource=resource,
            )


def groups(there: Iterable[Place], size: int, held: Iterable[Place]) -> Iterator[Place]:
    """Slots of ``size`` nodes each, all of one kind.

    Those in ``held`` stay as they are, as long as all their nodes are ``there``.
    """
    free = {place.node_id: place for place in there}
    for group in held:
        if all(node in free for node in group.nodes):
            yield group
            free = {node: place for node, place in free.items() if node not in group.nodes}
    kinds: dict[tuple[float, float], list[Place]] = {}
    for place in free.values():
        kinds.setdefault((place.cpus, place.gpus), []).append(place)
    for alike in kinds.values():
        for first in range(0, len(alike) - size + 1, size):
            yield replace(
                alike[first],
                others=tuple(other.node_id for other in alike[first + 1 : first + size]),
            )


def slots_of(has: Mapping[str, float], options: Mapping[str, Any]) -> int:
    """How many slots a node with these resources has; at most one if a slot has several nodes."""
    counts = []
    for option, key in (("gpus_per_slot", "GPU"), ("cpus_per_slot", "CPU")):
        if options.get(option):
            counts.append(int(has.get(key, 0.0) // options[option]))
    if options.get("resource"):
        counts.append(int(has.get(options["resource"], 0.0)))
    if counts and has.get("GPU"):  # Ray hides no GPU from an actor that reserves none
        counts.append(int(has["GPU"]))
    count = min(counts) if counts else int(has.get("CPU", 0.0) >= 1)
    return min(count, 1) if (options.get("nodes_per_slot") or 1) != 1 else count
