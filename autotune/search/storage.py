"""Where Optuna's study lies on disk, for one process that writes it.

Optuna's own file storage takes a lock, appends and waits for the disk for each of the some twenty things it notes of a trial: it is made for
many processes on a network. Here one process writes, under the run directory's lock, and nothing hangs on the file: our own journal is the
truth on resume. So lines are appended, and what was appended is handed back from memory. The format is Optuna's: its tools open the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class OneWriterJournal:
    """What ``optuna.storages.JournalStorage`` takes for its backend.

    Raises (its methods):
        OSError: the disk is full or the directory is gone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = sum(1 for _ in _whole_lines(path, cut=True))
        self._unread: list[dict[str, Any]] = []  # the last ones, of which nobody has asked for the next

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        lines = [json.dumps(log, separators=(",", ":")) for log in logs]
        with open(self._path, "ab", buffering=0) as file:
            file.write("".join(line + "\n" for line in lines).encode())
        self._unread += [json.loads(line) for line in lines]
        self._count += len(lines)

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        missing = self._count - log_number_from
        if missing > len(self._unread):  # from an earlier process
            return list(_whole_lines(self._path))[log_number_from:]
        self._unread = self._unread[len(self._unread) - missing :]
        return list(self._unread)


BEST, LATEST = 50, 100  # finished trials that the sampler looks at: with 200 it found no better ones in 500 trials
STRIDE = 10  # trials from one choice of them to the next: the sampler asks five times a proposal


def remember_less(storage: Any) -> None:
    """Have ``storage`` give the sampler the best and the latest of a long study's finished trials, not all of them.

    TPE goes through all it is given, several times for each proposal: a thousand trials in, that takes longer than all else the tuner does
    for a trial. Its good group is made of the best; of the others, which only say where the rest lies, the latest are as good as all.
    """
    from optuna.trial import TrialState

    whole = storage.get_all_trials
    choices: dict[int, tuple[int, frozenset[int]]] = {}  # the last one: number of the trial it was made before -> oldest of the latest, and the best

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


def _whole_lines(path: Path, cut: bool = False) -> Iterator[dict[str, Any]]:
    """The lines that were written to their end; ``cut``: what follows them, of a process that was killed, is removed."""
    if not path.exists():
        return
    whole = 0
    with open(path, "rb+" if cut else "rb") as file:
        for line in file:
            try:
                log = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                log = None
            if not isinstance(log, dict):
                break
            whole += len(line)
            yield log
        if cut:
            file.truncate(whole)
