"""How the budget's minutes are shared out.

    │ observe │ search ───────────────▶│ process knobs ▶│ fresh pairs, loss check │ explain │
    0                        search_ends_s     proof_begins_s                    budget.minutes

The faster the candidate, the shorter its runs and the fewer the pairs that prove it: the search has
what they leave. It leaves time for one process knob, where there are any; more of them may take what
is kept for the proof beyond its first look.
"""

from __future__ import annotations

import math

from autotune.results import Observation
from autotune.stages.context import RunContext
from autotune.stages.explain import LONGEST_START_UP_S
from autotune.stages.measuring.fresh import (
    FEWEST_PAIRS,
    first_look_s,
    pair_s,
    rounds,
    values_for_fresh_runs,
)
from autotune.stages.measuring.pairs import PROCESS_PAIRS

# of the budget at most: beyond it a live search learns little that fresh processes do not tell
# better
SEARCH_SHARE = 0.55
PAIRS_KEPT = 8  # of fresh processes, for the proof of one finalist
CLEAR = math.log(1.5)  # a gain that the first look proves, on all but the noisiest machines
# starts of the job and seconds beside them that explaining a winner takes; the starts where nothing
# is shown with Python frames, as the job takes long to start
EXPLAIN_STARTS, FRAMELESS_STARTS, EXPLAIN_S = 4, 2, 30.0
# of the budget is searched however long a proof takes: an answer without a search is none
FEWEST_SHARE = 0.15


def proof_begins_s(
    context: RunContext, observation: Observation, gain: float = 0.0, pairs: int | None = None
) -> float:
    """Seconds into the run at which the proof of a finalist has to begin.

    Args:
        gain: its log speed-up as it is known until now.
        pairs: of fresh processes that are kept for it; None: as many as such a gain may need.
    """
    if pairs is None:
        pairs = PAIRS_KEPT if gain < CLEAR else FEWEST_PAIRS
    return (
        context.spec.budget.minutes * 60
        - explain_s(context, observation)
        - rounds(context, pairs) * pair_s(context, observation, gain)
    )


def explain_s(context: RunContext, observation: Observation) -> float:
    """About how long the explanation of a winner takes, in seconds: profiled runs of both sides,
    and the build-up of the gain.
    """
    if context.spec.traces == "none":
        return 0.0
    frames = observation.startup_s <= LONGEST_START_UP_S
    return (EXPLAIN_STARTS if frames else FRAMELESS_STARTS) * observation.startup_s + EXPLAIN_S


def needed_s(context: RunContext, observation: Observation) -> float:
    """About how long a run takes, in seconds, that finds something and proves it at the first look."""
    return (
        search_ends_s(context, observation, context.journal.elapsed_s)
        + first_look_s(context, observation)
        + explain_s(context, observation)
    )


def search_ends_s(
    context: RunContext, observation: Observation, began_s: float, gain: float = 0.0
) -> float:
    """Seconds into the run at which the live search that began at ``began_s`` ends at the latest.
    ``gain``: log speed-up of what it has found.
    """
    budget_s = context.spec.budget.minutes * 60
    space = context.spec.search_space
    end_s = proof_begins_s(context, observation, gain)
    if any(values_for_fresh_runs(space, name, observation) for name in observation.domains):
        # one pair to spare: a series may end late
        end_s -= rounds(context, PROCESS_PAIRS + 1) * pair_s(context, observation, gain)
    return max(min(SEARCH_SHARE * budget_s, end_s), began_s + FEWEST_SHARE * budget_s)
