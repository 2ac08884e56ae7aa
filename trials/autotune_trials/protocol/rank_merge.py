"""Merge the reports of all ranks into one: rank 0's times, summed samples, mean loss.

All ranks of a synchronous job take the same steps at the same time, so times are not averaged.
Each rank feeds its own samples, so samples are summed. Each rank's loss covers only its own
samples; the gradient descends their mean, which is what the job would log after an all-reduce.

Where one rank reads for all (accelerate's ``dispatch_batches``), that rank counts the samples and
knows what the knobs of the loader do; the others, which see no DataLoader, are not asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune_spaces import knobs as registry
from autotune_spaces.domains import NO_LOADER
from autotune_spaces.facts import JobFacts, LoaderFacts
from autotune_trials.protocol.messages import BlockReport, Hello, Record, Window


def merge_hellos(hellos: Mapping[int, Hello]) -> Hello:
    """Merge rank -> hello: rank 0's, with all ranks' samples and the smallest device memory."""
    ordered = [hellos[rank] for rank in sorted(hellos)]
    first, jobs = ordered[0], [h.job for h in ordered]
    if len(ordered) == 1:
        return first
    counted = [j.samples_per_step for j in jobs if j.sample_unit == "samples"]
    job = replace(
        first.job,
        loader=_merged_loader([j.loader for j in jobs]),
        samples_per_step=sum(counted) if counted else first.job.samples_per_step,
        sample_unit="samples" if counted else first.job.sample_unit,
        ddp=tuple(
            replace(d, seen_static=all(_seen_static(j, at) for j in jobs))
            for at, d in enumerate(first.job.ddp)
        ),
    )
    memory_gib = min(h.machine.device_memory_gib for h in ordered)
    return replace(first, job=job, machine=replace(first.machine, device_memory_gib=memory_gib))


def merge_reports(reports: Mapping[int, BlockReport], jobs: Mapping[int, JobFacts]) -> BlockReport:
    """Merge rank -> report of one block. The block failed if it failed on any rank. ``jobs``: what
    each rank told of the job."""
    by_rank = dict(sorted(reports.items()))
    ordered = list(by_rank.values())
    error = _error({rank: r.error for rank, r in by_rank.items() if r.error}, len(by_rank))
    windows = {rank: r.window for rank, r in by_rank.items() if r.window is not None}
    return replace(
        ordered[0],
        window=(
            merge_windows(windows, jobs) if len(windows) == len(ordered) and not error else None
        ),
        error=error,
        no_effect=_no_effect({rank: r.no_effect for rank, r in by_rank.items()}, jobs),
        settled=all(r.settled for r in ordered),
        notes=_merged_notes([r.notes for r in ordered]),
    )


def _error(by_rank: Mapping[int, str], ranks: int) -> str:
    """The first rank's error, which names it unless all ranks failed: ``knob: rank 1: …``"""
    if not by_rank:
        return ""
    rank, error = next(iter(by_rank.items()))
    kind, colon, detail = error.partition(": ")
    if len(by_rank) == ranks or kind not in ("knob", "oom"):
        return error
    return f"{kind}{colon}rank {rank}: {detail}"


def merge_records(records: Mapping[int, Record], jobs: Mapping[int, JobFacts]) -> Record:
    """Merge rank -> record of one run. Norms, metrics and fingerprint are those of rank 0.
    ``jobs``: what each rank told of the job."""
    by_rank = dict(sorted(records.items()))
    ordered = list(by_rank.values())
    if len(ordered) == 1:
        return ordered[0]
    before = [by_rank[rank].samples_before for rank in _counting(by_rank, jobs)]
    same = all(len(b) == len(ordered[0].samples_before) for b in before)
    return replace(
        ordered[0],
        window=merge_windows({rank: r.window for rank, r in by_rank.items()}, jobs),
        losses=mean_losses([r.losses for r in ordered]),
        samples_before=(
            tuple(map(sum, zip(*before, strict=True))) if same else ordered[0].samples_before
        ),
        no_effect=_no_effect({rank: r.no_effect for rank, r in by_rank.items()}, jobs),
        idle=tuple(knob for knob in ordered[0].idle if all(knob in r.idle for r in ordered)),
        ended_early=any(r.ended_early for r in ordered),
        notes={**ordered[0].notes, "ranks": len(ordered)},
    )


def merge_windows(by_rank: Mapping[int, Window], jobs: Mapping[int, JobFacts]) -> Window:
    """Rank 0's times with the samples of all ranks.

    Each device has its own memory, so the largest peak counts; CPU ranks share the host's memory,
    so theirs are summed.
    """
    windows = list(by_rank.values())
    first = windows[0]
    if len(windows) == 1:
        return first
    device, machines = jobs[min(jobs)].device, _by_machine(by_rank, jobs)
    memory = [w.peak_memory_gib for w in windows]
    # CPU ranks of a machine read the same counters
    counting = windows if device == "cuda" else [machine[0] for machine in machines]
    joules = [w.joules for w in counting]
    return replace(
        first,
        samples=_added(first.samples, [by_rank[r].samples for r in _counting(by_rank, jobs)]),
        joules=_added(first.joules, joules) if all(joules) else (),  # of all machines, or none
        energy_counters=tuple(dict.fromkeys(name for w in counting for name in w.energy_counters)),
        peak_memory_gib=max(memory) if device == "cuda" else sum(memory),
        cpu_pressure=max(w.cpu_pressure for w in windows),
        # each rank sees the session processes of all ranks on its machine
        session_load=max(w.session_load for w in windows),
        # ranks of a machine see the same load, and some count neighboring ranks as foreign
        foreign_load=max(min(w.foreign_load for w in machine) for machine in machines),
        # the slowest device makes all wait
        throttled=next((w.throttled for w in windows if w.throttled), ""),
        power_capped=any(w.power_capped for w in windows),
    )


def _by_machine(by_rank: Mapping[int, Window], jobs: Mapping[int, JobFacts]) -> list[list[Window]]:
    found: dict[str, list[Window]] = {}
    for rank, window in by_rank.items():
        found.setdefault(jobs[rank].process.host if rank in jobs else "", []).append(window)
    return list(found.values())


def mean_losses(losses: Sequence[tuple[float | None, ...]]) -> tuple[float | None, ...]:
    """Mean loss per step over the ranks that have one (in a pipeline: the last). Truncated to the
    shortest rank.
    """
    steps = zip(*losses, strict=False)
    return tuple(_mean([loss for loss in step if loss is not None]) for step in steps)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _counting(ranks: Iterable[int], jobs: Mapping[int, JobFacts]) -> list[int]:
    """Those of ``ranks`` that count samples; all of them if none does, and each counts an iteration
    as one."""
    every = list(ranks)
    return [r for r in every if r in jobs and jobs[r].sample_unit == "samples"] or every


def _added(first: tuple[float, ...], samples: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """The sum of ``samples``, as many as in ``first``, rank 0's."""
    if all(len(s) == len(first) for s in samples):
        return tuple(map(sum, zip(*samples, strict=True)))
    # one rank ended a step early: keep rank 0's pattern, scaled to the sum of the ranks' means
    own = sum(first)
    if not own:
        return first
    mean = sum(sum(s) / max(1, len(s)) for s in samples)
    factor = mean * len(first) / own
    return tuple(s * factor for s in first)


def _no_effect(
    by_rank: Mapping[int, Mapping[str, str]], jobs: Mapping[int, JobFacts]
) -> dict[str, str]:
    """Knobs that had no effect on at least one rank; the reason names the rank unless it is all.
    What a rank that reads no data says of the loader's knobs counts only if all ranks say it."""
    found: dict[str, str] = {}
    for knob in dict.fromkeys(k for reasons in by_rank.values() for k in reasons):
        told = {rank: reasons[knob] for rank, reasons in by_rank.items() if knob in reasons}
        everywhere = len(told) == len(by_rank)
        if not everywhere:
            told = {
                r: why
                for r, why in told.items()
                if r not in jobs or jobs[r].loader is not None or not _of_loader(knob, why)
            }
        if told:
            rank, why = next(iter(told.items()))
            found[knob] = why if everywhere else f"on rank {rank}: {why}"
    return found


def _of_loader(knob: str, why: str) -> bool:
    """Whether ``knob`` had no effect because there is no DataLoader."""
    return why == NO_LOADER or (knob in registry.names() and registry.kind(knob).loader)


def _merged_notes(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if len(notes) == 1:
        return dict(notes[0])
    merged = {**notes[0], "ranks": len(notes)}
    losses = [n["loss"] for n in notes if n.get("loss") is not None]
    if losses:
        merged["loss"] = math.fsum(losses) / len(losses)
    if any("non_finite_losses" in n for n in notes):
        merged["non_finite_losses"] = max(n.get("non_finite_losses", 0) for n in notes)
    return merged


def _merged_loader(loaders: Sequence[LoaderFacts | None]) -> LoaderFacts | None:
    first = loaders[0]
    if first is None:
        return None
    every = [loader.rank_samples if loader is not None else () for loader in loaders]
    return replace(first, rank_samples=tuple(n for own in every for n in own) if all(every) else ())


def _seen_static(job: JobFacts, at: int) -> bool:
    return at < len(job.ddp) and job.ddp[at].seen_static
