"""How the budget's minutes are divided.

    │ observe │ search ───────────────▶│ process knobs ▶│ fresh pairs, loss check │ explain │
    0                        search_ends_s     proof_begins_s                    budget.minutes

The faster the candidate, the shorter its runs and the fewer pairs its proof needs; the search gets
the time that this leaves. It reserves time for one process knob, if there is one that the fastest
configuration lacks and if that fits at all; further ones may use the time kept for the proof beyond
its first look.
"""

from __future__ import annotations

import math
from types import MappingProxyType

from autotune.results import Observation
from autotune.stages.context import ANNOUNCED, RunContext
from autotune.stages.explain import LONGEST_START_UP_S
from autotune.stages.measuring.fresh import (
    FEWEST_PAIRS,
    first_look_s,
    pair_s,
    rounds,
    values_for_fresh_runs,
)
from autotune.stages.measuring.pairs import PROCESS_PAIRS
from autotune.words import duration_words
from autotune_spaces.base import Config

# largest share of the budget: beyond it, a live search learns little that fresh processes do not
# show better
SEARCH_SHARE = 0.55
PAIRS_KEPT = 8  # of fresh processes, reserved for the proof of one finalist
CLEAR = math.log(1.3)  # a gain that the first look proves on all but the noisiest machines
# starts of the job, and seconds on top, that explaining a winner takes; fewer starts if the job
# takes too long to start for traces with Python frames
EXPLAIN_STARTS, FRAMELESS_STARTS, EXPLAIN_S = 4, 2, 30.0
# the time that is always searched, however long the proof takes: shares of the budget, and of the
# first look, up to SEARCH_SHARE (a proof of minutes is wasted on what seconds of search have found)
FEWEST_SHARE, OF_FIRST_LOOK = 0.15, 0.3
SEARCH_BEGAN = "search-began"  # journal key
# why something was left untried
NO_TIME = "no time left before the proof: raise budget.minutes"
NO_TRIALS = "budget.trials is used up"


def proof_begins_s(
    context: RunContext, observation: Observation, gain: float = 0.0, pairs: int | None = None
) -> float:
    """Seconds into the run at which the proof of a finalist has to begin.

    Args:
        gain: its log speed-up, as known so far.
        pairs: of fresh processes to reserve for it; None: as many as such a gain may need.
    """
    if pairs is None:
        pairs = PAIRS_KEPT if gain < CLEAR else FEWEST_PAIRS
    return (
        context.spec.budget.minutes * 60
        - explain_s(context, observation)
        - rounds(context, pairs) * pair_s(context, observation, gain)
    )


def explain_s(context: RunContext, observation: Observation) -> float:
    """Estimated seconds to explain a winner: profiled runs of both sides."""
    if context.spec.traces == "none":
        return 0.0
    frames = observation.startup_s <= LONGEST_START_UP_S
    return (EXPLAIN_STARTS if frames else FRAMELESS_STARTS) * observation.startup_s + EXPLAIN_S


def needed_s(context: RunContext, observation: Observation) -> float:
    """Estimated seconds of a run that finds something and proves it at the first look."""
    return (
        search_ends_s(context, observation, context.journal.elapsed_s)
        + first_look_s(context, observation)
        + explain_s(context, observation)
    )


def search_began_s(context: RunContext) -> float:
    """Seconds into the run at which the search began; a resumed run has the same value."""
    began_s = context.journal.find(SEARCH_BEGAN)
    if began_s is None:
        began_s = context.journal.elapsed_s
        context.journal.append(SEARCH_BEGAN, "", began_s)
    return float(began_s)


def search_ends_s(
    context: RunContext,
    observation: Observation,
    began_s: float,
    gain: float = 0.0,
    leader: Config = MappingProxyType({}),
) -> float:
    """Seconds into the run by which the live search that began at ``began_s`` has to end.

    Args:
        gain: log speed-up of the best configuration so far.
        leader: what the search would answer now; its values need no further process.
    """
    budget_s = context.spec.budget.minutes * 60
    space = context.spec.search_space
    # as long as nothing is found, only the proof that is always made has to fit
    end_s = proof_begins_s(context, observation, gain, None if gain else FEWEST_PAIRS)
    look_s = min(OF_FIRST_LOOK * first_look_s(context, observation), SEARCH_SHARE * budget_s)
    fewest_s = began_s + max(FEWEST_SHARE * budget_s, look_s)
    if any(
        value != leader.get(name)
        for name in observation.domains
        for value in values_for_fresh_runs(space, name, observation)
    ):
        a_pair_s = pair_s(context, observation, gain, gain)
        proof_s = proof_begins_s(context, observation, gain, FEWEST_PAIRS)
        if proof_s - rounds(context, PROCESS_PAIRS) * a_pair_s >= fewest_s:  # else none fits
            # one spare pair: a series may end late
            end_s -= rounds(context, PROCESS_PAIRS + 1) * a_pair_s
    return max(min(SEARCH_SHARE * budget_s, end_s), fewest_s)


def tried_enough(context: RunContext, observation: Observation, trials: int) -> bool:
    """Whether ``trials`` leaves none of ``budget.trials`` but those kept for fresh processes."""
    most, space = context.spec.budget.trials, context.spec.search_space
    if most is None:
        return False
    fresh = (values_for_fresh_runs(space, name, observation) for name in observation.domains)
    return trials >= most - min(most // 3, sum(map(len, fresh)))


def announce(context: RunContext, what: str, takes_s: float, run: str, run_s: float) -> None:
    """Tell that the run will take longer than the budget; keep how long."""
    context.journal.append(ANNOUNCED, "", run_s)
    context.progress.note(
        f"{what} takes about {duration_words(takes_s)} for this job; {run} will take about"
        f" {duration_words(run_s)} instead of budget.minutes ({context.spec.budget.minutes:g}),"
        " because a first proof is always finished"
    )
