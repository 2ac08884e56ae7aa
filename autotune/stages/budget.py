"""How the budget's minutes are shared out.

    │ observe │ search ───────────────▶│ process knobs ▶│ eight fresh pairs, loss check │ explain │
    0                        search_ends_s     proof_begins_s                          budget.minutes
"""

from __future__ import annotations

from autotune.results import Observation
from autotune.stages.bench import Bench
from autotune.stages.fresh import pair_s

SEARCH_SHARE = 0.55  # of the budget at most: beyond it a live search learns little that fresh processes do not tell better
PAIRS_KEPT = 8  # of fresh processes, for the proof of one finalist
EXPLAIN_SHARE = 0.12  # of the budget
FEWEST_SHARE = 0.15  # of the budget is searched however long a proof takes: an answer without a search is none


def proof_begins_s(bench: Bench, observation: Observation) -> float:
    """Seconds into the run at which the proof of a finalist has to begin."""
    budget_s = bench.spec.budget.minutes * 60
    return (1 - EXPLAIN_SHARE) * budget_s - PAIRS_KEPT * pair_s(bench, observation)


def search_ends_s(bench: Bench, observation: Observation) -> float:
    """Seconds into the run at which the live search ends at the latest."""
    budget_s = bench.spec.budget.minutes * 60
    end_s = min(SEARCH_SHARE * budget_s, proof_begins_s(bench, observation))
    return max(end_s, bench.journal.elapsed_s + FEWEST_SHARE * budget_s)
