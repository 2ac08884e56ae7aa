"""Ask Optuna for the next configuration and tell it the result.

The study is stored in ``optuna.log`` in the run directory (Optuna's own journal storage), so that
any Optuna tool can open it. On resume our own journal is authoritative: the file is recreated from
it. What a killed tuner leaves in the file is unusable: a stale lock that blocks, a torn line, or a
queued trial that would be handed out instead of another.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.job.configs import key_of, normalize
from autotune.results import Trial, TrialState
from autotune_spaces.base import Config, SearchSpace, Value

if TYPE_CHECKING:
    import optuna

INFEASIBLE_VALUE = 10.0  # a log ratio no real configuration reaches: e^10 times slower
# most random moves to get from a measured configuration to a new one; after these there is none
MOST_MOVES = 2000


class Proposer:
    """Ask/tell over the live knobs of one job.

    Args:
        path: Optuna's journal file.
        domains: knob -> values, including the job's own.
        defaults: knob -> the job's own value.
        sampler: "tpe" or "random".
        seed: of the sampler; the same seed and the same results give the same proposals.
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
        self._queue: list[dict[str, Value]] = []

    def restore(self, trials: Sequence[Trial]) -> None:
        """Load the trials measured before a resume."""
        import optuna

        # the proposals are not used, and TPE is slow
        sampler, self._study.sampler = self._study.sampler, optuna.samplers.RandomSampler()
        for trial in trials:
            self._known[key_of(trial.config)] = trial
            # otherwise it needed a new process
            if all(
                value in self.domains.get(knob, (value,)) for knob, value in trial.config.items()
            ):
                self._tell(self._ask_for(trial.config), trial)
        self._study.sampler = sampler

    def enqueue(self, config: Config) -> None:
        """Try ``config`` before asking the sampler; ignored if already measured or outside the
        domains.
        """
        clean = self._clean(config)
        if clean and not self._taken(clean) and clean not in self._queue:
            self._queue.append(clean)

    def next(self) -> tuple[str, dict[str, Value]] | None:
        """("seed" or "sampler", configuration) that is neither measured nor being measured; None if
        there is no other.

        If the sampler proposes a measured configuration, which it does more often the more certain
        it is, a neighbor of it is returned instead. Several may be requested before a result is
        told: the sampler treats those in flight as slow and avoids them.
        """
        while self._queue:
            config = self._queue.pop(0)
            clean = self._clean(config)
            if clean != config or self._taken(clean):
                continue  # one of its values has been excluded, or it has been measured
            self._asked[key_of(config)] = self._ask_for(config)
            return "seed", config
        # the baseline itself is not a trial
        tried = sum(self._inside(trial.config) for trial in self._known.values())
        if tried + len(self._asked) >= self.size() - 1:
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
        """Never propose ``knob`` = ``value`` again (it had no effect, or ran out of memory)."""
        if value != self.defaults.get(knob):
            self._excluded.add((knob, value))

    def size(self) -> int:
        """Configurations in the space; an upper bound where knobs are conditional."""
        return math.prod(
            sum((k, v) not in self._excluded for v in values) for k, values in self.domains.items()
        )

    def _inside(self, config: Config) -> bool:
        return all(
            value in self.domains.get(knob, ()) and (knob, value) not in self._excluded
            for knob, value in config.items()
        )

    def _taken(self, config: Config) -> bool:
        return key_of(config) in self._known or key_of(config) in self._asked

    def _is_new(self, config: Config) -> bool:
        return bool(config) and not self._taken(config) and not self._excluded & set(config.items())

    def _repeated(self, config: dict[str, Value]) -> Trial:
        """The result reported to the sampler for a proposal that is not measured (again).

        It already knows the value. Repeating it would fill the sampler's good group with copies of
        the best, and it would propose nothing else.
        """
        if self._excluded & set(config.items()):
            return Trial(-1, config, TrialState.INFEASIBLE)
        if config:
            return Trial(-1, config, TrialState.FAILED)
        return Trial(-1, config, TrialState.COMPLETE, 0.0)

    def _new_beside(self, config: dict[str, Value]) -> dict[str, Value] | None:
        """A new configuration that differs from ``config`` in one or a few knobs, where a better
        one is most likely. None: the space has no other.
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
        return normalize(inside, self.defaults, self.space)

    def _ask_for(self, config: Config) -> optuna.Trial:
        self._study.enqueue_trial({**self.defaults, **config})
        return self._ask()[0]

    def _ask(self) -> tuple[optuna.Trial, dict[str, Value]]:
        asked = self._study.ask()
        chosen: dict[str, Value] = {}
        # conditional knobs come after those they depend on, so that group TPE learns the branches
        for knob in self.space.knobs:
            if knob.name in self.domains and knob.active(
                {**self.defaults, **chosen}, self.defaults
            ):
                # Optuna requires the same choices throughout a study: suggest from all of them, and
                # skip excluded ones later.
                chosen[knob.name] = asked.suggest_categorical(knob.name, self.domains[knob.name])
        return asked, normalize(chosen, self.defaults, self.space)

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
    """Create an empty study in ``path``, replacing any existing file."""
    import optuna

    # the lock is a symlink, possibly dangling, so its age cannot be checked
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
        return optuna.create_study(
            study_name="autotune", storage=storage, sampler=sampler, direction="minimize"
        )
