"""Nsight Systems and Nsight Compute in the explain stage: one more session per side and tool.

    baseline │ nsys │ ncu │     winner │ nsys │ ncu │          only what was asked for; torch.profiler has run before

The tool captures the session's profiled window. Each needs a session of its own because CUDA's
profiling interface serves one subscriber at a time. Anything unavailable becomes one sentence in
Explanation.notes, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autotune.executors.base import Capture, FixedRun, SessionFailed
from autotune.explain.nsight import (
    NCU,
    NSYS,
    TOP_KERNELS,
    Tool,
    Unreadable,
    export,
    ncu_words,
    nsys_words,
    read_ncu,
    read_sqlite,
)
from autotune.explain.records import Side
from autotune.job.configs import key_of
from autotune.stages.context import RunContext
from autotune_spaces.base import Config
from autotune_spaces.facts import JobFacts

SETTLE_STEPS = 30  # iterations before the captured ones
REPORT = "{report}"  # filled in by the executor


def captured(
    context: RunContext, configs: Mapping[str, Config], sides: Mapping[str, Side], job: JobFacts
) -> tuple[dict[str, Side], tuple[str, ...]]:
    """Add what the requested tools saw to each side.

    Also returns a sentence for each thing that was unavailable.
    """
    found, notes = dict(sides), []
    for tool in context.nsight:
        why = tool.missing(job.device, job.world_size)
        if why:
            notes.append(why)
            continue
        for name, side in found.items():
            try:
                found[name] = _with(context, tool, name, configs[name], side)
            except Unreadable as reason:
                notes.append(f"{tool.title}, {name}: {reason}.")
            except SessionFailed as failure:
                context.stop.check_after(failure.kind)
                notes.append(f"{tool.title}, {name}: the session failed ({failure}).")
        missing = [
            m
            for side in found.values()
            if tool is NSYS and side.nsight_facts
            for m in side.nsight_facts.missing
        ]
        notes += [f"{tool.title}: its export has {m}." for m in dict.fromkeys(missing)]
    return found, tuple(notes)


def _with(context: RunContext, tool: Tool, name: str, config: Config, side: Side) -> Side:
    """Return ``side`` with the tool's report and what was read from it.

    Raises:
        Unreadable, SessionFailed
    """
    kernels = [kernel for row in side.operators for kernel in row.kernels][:TOP_KERNELS]
    words = nsys_words(REPORT) if tool is NSYS else ncu_words(REPORT, kernels)
    report = _run(context, tool, name, config, words)
    kept = _kept(context, report, f"{name}{tool.suffix}")
    if tool is NCU:
        return replace(side, ncu=kept, counters=read_ncu(report))
    database = export(report)
    try:
        return replace(side, nsight=kept, nsight_facts=read_sqlite(database))
    finally:
        # one command exports it again from the report, and it is many times larger
        database.unlink(missing_ok=True)


def _run(
    context: RunContext, tool: Tool, name: str, config: Config, words: tuple[str, ...]
) -> Path:
    label = f"{tool.name}-{name}"
    request = FixedRun(
        config,
        seed=0,
        steps=SETTLE_STEPS,
        profile=True,
        label=label,
        nvtx_modules=context.nvtx_modules,
        capture=Capture(words, tool.suffix),
    )
    context.progress.fixed_run(f"{tool.title}, {name}", 1, 1, config)
    record = context.recorded(
        "|".join([label, key_of(config)]), label, lambda: context.executor.run_fixed(request)
    )
    report = str(record.notes.get("report", ""))
    if not report or not Path(report).exists():
        reason = record.notes.get("profile") or (
            "the job ended too early" if record.ended_early else f"{tool.name} wrote none"
        )
        raise Unreadable(f"there is no report: {reason}")
    return Path(report)


def _kept(context: RunContext, report: Path, name: str) -> str:
    """Link the report into the run's traces; returns its path within the run directory."""
    target = context.run_dir / "traces" / name
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        target.hardlink_to(report)  # the session keeps its own: a resumed run finds it there
    return str(target.relative_to(context.run_dir))
