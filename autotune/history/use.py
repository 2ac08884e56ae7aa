"""The history in a run: read once after OBSERVE, written once at the end.

    recall ──▶ the same job: its answer, to be proven again before anything is searched, unless
           │   this run may search more than that one did
           └─▶ similar jobs: the expected effect of each value, a prior of the search
    keep   ◀── the result, as hashes and numbers

The verdict never uses it. A store that fails costs one line and nothing else.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.history.effects import effects_of, expected_effects
from autotune.history.keys import features_of, keys_of, likeness, space_of
from autotune.history.records import Keys, Measured, PastRun, digest, hidden, hidden_item, revealed
from autotune.history.store import Runs, Store, StoreError, own_path
from autotune.job.configs import normalize
from autotune.job.spec import JobSpec
from autotune.results import Interval, KnobGain, Observation, Recalled, Result
from autotune_spaces.base import Value
from autotune_spaces.codec import encode

# the baseline counts as slower than recorded beyond both: standard deviations, and log time
SLOWER_SD, SLOWER = 3.0, 0.10
ALIKE = 12  # most runs that a prior is made of, the most similar first
LEAST_LIKENESS = 0.1  # of such a run


@dataclass(frozen=True)
class Expected:
    """The expected effect of one value on log cost: negative is faster."""

    knob: str
    value: Value
    effect: float


@dataclass(frozen=True)
class Recall:
    """What the history knows about a job."""

    summary: Recalled = Recalled()
    # of the same job; None: there is none that can be proven again
    answer: dict[str, Value] | None = None
    gains: tuple[KnobGain, ...] = ()
    log_gain: float = 0.0  # of the answer, as recorded
    expected: tuple[Expected, ...] = ()


class History:
    """This user's store and the team's.

    Args:
        own: read, and written at the end of a run; None: there is none.
        team: only read; None: there is none.
        warn: called with one line that says why a store is not used.
    """

    def __init__(self, own: Path | None, team: Runs | None, warn: Callable[[str], None]) -> None:
        self._own = None if own is None else Store(own)
        self._stores: list[Runs] = [store for store in (self._own, team) if store is not None]
        self._warn = warn

    def recall(self, spec: JobSpec, observation: Observation, code: Mapping[str, str]) -> Recall:
        """What the history knows about this job.

        ``code``: see :func:`autotune.history.keys.keys_of`.
        """
        keys, runs = keys_of(spec, observation, code), self._runs()
        same = [run for run in runs if (run.keys.job, run.keys.machine) == (keys.job, keys.machine)]
        same.sort(key=lambda run: (run.keys.software == keys.software, run.at), reverse=True)
        alike = _alike(runs, keys, observation)
        if not alike:
            return Recall()
        effects = ((like, effects_of(run, observation.domains)) for like, run in alike)
        expected = tuple(
            Expected(*item, round(e, 5)) for item, e in expected_effects(effects).items()
        )
        if not same:
            return Recall(
                Recalled("near", "", len(alike), round(alike[0][0], 3)), expected=expected
            )
        last = next((run for run in same if _searched(run, spec)), same[0])
        summary = Recalled(
            "exact" if last.keys.software == keys.software else "other-software",
            last.id,
            len(alike),
            1.0,
            last.iteration_s,
            observation.anatomy.iteration_s,
            slower(last, observation),
        )
        answer = _answer(spec, observation, last) if _searched(last, spec) else None
        gains = tuple(
            KnobGain(
                name,
                value,
                Interval(*own) if (own := last.gains.get(hidden_item(name, value)[0])) else None,
                True,
                at_least=hidden_item(name, value)[0] in last.at_least,
            )
            for name, value in (answer or {}).items()
        )
        return Recall(summary, answer, gains, last.log_gain, expected)

    def keep(self, spec: JobSpec, result: Result, code: Mapping[str, str], number: str) -> PastRun:
        """Store the run, and return it in its stored form.

        Args:
            code: as for :meth:`recall`.
            number: the run's ID, the same if it is stored again.
        """
        run = past_run(spec, result, code, number)
        if self._own is not None and self._own in self._stores:  # else already warned
            try:
                self._own.add([run])
            except StoreError as error:
                self._warn(f"this run is not in the history: {error}")
        return run

    def _runs(self) -> list[PastRun]:
        found: dict[str, PastRun] = {}
        for store in tuple(self._stores):
            try:
                found |= {run.id: run for run in store.runs()}
            except StoreError as error:
                self._stores.remove(store)
                self._warn(f"the run continues without this history: {error}")
        return list(found.values())


def open_history(store: Path | None, warn: Callable[[str], None]) -> History:
    """The stores that a run uses. ``store``: used instead of this user's."""
    try:
        own = store or own_path()
    except StoreError as error:
        own = None
        warn(f"this run is not in the history: {error}")
    return History(own, team_store(warn), warn)


def team_store(warn: Callable[[str], None]) -> Runs | None:
    """The store that AUTOTUNE_TEAM_STORE names: a file, or ``mlflow:EXPERIMENT``; None: not set.

    ``warn``: called with one line if a part of it cannot be read.
    """
    from autotune.history.mlflow_store import SCHEME, MlflowStore

    named = os.environ.get("AUTOTUNE_TEAM_STORE")
    if named and named.startswith(SCHEME):
        return MlflowStore(named.removeprefix(SCHEME), warn)
    return Store(Path(named), read_only=True) if named else None


def slower(run: PastRun, observation: Observation) -> bool:
    """Whether the unchanged job is slower than recorded, beyond the noise of both."""
    noise = math.hypot(run.noise, observation.noise)
    return math.log(observation.anatomy.iteration_s / run.iteration_s) > max(
        SLOWER, SLOWER_SD * noise
    )


def past_run(spec: JobSpec, result: Result, code: Mapping[str, str], number: str) -> PastRun:
    """``result`` in the form in which it is stored."""
    observation, confirmation = result.observation, result.confirmation
    measured = [
        Measured(
            hidden(t.config),
            ("process" if t.origin == "process" else "live") if t.state == "complete" else t.state,
            t.log_ratio,
            t.standard_error,
            t.pairs,
        )
        for t in result.trials
    ]
    if confirmation is not None and confirmation.pairs:
        s = confirmation.speedup
        error = math.log(s.high / s.low) / 4 if s.high > s.low > 0 else 0.0
        config, ratio = hidden(confirmation.config), -math.log(s.estimate)
        measured.append(Measured(config, "confirmed", ratio, error, confirmation.pairs))
    own = [  # under the names that are stored
        (hidden_item(g.knob, result.knobs[g.knob])[0], g.speedup, g.at_least)
        for g in result.gains
        if g.kept and g.speedup is not None and g.knob in result.knobs
    ]
    return PastRun(
        id=number,
        at=round(time.time(), 1),
        keys=keys_of(spec, observation, code),
        features=features_of(observation),
        iteration_s=observation.anatomy.iteration_s,
        noise=observation.noise,
        verdict=result.verdict,
        loss=result.loss.verdict,
        answer=hidden(result.knobs),
        log_gain=math.log(result.speedup.estimate),
        gains={name: (gain.estimate, gain.low, gain.high) for name, gain, _ in own},
        at_least=tuple(name for name, _, at_least in own if at_least),
        measured=tuple(measured),
        withdrawn=tuple(next(iter(hidden({name: None}))) for name in observation.withdrawn),
        space=space_of(spec.search_space),
        minutes=spec.budget.minutes,
        trials=spec.budget.trials,
        planned_steps=spec.planned_steps,
        rules=rules_of(spec),
    )


def rules_of(spec: JobSpec) -> str:
    """Hash of what decides, besides the budget and the search space, what an answer may be."""
    return digest([encode(spec.convergence), encode(spec.constraints), spec.search])


def _searched(run: PastRun, spec: JobSpec) -> bool:
    """Whether ``run`` searched at least what may be searched now.

    All knobs and values that may be tried now, as much time and as many trials, the same number of
    steps to pay back a start-up, and the same rules.
    """
    budget = spec.budget
    as_many = run.trials is None or (budget.trials is not None and budget.trials <= run.trials)
    return (
        as_many
        and run.planned_steps == spec.planned_steps
        and run.rules == rules_of(spec)
        and budget.minutes <= run.minutes
        and set(space_of(spec.search_space)) <= set(run.space)
    )


def _alike(
    runs: Sequence[PastRun], keys: Keys, observation: Observation
) -> list[tuple[float, PastRun]]:
    """The runs most similar to this one, with their likeness.

    Of runs with the same keys, only the one that measured most.
    """
    own, seen, found = features_of(observation), set[Keys](), []
    for run in sorted(runs, key=lambda run: (len(run.measured), run.at), reverse=True):
        if run.keys in seen or not any(m.log_ratio is not None for m in run.measured):
            continue
        seen.add(run.keys)
        like = 1.0 if run.keys == keys else likeness(run.features, own)
        if like >= LEAST_LIKENESS:
            found.append((like, run))
    return sorted(found, key=lambda pair: -pair[0])[:ALIKE]


def _answer(spec: JobSpec, observation: Observation, run: PastRun) -> dict[str, Value] | None:
    """The recorded answer; None if there is none, or a value in it no longer applies."""
    config = revealed(run.answer, observation.domains)
    if not config or run.verdict != "tuned":
        return None
    return config if normalize(config, observation.defaults, spec.search_space) == config else None
