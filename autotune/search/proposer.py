"""Optuna, asked for the next configuration and told what came of it.

The study lies in ``optuna.log`` in the run directory (Optuna's own journal storage), so that any
Optuna tool can open it. Our
journal is the truth on resume: the file is written anew and told what the journal knows. What a
killed tuner leaves in it cannot be
carried on: a lock that is waited for, a torn line, a trial that was queued and would be handed out
in the place of another.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.job.configs import key_of, normalise
from autotune.results import Trial, TrialState
from autotune.search.sampler_view import show_best_and_latest
from autotune_spaces.base import Config, SearchSpace, Value

if TYPE_CHECKING:
    import optuna

INFEASIBLE_VALUE = 10.0  # a log ratio no real configuration reaches: e^10 times slower
# from a configuration that was measured to one that was not; who makes more has seen all there are
MOST_MOVES = 2000


class Proposer:
    """Ask/tell over the live knobs of one job.

    Args:
        path: Optuna's journal file.
        domains: knob -> values, the job's own among them.
        defaults: knob -> the job's own value.
        sampler: "tpe" or "random".
        seed: of the sampler; the same seed and the same answers give the same proposals.
    """

    def __init__(
        self,
        path: Path,
        space: SearchSpace,
        domains: Mapping[str, Sequence[Value]],
        defaults: Mapping[str, Value],
        seed: int,
        sampler: str = "tpe",
    ) -> None:
        self.space, self.defaults = space, defaults
        self.domains = {name: tuple(values) for name, values in domains.items()}
        self._excluded: set[tuple[str, Value]] = set()
        self._study = _open_study(path, seed, sampler)
        self._random = random.Random(seed)
        self._asked: dict[str, optuna.Trial] = {}
        self._known: dict[str, Trial] = {}
        self._queue: list[tuple[str, dict[str, Value]]] = []

    def restore(self, trials: Sequence[Trial]) -> None:
        """After a resume: what was measured before."""
        import optuna

        # asked for nothing, and TPE takes its time
        sampler, self._study.sampler = self._study.sampler, optuna.samplers.RandomSampler()
        for trial in trials:
            self._known[key_of(trial.config)] = trial
            # else it needed a new process
            if all(
                value in self.domains.get(knob, (value,)) for knob, value in trial.config.items()
            ):
                self._tell(self._ask_for(trial.config), trial)
        self._study.sampler = sampler

    def enqueue(self, config: Config, origin: str) -> None:
        """Try ``config`` before asking the sampler; ignored if it was measured or lies outside the
        domains.
        """
        clean = self._clean(config)
        if clean and not self._taken(clean) and all(c != clean for _, c in self._queue):
            self._queue.append((origin, clean))

    def next(self) -> tuple[str, dict[str, Value]] | None:
        """(origin, configuration) that is neither measured nor being measured; None when there is
        no other.

        Where the sampler proposes what was measured already, as it does more and more the surer it
        is, one beside that is taken.
        Several may be asked for before one is told: the sampler takes those in flight for slow ones
        and keeps away from them.
        """
        while self._queue:
            origin, config = self._queue.pop(0)
            clean = self._clean(config)
            if clean != config or self._taken(clean):
                continue  # a value was withdrawn since, or it was measured meanwhile
            self._asked[key_of(config)] = self._ask_for(config)
            return origin, config
        # the baseline itself is not a trial
        if len(self._known) + len(self._asked) >= self.size() - 1:
            return None
        asked, config = self._ask()
        if not self._is_new(config):
            self._tell(asked, self._repeated(config))
            beside = self._new_beside(config)
            if beside is None:
                return None
            asked, config = self._ask_for(beside), beside
        self._asked[key_of(config)] = asked
        return "sampler", config

    def tell(self, trial: Trial) -> None:
        key = key_of(trial.config)
        self._known[key] = trial
        asked = self._asked.pop(key, None)
        if asked is not None:
            self._tell(asked, trial)

    def exclude(self, knob: str, value: Value) -> None:
        """Never propose ``knob`` = ``value`` again (it had no effect, or memory ended there)."""
        if value != self.defaults.get(knob):
            self._excluded.add((knob, value))

    def size(self) -> int:
        """Configurations in the space; an upper bound where knobs are conditional."""
        return math.prod(
            sum((k, v) not in self._excluded for v in values) for k, values in self.domains.items()
        )

    def _taken(self, config: Config) -> bool:
        return key_of(config) in self._known or key_of(config) in self._asked

    def _is_new(self, config: Config) -> bool:
        return bool(config) and not self._taken(config) and not self._excluded & set(config.items())

    def _repeated(self, config: dict[str, Value]) -> Trial:
        """What the sampler is told of a proposal that is not measured (again).

        It knows its value already. Told once more, the best would fill its group of good ones with
        copies, and it would propose nothing else.
        """
        if self._excluded & set(config.items()):
            return Trial(-1, config, TrialState.INFEASIBLE)
        if config:
            return Trial(-1, config, TrialState.FAILED)
        return Trial(-1, config, TrialState.COMPLETE, 0.0)

    def _new_beside(self, config: dict[str, Value]) -> dict[str, Value] | None:
        """One that differs from ``config`` in one knob or a few: where a better one lies, if there
        is one. None: there is no other in the space.
        """
        for _ in range(MOST_MOVES):
            knob = self._random.choice(list(self.domains))
            config = self._clean({**config, knob: self._random.choice(self.domains[knob])})
            if self._is_new(config):
                return config
        return None

    def _clean(self, config: Config) -> dict[str, Value]:
        inside = {
            k: v
            for k, v in config.items()
            if k in self.domains and v in self.domains[k] and (k, v) not in self._excluded
        }
        return normalise(inside, self.defaults, self.space)

    def _ask_for(self, config: Config) -> optuna.Trial:
        self._study.enqueue_trial({**self.defaults, **config})
        return self._ask()[0]

    def _ask(self) -> tuple[optuna.Trial, dict[str, Value]]:
        asked = self._study.ask()
        chosen: dict[str, Value] = {}
        # conditional knobs come after what they depend on: group TPE learns the branches
        for knob in self.space.knobs:
            if knob.name in self.domains and knob.active(
                {**self.defaults, **chosen}, self.defaults
            ):
                # Optuna wants the same choices all through a study: propose from all of them, pass
                # over excluded ones.
                chosen[knob.name] = asked.suggest_categorical(knob.name, self.domains[knob.name])
        return asked, normalise(chosen, self.defaults, self.space)

    def _tell(self, asked: optuna.Trial, trial: Trial) -> None:
        from optuna.trial import TrialState

        asked.set_user_attr("key", key_of(trial.config))
        asked.set_constraint("memory", 1.0 if trial.state == "infeasible" else -1.0)
        if trial.state == "failed":
            self._study.tell(asked, state=TrialState.FAIL)
        elif trial.state == "infeasible":
            self._study.tell(asked, INFEASIBLE_VALUE)
        elif trial.state == "pruned":
            asked.report(
                trial.log_ratio if trial.log_ratio is not None else INFEASIBLE_VALUE, step=0
            )
            self._study.tell(asked, state=TrialState.PRUNED)
        else:
            self._study.tell(asked, trial.log_ratio)


def _open_study(path: Path, seed: int, kind: str) -> Any:
    """An empty study in ``path``, in the place of what is there."""
    import optuna

    # the lock is a link, perhaps to nothing: it has no age to judge it by
    for old in (path, path.with_name(f"{path.name}.lock")):
        old.unlink(missing_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        storage = JournalStorage(JournalFileBackend(str(path)))
        samplers = optuna.samplers
        sampler = (
            samplers.RandomSampler(seed=seed)
            if kind == "random"
            else samplers.TPESampler(seed=seed, group=True, n_startup_trials=8)
        )
        study = optuna.create_study(
            study_name="autotune", storage=storage, sampler=sampler, direction="minimize"
        )
        show_best_and_latest(storage)
        return study
