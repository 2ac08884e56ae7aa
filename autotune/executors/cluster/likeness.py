"""Keeps unlike hardware apart: results from one kind of machine say nothing about another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from autotune.export.fingerprint import COMPARED, compared
from autotune_spaces.facts import Machine

MEMORY_SHARE = 0.1  # machines of one kind differ by what their firmware and kernel reserve


def unlike(then: Machine, now: Machine) -> str:
    """How two machines differ, in words; "" if their figures are comparable."""
    if then.device != now.device:
        return f"device: {then.device} on the other slots, {now.device} on this one"
    found = [
        f"{word}: {before} on the other slots, {after} on this one"
        for word, before, after in compared(asdict(then), now, gpu=then.device == "cuda")
    ]
    if abs(then.memory_gib - now.memory_gib) > MEMORY_SHARE * max(then.memory_gib, now.memory_gib):
        found.append(
            f"memory: {then.memory_gib:.0f} GiB on the other slots, {now.memory_gib:.0f} GiB on"
            " this one"
        )
    return "; ".join(found)


def largest_group(machines: Sequence[Machine]) -> Machine:
    """A machine of the most common kind; in a tie, of one with GPUs, then of the first."""
    kinds = Counter(_kind(machine) for machine in machines)
    return max(machines, key=lambda machine: (kinds[_kind(machine)], machine.device == "cuda"))


def _kind(machine: Machine) -> tuple[str, ...]:
    return (machine.device, *(str(getattr(machine, name)) for name in COMPARED))
