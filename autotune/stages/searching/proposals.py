"""What the live search tries next: idle lanes ask for a proposal and report what they measured.

seeds │ the winners among them together │ sampler, sampler, sampler … until plateau, budget or an exhausted space
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.job.configs import key_of
from autotune.results import Observation, Trial
from autotune.search.focus import LOADER
from autotune.search.proposer import Proposer
from autotune.search.stopping import best_of, plateau
from autotune.stages.budget import search_began_s, search_ends_s, tried_enough
from autotune.stages.context import RunContext
from autotune.stages.measuring.kept_session import TOO_MANY_WORKERS
from autotune.tracking.records import record_trial
from autotune_spaces.base import Config
from autotune_spaces.codec import encode

FEWEST_TRIALS = 4  # tried however short the budget: an answer needs trials
PROMISING = 0.01  # log ratio; smaller gains are left out of the combined configuration
# a value that exceeds the memory rules out every larger one
SIZE = "batch_size"
WORKERS = "num_workers"  # likewise, for memory, open files and /dev/shm


@dataclass(frozen=True)
class Proposal:
    """A configuration to be measured."""

    number: int  # of the trial
    config: Config
    origin: str


class Proposals:
    """Hands out proposals and takes trials, one lane at a time.

    ``trials`` grows in the order in which they are measured.
    """

    def __init__(
        self, context: RunContext, proposer: Proposer, observation: Observation, trials: list[Trial]
    ) -> None:
        self._context = context
        self._proposer = proposer
        self._observation = observation
        self._trials = trials
        self._turn = threading.RLock()
        self._pending: dict[str, Proposal] = {}
        self._combined = False
        self._began_s = search_began_s(context)

    def take(self) -> Proposal | None:
        """Return what to measure next; None if nothing is left, or nothing until a trial ends."""
        with self._turn:
            tried = len(self._trials) + len(self._pending)
            if (
                self._late()
                or tried_enough(self._context, self._observation, tried)
                or plateau(self._trials)
            ):
                return None
            proposed = self._proposer.next()
            if (proposed is None or proposed[0] == "sampler") and self._seeds_are_done():
                self._combined = True
                self._proposer.enqueue(_union(self._trials), "combined")
            proposed = proposed or self._proposer.next()
            if proposed is None:
                return None
            proposal = Proposal(self._free_number(), proposed[1], proposed[0])
            self._pending[key_of(proposal.config)] = proposal
            return proposal

    def measured(self, trial: Trial) -> None:
        """Store a measured trial and learn from it.

        Raises:
            Interrupted: the user asked to stop; the trial is in the journal.
        """
        with self._turn:
            self._pending.pop(key_of(trial.config), None)
            store(self._context, self._observation.defaults, self._trials, trial)
            self._proposer.tell(trial)
            learn(self._proposer, trial, self._context, warn=True)
        self._context.stop.check()

    def best(self) -> Trial | None:
        with self._turn:
            return best_of(self._trials)

    def _late(self) -> bool:
        """Whether what is left of the budget's minutes is needed for the proof."""
        best = best_of(self._trials)
        gain = -(best.log_ratio or 0.0) if best else 0.0
        ends_s = search_ends_s(self._context, self._observation, self._began_s, gain)
        return self._context.journal.elapsed_s >= ends_s and len(self._trials) >= FEWEST_TRIALS

    def _seeds_are_done(self) -> bool:
        """Whether the seeds are done and their winners have not been combined yet."""
        return not self._combined and not any(p.origin == "seed" for p in self._pending.values())

    def _free_number(self) -> int:
        taken = {t.number for t in self._trials} | {p.number for p in self._pending.values()}
        return next(n for n in itertools.count() if n not in taken)


def store(context: RunContext, defaults: Config, trials: list[Trial], trial: Trial) -> None:
    """Put a measured trial into the journal, the tracker and the progress display."""
    trials.append(trial)
    context.journal.append("trial", key_of(trial.config), encode(trial))
    record_trial(context.tracker, trial, defaults)
    context.progress.trial(trial, best_of(trials))


def learn(proposer: Proposer, trial: Trial, context: RunContext, *, warn: bool) -> None:
    """Exclude values that this trial showed to be useless or too large."""
    for knob, why in trial.no_effect.items():
        proposer.exclude(knob, trial.config[knob])
        if warn:
            context.progress.warning(f"{knob}={trial.config[knob]} had no effect: {why}")
    if trial.state == "infeasible":
        name = to_blame(trial.config, trial.reason)
        size = trial.config.get(name)
        for larger in proposer.domains.get(name, ()):
            if isinstance(size, int) and isinstance(larger, int) and larger >= size:
                proposer.exclude(name, larger)


def no_effect_words(no_effect: Mapping[str, str]) -> str:
    return "; ".join(f"{name} had no effect: {why}" for name, why in no_effect.items())


def to_blame(config: Config, reason: str) -> str:
    """Name the knob whose value was too large for the machine."""
    # no other knob in it can be too large
    if TOO_MANY_WORKERS in reason or set(config) <= {*LOADER}:
        return WORKERS
    return SIZE


def _union(trials: Sequence[Trial]) -> dict:
    """Combine the values that paid off alone; of two values of one knob, take the faster."""
    paying = [
        t
        for t in trials
        if t.state == "complete" and t.log_ratio is not None and t.log_ratio < -PROMISING
    ]
    union: dict = {}
    # slowest first, so that faster ones overwrite
    for trial in sorted(paying, key=lambda t: -(t.log_ratio or 0.0)):
        union.update(trial.config)
    return union
