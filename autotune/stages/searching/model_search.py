"""SEARCH in one live session, in which every block informs every knob.

    ModelStudy ── Series ──▶ LiveSeries ── blocks ──▶ the running job
        ▲                      │
        └────── log costs ◀────┘

A job that waits for batches most of its time has its loader knobs searched first, alone. Once it
waits less, or they have no more to give, the search continues with all knobs together. The result
is the model's answer: the fastest configuration without the knobs that are not worth their price.
``search: tpe`` and ``random`` let a sampler of Optuna's propose instead (sampler_study.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.executors.base import SessionFailed
from autotune.history.use import Expected
from autotune.job.configs import live_domains
from autotune.results import KnobGain, Observation, Trial
from autotune.search.focus import knobs_that_matter
from autotune.search.model import KnobVerdict, Series
from autotune.stages.context import RunContext
from autotune.stages.decisions.worth_it import break_even_steps
from autotune.stages.measuring.fresh import understated
from autotune.stages.measuring.lanes import MOST_LOST, spread
from autotune.stages.measuring.series import LiveSeries
from autotune.stages.observe import explain_failure
from autotune.stages.searching.limits import MOSTLY, waiting_share
from autotune.stages.searching.model_study import ModelStudy
from autotune.stages.searching.sampler_study import SamplerStudy
from autotune.verdict.speedup import around
from autotune_spaces.base import Value


@dataclass(frozen=True)
class Found:
    """The result of the live search."""

    config: dict[str, Value]
    # log(cost of the unchanged job / cost of this configuration), measured live: it steers the
    # search and is never reported as the result
    log_gain: float
    # for every knob of the fastest configuration, kept or not
    gains: tuple[KnobGain, ...] = ()
    # why the search ended early -> the knobs that it left without a trial
    untried: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def search_live(
    context: RunContext, observation: Observation, expected: Sequence[Expected] = ()
) -> tuple[list[Trial], Found]:
    """Search the knobs that can be switched in a running job.

    Raises:
        BaselineError: the unchanged job cannot be measured.
        Interrupted: the user asked to stop; call again to resume.
    """
    domains = live_domains(observation.domains, observation.defaults, context.spec.search_space)
    names: tuple[str, ...] = tuple(observation.domains)
    later: tuple[str, ...] = ()
    if waiting_share(observation) > MOSTLY:  # until it waits less, other knobs hardly show
        names, later = knobs_that_matter(observation.bottleneck, observation.domains)
    study: ModelStudy
    if context.spec.search == "model":
        live = [name for name in names if name in domains]
        study = ModelStudy(context, observation, live, later, expected)
    else:
        study = SamplerStudy(context, observation, [*domains])
    study.restore()
    _measure(study, context)
    answer = study.answer()
    return study.trials(), Found(
        dict(answer.config),
        answer.gain,
        tuple(_gain(verdict, answer.gain, study) for verdict in answer.knobs),
        study.untried(),
    )


def _measure(study: ModelStudy, context: RunContext) -> None:
    own = study.observation.anatomy

    def serve(lane: RunContext, pieces: Iterator[Series]) -> None:
        with LiveSeries(lane, own.iteration_s, own.iterations, own.peak_memory_gib) as live:
            for series in pieces:
                try:
                    blocks = live.measure(series.blocks)
                except SessionFailed as failure:
                    if failure.kind == "lost":
                        raise
                    raise explain_failure(lane, failure) from failure
                study.measured(series, blocks, lane.executor.node)

    def give_up(series: Series, failure: SessionFailed) -> None:
        study.given_up(
            series, f"its machine was lost {MOST_LOST} times; the last time: {failure.detail}"
        )

    spread(context, study.take, serve, give_up)


def _gain(verdict: KnobVerdict, answer_gain: float, study: ModelStudy) -> KnobGain:
    """``answer_gain``: log gain of the whole answer, with the knob if that is kept."""
    start_up_s = study.start_up_s(verdict.name, verdict.value)
    others = answer_gain - verdict.gain * verdict.kept
    without_s = study.observation.anatomy.iteration_s * math.exp(-others)
    return KnobGain(
        verdict.name,
        verdict.value,
        around(verdict.gain, verdict.sd),
        verdict.kept,
        verdict.reason,
        start_up_s,
        break_even_steps(start_up_s, verdict.gain, without_s),
        understated(study.space[verdict.name], study.observation),
    )
