"""The job's DistributedDataParallel modules: where it built them, and with which arguments."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from autotune_spaces.facts import DdpFacts


class Replicas:
    """All that were built, in order. ``asked``: the job's own constructor arguments."""

    def __init__(self) -> None:
        self._built: list[tuple[Any, Mapping[str, Any], str]] = []

    def add(self, module: Any, asked: Mapping[str, Any], site: str) -> None:
        self._built.append((weakref.ref(module), asked, site))

    def modules(self) -> list[Any]:
        return [module for module, _, _ in self._existing()]

    def facts(self) -> tuple[DdpFacts, ...]:
        return tuple(_facts(*built) for built in self._existing())

    def _existing(self) -> Iterator[tuple[Any, Mapping[str, Any], str]]:
        for reference, asked, site in self._built:
            if (module := reference()) is not None:
                yield module, asked, site


def _facts(module: Any, asked: Mapping[str, Any], site: str) -> DdpFacts:
    cap = asked.get("bucket_cap_mb")
    return DdpFacts(
        site=site,
        gradients_mib=sum(
            p.numel() * p.element_size() for p in module.parameters() if p.requires_grad
        )
        / 2**20,
        bucket_cap_mb=None if cap is None else float(cap),
        gradient_as_bucket_view=bool(asked.get("gradient_as_bucket_view")),
        static_graph=bool(asked.get("static_graph")),
        find_unused_parameters=bool(asked.get("find_unused_parameters")),
        seen_static=_seen_static(module),
        own_buckets=bool(asked.get("bucket_cap_mb_list")),
    )


def _seen_static(module: Any) -> bool:
    """Whether DDP has seen the same parameters take part in every backward so far; False if
    unknown.
    """
    try:
        return bool(module.reducer._ddp_graph_static())
    except Exception:  # another torch, another reducer: False is safe
        return False
