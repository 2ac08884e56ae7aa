"""One report out of those of all ranks: rank 0's times, the samples of all.

All ranks of a synchronous job take the same steps at the same time, so times are not averaged; each rank feeds its
own samples, so those are added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune_trials.protocol import BlockReport, Record, Window


def merge_reports(reports: Mapping[int, BlockReport], device: str) -> BlockReport:
    """The report of one block, from rank -> report. It failed if it failed on any rank."""
    ordered = [reports[rank] for rank in sorted(reports)]
    error = next((r.error for r in ordered if r.error), "")
    windows = [r.window for r in ordered if r.window is not None]
    no_effect: dict[str, str] = {}
    for report in ordered:
        no_effect = {**report.no_effect, **no_effect}
    return replace(
        ordered[0],
        window=merge_windows(windows, device) if len(windows) == len(ordered) and not error else None,
        error=error,
        no_effect=no_effect,
        settled=all(r.settled for r in ordered),
        skipped_steps=max(r.skipped_steps for r in ordered),
    )


def merge_records(records: Mapping[int, Record], device: str) -> Record:
    """The record of a run, from rank -> record: losses, norms and fingerprint are those of rank 0."""
    ordered = [records[rank] for rank in sorted(records)]
    before = [r.samples_before for r in ordered if len(r.samples_before) == len(ordered[0].samples_before)]
    return replace(
        ordered[0],
        window=merge_windows([r.window for r in ordered], device),
        samples_before=tuple(map(sum, zip(*before, strict=True))) if len(before) == len(ordered) else ordered[0].samples_before,
        ended_early=any(r.ended_early for r in ordered),
    )


def merge_windows(windows: Sequence[Window], device: str) -> Window:
    """Rank 0's times with the samples of all ranks.

    Device memory is each device's own, so the largest counts; the resident sets of CPU ranks share one memory and add up.
    """
    first = windows[0]
    if len(windows) == 1:
        return first
    memory = [w.peak_memory_gib for w in windows]
    return replace(
        first,
        samples=_added([w.samples for w in windows]),
        peak_memory_gib=max(memory) if device == "cuda" else sum(memory),
        cpu_pressure=max(w.cpu_pressure for w in windows),
        session_load=max(w.session_load for w in windows),  # each rank sees the processes of all that run on its machine
        foreign_load=min(w.foreign_load for w in windows),  # all see the same machine; the others count their neighbours in
    )


def _added(samples: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    if all(len(s) == len(samples[0]) for s in samples):
        return tuple(map(sum, zip(*samples, strict=True)))
    own = sum(samples[0])  # one rank ended a step earlier: keep rank 0's pattern, scaled to everybody's mean
    if not own:
        return samples[0]
    mean = sum(sum(s) / max(1, len(s)) for s in samples)
    factor = mean * len(samples[0]) / own
    return tuple(s * factor for s in samples[0])
