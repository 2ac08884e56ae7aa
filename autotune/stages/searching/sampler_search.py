"""SEARCH with Optuna's samplers: one trial per proposal, beside baseline blocks of its own session."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from autotune.executors.base import SessionFailed
from autotune.job.configs import live_domains
from autotune.results import Observation, Trial, TrialState
from autotune.search.proposer import Proposer
from autotune.search.seeds import seeds
from autotune.stages.context import RunContext
from autotune.stages.measuring.kept_session import BlockFailed
from autotune.stages.measuring.lanes import MOST_LOST, spread
from autotune.stages.measuring.live_comparison import LiveComparison
from autotune.stages.observe import explain_failure
from autotune.stages.searching.proposals import (
    PROMISING,
    Proposal,
    Proposals,
    learn,
    no_effect_words,
)
from autotune.verdict.speedup import LogRatio
from autotune.words import factor_words


def search_with_sampler(context: RunContext, observation: Observation, trials: list[Trial]) -> None:
    space = context.spec.search_space
    domains = live_domains(observation.domains, observation.defaults, space)
    if not domains:
        return
    proposer = Proposer(
        context.run_dir / "optuna.log",
        space,
        domains,
        observation.defaults,
        context.seed,
        context.spec.search,
    )
    proposer.restore(trials)
    for trial in trials:
        learn(proposer, trial, context, warn=False)
    for config in seeds(
        observation.bottleneck, domains, observation.defaults, observation.anatomy.minor_faults
    ):
        proposer.enqueue(config, "seed")
    proposals, own = Proposals(context, proposer, observation, trials), observation.anatomy

    def serve(lane: RunContext, pieces: Iterator[Proposal]) -> None:
        with LiveComparison(
            lane, noise=observation.noise, room=own.iterations, own_memory_gib=own.peak_memory_gib
        ) as live:
            for proposal in pieces:
                proposals.measured(_measure(lane, live, proposal, proposals))

    def give_up(proposal: Proposal, failure: SessionFailed) -> None:
        reason = f"its machine was lost {MOST_LOST} times; the last time: {failure.detail}"
        proposals.measured(
            Trial(
                proposal.number,
                proposal.config,
                TrialState.FAILED,
                reason=reason,
                origin=proposal.origin,
            )
        )

    spread(context, proposals.take, serve, give_up)


def _measure(
    context: RunContext, live: LiveComparison, proposal: Proposal, proposals: Proposals
) -> Trial:
    """Measure a proposal in the live session.

    Raises:
        SessionFailed: "lost"; nothing is known of the configuration.
    """
    config, started = proposal.config, time.monotonic()
    trial = Trial(
        proposal.number,
        config,
        TrialState.COMPLETE,
        origin=proposal.origin,
        node=context.executor.node,
    )
    context.progress.measuring(f"trial {proposal.number}", config)
    try:
        comparison = live.compare(config, {}, enough=lambda ratio: _enough(ratio, proposals.best()))
    except BlockFailed as failure:
        failed = replace(trial, state=TrialState(failure.kind), reason=failure.reason)
        return replace(failed, wall_s=time.monotonic() - started)
    except SessionFailed as failure:
        if failure.kind == "lost":
            raise
        raise explain_failure(context, failure) from failure
    useless = {k: why for k, why in comparison.no_effect.items() if k in config}
    state, reason = TrialState.COMPLETE, ""
    if useless:
        state, reason = TrialState.FAILED, no_effect_words(useless)
    elif comparison.pruned:
        factor = factor_words(math.exp(comparison.ratio.estimate))
        state, reason = TrialState.PRUNED, f"{factor} the baseline's time after its first block"
    return replace(
        trial,
        state=state,
        reason=reason,
        log_ratio=comparison.ratio.estimate,
        standard_error=comparison.ratio.standard_error,
        pairs=comparison.ratio.pairs,
        no_effect=useless,
        anatomy=comparison.anatomy,
        wall_s=time.monotonic() - started,
        settle_s=comparison.settle_s,
        second_log_ratio=comparison.second,
    )


def _enough(ratio: LogRatio, best: Trial | None) -> bool:
    """Whether no further pairs are needed.

    A possible new best gets two more, because its figure is the one that matters.
    """
    if ratio.pairs > 2 or ratio.estimate > -PROMISING:
        return True
    return best is not None and ratio.estimate > (best.log_ratio or 0.0) + ratio.standard_error
