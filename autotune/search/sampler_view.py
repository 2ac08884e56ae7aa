"""Limit the trials that Optuna's sampler sees in a long study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# finished trials that the sampler sees: with 200 it found nothing better in 500 trials
BEST, LATEST = 50, 100
STRIDE = 10  # trials between two selections: the sampler reads them five times per proposal


def show_best_and_latest(storage: Any) -> None:
    """Make ``storage`` return only the best and the latest finished trials of a long study.

    TPE goes through all trials several times per proposal: after a thousand trials this takes
    longer than everything else the tuner does for a trial. Its good group consists of the best; to
    describe the others, the latest are as good as all of them.
    """
    from optuna.trial import TrialState

    whole = storage.get_all_trials
    # the last selection: trial number before which it was made -> oldest of the latest, the best
    choices: dict[int, tuple[int, frozenset[int]]] = {}

    def get_all_trials(study_id: int, deepcopy: bool = True, states: Any = None) -> list[Any]:
        trials = list(whole(study_id, deepcopy, states))
        if not trials or (states is not None and TrialState.COMPLETE not in states):
            return trials
        before = trials[-1].number // STRIDE * STRIDE
        if before not in choices:
            choices.clear()
            choices[before] = _best_and_latest([trial for trial in trials if trial.number < before])
        oldest, best = choices[before]
        return [trial for trial in trials if trial.number >= oldest or trial.number in best]

    storage.get_all_trials = get_all_trials


def _best_and_latest(trials: Sequence[Any]) -> tuple[int, frozenset[int]]:
    """(number of the oldest of the latest finished trials, numbers of the best before it)."""
    finished = [trial for trial in trials if trial.state.is_finished() and trial.values]
    if len(finished) <= BEST + LATEST:
        return 0, frozenset()
    best = sorted(finished[:-LATEST], key=lambda trial: trial.value)[:BEST]
    return finished[-LATEST].number, frozenset(trial.number for trial in best)
