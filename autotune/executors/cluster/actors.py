"""A slot's processes on the cluster: its actor, and one on each further node it has.

All of them start, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.executors.cluster.multinode.outpost import THREADS, Outpost
from autotune.executors.cluster.places import Place
from autotune.executors.cluster.slot import Slot
from autotune.job.spec import JobSpec

NODE_LABEL = "ray.io/node-id"  # a label that every node has


@dataclass(frozen=True)
class Actors:
    """``slot`` is the actor to call, ``outposts`` are the actors on its other nodes.

    ``group`` holds the nodes if there are several.
    """

    slot: Any
    group: Any = None
    outposts: tuple[Any, ...] = ()

    def end(self) -> None:
        """Kill them, whatever they are doing: their guards clean up after them."""
        import ray

        ray.kill(self.slot)
        if self.group is not None:
            ray.util.remove_placement_group(self.group)


def start(place: Place, spec: JobSpec, inside: str | None, run_dir: Path) -> Actors:
    """Request the actors of ``place`` from Ray; they start when its nodes are free."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import (
        NodeAffinitySchedulingStrategy,
        PlacementGroupSchedulingStrategy,
    )

    share: dict[str, Any] = {
        "num_cpus": place.cpus,
        "num_gpus": place.gpus,
        "resources": {place.resource: 1} if place.resource else None,
    }
    once = {**share, "max_restarts": 0, "max_task_retries": 0}
    if not place.others:
        on = NodeAffinitySchedulingStrategy(place.node_id, soft=False)
        return Actors(
            ray.remote(Slot)
            .options(scheduling_strategy=on, **once)
            .remote(spec, place, inside, run_dir)
        )
    bundle = {
        key: value
        for key, value in {"CPU": place.cpus, "GPU": place.gpus, place.resource: 1.0}.items()
        if key and value
    }
    labels = [{NODE_LABEL: node} for node in place.nodes]
    group = placement_group(
        [bundle] * len(place.nodes), strategy="STRICT_SPREAD", bundle_label_selector=labels
    )
    on_each = [
        PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        for index in range(len(place.nodes))
    ]
    outposts = [
        ray.remote(Outpost)
        .options(scheduling_strategy=on, max_concurrency=THREADS, **once)
        .remote(spec, place, inside, run_dir)
        for on in on_each[1:]
    ]
    slot = (
        ray.remote(Slot)
        .options(scheduling_strategy=on_each[0], **once)
        .remote(spec, place, inside, run_dir, outposts)
    )
    return Actors(slot, group, tuple(outposts))
