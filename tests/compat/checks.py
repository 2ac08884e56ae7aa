"""What is asserted for every program: the agent's view against the program's own log, and each knob
against what is in force.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from catalogue import LONG, Program
from harness import STEPS, Place
from truths import Truth, epoch_means

from autotune_spaces import knobs
from autotune_spaces.base import NotApplicable, Value
from autotune_spaces.facts import JobFacts
from autotune_trials.protocol.messages import Block, BlockReport, Hello, KnobChoice, Record

SWITCHED = (
    "num_workers",
    "batch_size",
    "amp_dtype",
    "optimizer_impl",
    "intra_op_threads",
    "matmul_precision",
    "pin_memory",
    "in_order",
)
# whether they apply shows in the job itself: they may be refused, with the reason
TRIED = ("gc",)
LISTED = (
    *SWITCHED,
    *TRIED,
    "compile_mode",
    "channels_last",
    "prefetch_factor",
    "persistent_workers",
)


def seen_as_it_is(program: Program, truth: Truth, hello: Hello, record: Record) -> None:
    """Compare steps, samples, losses and time of a whole run with the program's log of it."""
    losses, samples = record.losses, record.window.samples
    steps = len(truth.losses) or len(truth.epochs) * len(program.epoch)
    assert steps >= STEPS and len(losses) == len(samples) == steps
    told = list(truth.samples) if program.drawn else program.samples(steps)
    assert list(samples) == told
    assert list(record.samples_before) == [sum(told[:n]) for n in range(steps)]
    assert all(loss is not None and math.isfinite(loss) for loss in losses)
    if truth.losses:
        assert list(losses) == pytest.approx(list(truth.losses), rel=truth.rel)
    else:
        means = epoch_means(
            [loss or 0.0 for loss in losses], samples, len(program.epoch), truth.weighted
        )
        assert means == pytest.approx(list(truth.epochs), rel=truth.rel)
    job = hello.job
    assert job.backwards_per_step == program.backwards
    assert job.sample_unit == ("iterations" if program.loader is None else "samples")
    assert job.world_size == program.ranks and job.device == "cpu"
    assert (job.loader.num_workers if job.loader is not None else None) == program.loader
    assert record.ended_early and record.no_effect == {}
    # it excludes evaluation and everything else between iterations
    if truth.loop_s is not None:
        assert 0 < math.fsum(record.window.times_s) <= truth.loop_s - 0.95 * truth.away_s


@dataclass(frozen=True)
class Applied:
    """The outcome of the knobs in one running process."""

    hello: Hello
    # knob -> the value it was switched to
    values: Mapping[str, Value] = field(default_factory=dict)
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    listed: tuple[str, ...] = ()  # knobs that apply


def knobs_of(hello: Hello) -> tuple[dict[str, Value], dict[str, str]]:
    """(knob -> a value other than the job's own, knob -> why it does not apply)."""
    values: dict[str, Value] = {}
    withdrawn: dict[str, str] = {}
    for name in LISTED:
        try:
            domain = knobs.create(name, {}).domain(hello.machine, hello.job)
        except NotApplicable as reason:
            withdrawn[name] = str(reason)
        else:
            others = [value for value in domain.values if value != domain.default]
            values[name] = next((value for value in others if value not in ("off", 0)), others[0])
    for name in [
        name
        for name in values
        if "num_workers" in withdrawn and not _alone(name, values[name], hello)
    ]:
        withdrawn[name] = "means nothing without workers"
        del values[name]
    return values, withdrawn


def _alone(name: str, value: Value, hello: Hello) -> bool:
    """Whether the knob has an effect with the job's own number of workers."""
    workers = hello.job.loader.num_workers if hello.job.loader is not None else 0
    return knobs.create(name, {}).active({name: value}, {"num_workers": workers})


def switched_for_real(place: Place) -> Applied:
    """Switch each applicable knob on and off in one process, and read back what is in force in the
    job.
    """
    with place.session("live", LONG, "live") as session:
        hello = session.wait_hello()
        values, withdrawn = knobs_of(hello)
        asked = {name: values[name] for name in SWITCHED if name in values}
        blocks = [
            _block("before"),
            *(_block(name, *_choices(name, value, hello)) for name, value in asked.items()),
            _block("after"),
        ]
        reports = session.run_plan(blocks)
        tried = [_block(name, KnobChoice(name, values[name])) for name in TRIED if name in values]
        for report in session.run_plan(tried):
            if report.error or report.no_effect:
                withdrawn[report.id] = (report.error or report.no_effect[report.id]).removeprefix(
                    "knob: "
                )
    program = place.program
    before, *between, after = reports
    for report in reports:
        assert not report.error and not report.no_effect, report
        assert report.window is not None and report.notes["non_finite_losses"] == 0
    regions = 0
    for (name, value), report in zip(asked.items(), between, strict=True):
        _in_force(name, value, report, before, hello.job, regions, program.drawn)
        regions = report.notes["in_force"]["autocast_regions"]
    assert _plain(after) == _plain(before), "the job is as it was"
    if program.drawn:
        _as_logged(reports, program.truth(place.out("live")).samples)
    kept = {name: value for name, value in values.items() if name not in withdrawn}
    return Applied(
        hello,
        {name: value for name, value in kept.items() if name in (*SWITCHED, *TRIED)},
        withdrawn,
        tuple(kept),
    )


def _block(name: str, *choices: KnobChoice) -> Block:
    return Block(name, choices, iterations=12, max_settle=24)


def _choices(name: str, value: Value, hello: Hello) -> list[KnobChoice]:
    """The knob; with one more worker if it has no effect without (in_order)."""
    return [
        KnobChoice(name, value),
        *([] if _alone(name, value, hello) else [KnobChoice("num_workers", 1)]),
    ]


def _plain(report: BlockReport) -> dict[str, Any]:
    return {k: v for k, v in report.notes["in_force"].items() if k != "autocast_regions"}


def _in_force(
    name: str,
    value: Value,
    report: BlockReport,
    before: BlockReport,
    job: JobFacts,
    regions: int,
    drawn: bool,
) -> None:
    found = report.notes["in_force"]
    window, usual = report.window, before.window
    assert window is not None and usual is not None
    if name in ("num_workers", "batch_size", "pin_memory", "in_order"):
        assert found["loader"][name] == value
    if name == "batch_size":
        assert job.loader is not None and job.loader.batch_size and isinstance(value, int)
        assert max(window.samples) == max(usual.samples) * value / job.loader.batch_size
    elif not drawn:
        assert max(window.samples) == max(usual.samples)
    if name == "amp_dtype":
        assert found["autocast"] == value and found["autocast_regions"] >= regions + len(
            window.times_s
        )
        assert report.notes["loss"] != before.notes["loss"]
    if name == "optimizer_impl":
        assert set(found["optimizers"]) == {value}
    if name == "intra_op_threads":
        assert found["intra_op_threads"] == value


def _as_logged(reports: Sequence[BlockReport], told: Sequence[int]) -> None:
    """The samples of each block's steps are consecutive in the program's log, block after block."""
    first = 0
    for report in reports:
        assert report.window is not None
        seen = [int(n) for n in report.window.samples]
        starts = range(first, len(told) - len(seen) + 1)
        found = next((n for n in starts if list(told[n : n + len(seen)]) == seen), None)
        assert found is not None, f"{report.id}: {seen}"
        first = found + len(seen)


def hooked(hello: Hello) -> dict[str, Any]:
    """What the page shows of the agent's view."""
    job = hello.job
    return {
        "loader": f"{job.loader.dataset}, {job.loader.site}" if job.loader is not None else "",
        "models": [m.name for m in job.models],
        "optimizers": [f"{o.name} ({o.implementation})" for o in job.optimizers],
        "backwards": job.backwards_per_step,
        "samples": job.samples_per_step,
    }
