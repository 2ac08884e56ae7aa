"""Which hardware threads share a core, and which share a NUMA node, read from Linux's
/sys/devices/system.

    cpu/cpu3/topology/thread_siblings_list   "3,67"    hardware threads of one core
    node/node1/cpulist                       "32-63"   hardware threads of one node

Only reads a directory. What cannot be read is left out: a machine that shows nothing counts as one
node without shared cores.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True)
class Topology:
    """CPUs are hardware threads, numbered as in the kernel; offline ones may be included."""

    cores: tuple[frozenset[int], ...] = ()
    nodes: tuple[frozenset[int], ...] = ()  # those that have CPUs, in the kernel's order
    # CPUs near each GPU, in CUDA's order; empty: unknown (gpus.py)
    gpus: tuple[frozenset[int], ...] = ()

    def first_of_each_core(self, allowed: Collection[int]) -> frozenset[int]:
        """The lowest allowed hardware thread of each core that has any in ``allowed``."""
        known = {cpu for core in self.cores for cpu in core}
        shared = (core.intersection(allowed) for core in self.cores)
        return frozenset({min(core) for core in shared if core} | (set(allowed) - known))

    def in_order(self, allowed: Collection[int]) -> list[int]:
        """``allowed``, node by node and core by core: the threads of a core beside each other."""
        node_of = {cpu: place for place, node in enumerate(self.nodes) for cpu in node}
        core_of = {cpu: min(core) for core in self.cores for cpu in core}
        return sorted(allowed, key=lambda cpu: (node_of.get(cpu, -1), core_of.get(cpu, cpu), cpu))

    def nodes_of(self, allowed: Collection[int]) -> tuple[frozenset[int], ...]:
        """The CPUs of ``allowed`` on each node, without nodes that have none."""
        return tuple(part for node in self.nodes if (part := node.intersection(allowed)))


def read(system: Path = SYSTEM) -> Topology:
    """The topology below ``system``."""
    cpus = _numbered(system / "cpu", "cpu")
    cores = {_list(cpu / "topology" / "thread_siblings_list") for cpu in cpus} - {frozenset()}
    nodes = [_list(node / "cpulist") for node in _numbered(system / "node", "node")]
    return Topology(tuple(sorted(cores, key=min)), tuple(filter(None, nodes)))


def parse_list(text: str) -> frozenset[int]:
    """Parse the kernel's CPU list format: "0-3,8,10-11".

    Raises:
        ValueError: ``text`` is not such a list.
    """
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        found = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"{text!r} is not a list of CPUs such as 0-3,8")
        cpus.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return frozenset(cpus)


def as_list(cpus: Iterable[int]) -> str:
    """The inverse of :func:`parse_list`, as short as possible."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _numbered(directory: Path, word: str) -> list[Path]:
    """All ``directory``/``word``N, sorted by N."""
    try:
        found = [
            (int(match[1]), path)
            for path in directory.iterdir()
            if (match := re.fullmatch(rf"{word}(\d+)", path.name))
        ]
    except OSError:
        return []
    return [path for _, path in sorted(found)]


def _list(path: Path) -> frozenset[int]:
    try:
        return parse_list(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()
