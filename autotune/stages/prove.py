"""PROVE: finalists in fresh processes, the best first, until one stands.

finalist ─▶ confirm ─▶ converge ─▶ the answer
               │           │
          not faster   changed or undecided ─▶ its variants: the same without the knobs that did it
               └───────────┴─▶ the next finalist
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.job.configs import in_words, key_of, normalize, without
from autotune.objectives import BETTER
from autotune.results import Confirmation, KnobGain, LossState, LossVerdict, Observation, Rejected
from autotune.stages.budget import explain_s
from autotune.stages.confirm import VARIANTS, confirm, sharpen
from autotune.stages.context import RunContext
from autotune.stages.converge import converge
from autotune.stages.decisions.culprit import culprits
from autotune.stages.decisions.worth_it import paid_back_words
from autotune.stages.measuring.fresh import FEWEST_PAIRS, first_look_s, rounds
from autotune.stages.measuring.pairs import Pairs
from autotune.stages.search import Finalist, Searched
from autotune.words import duration_words, factor_words, no_effect_words
from autotune_spaces.base import Config, Numerics, Value

NOT_NEEDED = LossVerdict(LossState.NOT_NEEDED, "nothing was changed", 0, 0)
PROVEN = "{better}, and training converges the same way"
REASONS_TOLD = 3  # knobs that do not apply, when nothing else is left to say


@dataclass(frozen=True)
class Proof:
    """The outcome of the finalists."""

    winner: dict[str, Value]  # {} = keep the baseline
    reason: str
    confirmation: Confirmation | None
    loss: LossVerdict
    gains: tuple[KnobGain, ...]
    rejected: tuple[Rejected, ...]


def prove(context: RunContext, observation: Observation, searched: Searched, most: int) -> Proof:
    """Confirm and check finalists until one stands, ``most`` at the most."""
    if not searched.finalists:
        why = _why_nothing(context, observation, searched)
        given_back = tuple(replace(gain, kept=False) for gain in searched.gains)
        return Proof({}, why, None, NOT_NEEDED, given_back, ())
    return _Proving(context, observation, searched.finalists, most).outcome()


class _Proving:
    """The finalists that are left, and what became of the others."""

    def __init__(
        self,
        context: RunContext,
        observation: Observation,
        finalists: Sequence[Finalist],
        most: int,
    ) -> None:
        self.context, self.observation, self.most = context, observation, most
        self.better = BETTER[context.spec.objective]
        self.queue = list(finalists)
        # of a finalist that was proven faster; one of them is tried even if the time is up
        self.variants: list[Finalist] = []
        self.seen: set[str] = set()
        self.seen_through = False  # whether a variant was tried although the time was up
        self.look_s = first_look_s(context, observation)  # of a finalist
        self.rejected: list[Rejected] = []
        # of the finalist tried last
        self.gains: tuple[KnobGain, ...] = ()
        self.confirmation: Confirmation | None = None
        self.loss = NOT_NEEDED

    def outcome(self) -> Proof:
        while (self.variants or self.queue) and len(self.seen) < self.most:
            is_variant = bool(self.variants)
            candidate = (self.variants or self.queue).pop(0)
            key = key_of(candidate.config)
            if key in self.seen:
                continue
            if self.rejected and self.context.out_of_time_at(key, self._ahead_s()):
                if not is_variant or self.seen_through:
                    return self._out_of_time(candidate.config)
                self.seen_through = True
                self.context.progress.note(
                    f"{self.context.out_of_time_words()}; the faster configuration is tried once"
                    " more, without the knobs suspected of changing the loss, which takes about"
                    f" {duration_words(self._ahead_s())}"
                )
            self.seen.add(key)
            proof = self._try(candidate)
            if proof is not None:
                return proof
        return self._proof({}, self.rejected[-1].reason)

    def _ahead_s(self) -> float:
        """Seconds that one more finalist takes."""
        return self.look_s + explain_s(self.context, self.observation)

    def _proof(self, winner: Config, reason: str) -> Proof:
        return Proof(
            dict(winner), reason, self.confirmation, self.loss, self.gains, tuple(self.rejected)
        )

    def _out_of_time(self, config: Config) -> Proof:
        reason = f"{self.rejected[-1].reason}; there was no time for another finalist"
        why = f"not tried in fresh processes: {self.context.out_of_time_words()}"
        self.rejected.append(Rejected(config, why))
        return self._proof({}, reason)

    def _try(self, candidate: Finalist) -> Proof | None:
        """Confirm ``candidate`` and check its loss; None: it does not stand."""
        context, observation, config = self.context, self.observation, candidate.config
        context.progress.stage("confirm", f"finalist: {in_words(config, observation.defaults)}")
        self.gains, self.loss = candidate.gains, NOT_NEEDED
        label, start_s = f"confirm{len(self.seen)}", cold_s(config, candidate.gains)
        pairs = Pairs(context, config, {}, label, start_s)
        before = VARIANTS - self.most + len(self.seen) - 1  # an answer from the history counts, too
        self.confirmation = confirm(context, observation, config, pairs, before)
        self.look_s = rounds(context, FEWEST_PAIRS) * pairs.pair_s() or self.look_s  # as timed now
        if self.confirmation.adopted:
            self.loss = converge(context, config, pairs)
            if self.loss.verdict != "unchanged":
                self._try_milder(candidate, pairs)
                return None
            if why := pairs.beyond_limits(observation):
                self.confirmation = replace(self.confirmation, adopted=False, reason=f"it {why}")
            else:
                self.confirmation = sharpen(context, observation, self.confirmation, label, start_s)
        if not self.confirmation.adopted:
            why = f"not proven {self.better}: {self.confirmation.reason}"
            self.rejected.append(Rejected(config, why))
            return None
        proof = self._proof(config, PROVEN.format(better=self.better))
        return without_idle(context, observation, proof, pairs)

    def _try_milder(self, candidate: Finalist, pairs: Pairs) -> None:
        """``candidate`` is faster, but may change the loss: which of its variants may stand?"""
        context, observation, config = self.context, self.observation, candidate.config
        loss, found = self.loss, dict[str, LossVerdict]()
        # after a variant that was tried although the time was up, no other is tried
        if loss.verdict != "no-proof" and not loss.chaotic and not self.seen_through:
            found = culprits(context, observation, config, pairs)
        self.rejected.append(Rejected(config, why_not(loss, found)))
        guilty = {(name, config[name]) for name, it in found.items() if it.verdict == "changed"}
        self.queue = [other for other in self.queue if guilty.isdisjoint(other.config.items())]
        milder = [
            candidate.reduced_to(normalize(v, observation.defaults, context.spec.search_space))
            for v in _milder(context, config, loss, found)
        ]
        milder = [variant for variant in milder if variant.config]
        if loss.chaotic:  # what remains may gain nothing: it is worth no time beyond the budget
            self.queue = milder
            return
        self.variants = [*milder, *self.variants]
        label = f"confirm{len(self.seen)}-variants"
        if len(self.variants) > 1 and context.out_of_time_at(label, self._ahead_s()):
            self.variants = self.variants[-1:]  # the safest


def without_idle(
    context: RunContext, observation: Observation, proof: Proof, pairs: Pairs
) -> Proof:
    """``proof`` without the knobs that had no effect in its runs: it holds for the others alone."""
    idle, space = pairs.idle, context.spec.search_space
    winner = normalize(without(proof.winner, *idle), observation.defaults, space)
    if not idle or not winner:
        return proof
    why = f"in fresh processes {no_effect_words(idle)}"
    context.progress.note(f"left out of the answer: {why}")
    return replace(
        proof,
        winner=winner,
        confirmation=proof.confirmation and replace(proof.confirmation, config=winner),
        loss=replace(proof.loss, config=winner),
        gains=tuple(
            replace(gain, kept=False, reason=why) if gain.kept and gain.knob not in winner else gain
            for gain in proof.gains
        ),
    )


def cold_s(config: Config, gains: Sequence[KnobGain]) -> float:
    """What starting with ``config`` cost in the search, when nothing was compiled yet."""
    return math.fsum(gain.start_up_s for gain in gains if gain.knob in config)


def why_not(loss: LossVerdict, found: Mapping[str, LossVerdict]) -> str:
    words = {
        "no-proof": "the job's loss cannot show a change",
        "changed": "loss changed",
        "undecided": "loss undecided",
    }
    if not found:
        return f"{words[loss.verdict]}: {loss.reason}"
    name, alone = next(iter(found.items()))
    others = f" (and also {', '.join(list(found)[1:])})" if len(found) > 1 else ""
    return f"{words[loss.verdict]} because of {name}{others}: {alone.reason}"


def _milder(
    context: RunContext, config: Config, loss: LossVerdict, found: Mapping[str, LossVerdict]
) -> list[dict[str, Value]]:
    """The variants of ``config`` that may still stand.

    Without the culprits; if there are none, without the knob most likely to have changed the loss,
    then without all that can change it. In a chaotic job, only the latter.
    """
    space = context.spec.search_space
    suspects = sorted(
        (n for n in config if space[n].numerics is not Numerics.EXACT),
        key=lambda n: -space[n].numerics.severity,
    )
    if found:
        variants = [without(config, *found)]
    elif loss.chaotic:
        variants = [without(config, *suspects)]
    elif loss.verdict == "no-proof":
        # another batch size needs the longest runs; only exact knobs need no moving loss
        statistical = [n for n in suspects if space[n].numerics is Numerics.STATISTICAL]
        variants = [without(config, *names) for names in (statistical, suspects) if names]
    else:
        variants = [without(config, name) for name in suspects[:1]]
        if len(suspects) > 1:
            variants.append(without(config, *suspects))
    return variants


def _why_nothing(context: RunContext, observation: Observation, searched: Searched) -> str:
    trials, better = searched.trials, BETTER[context.spec.objective]
    if not observation.domains:
        reasons = [f"{name}: {why}" for name, why in observation.withdrawn.items()]
        told = f" ({'; '.join(reasons)})" if 0 < len(reasons) <= REASONS_TOLD else ""
        return f"no knob applies to this job on this machine{told}"
    if not trials:
        return "the time budget was used up before any configuration could be tried"
    measured = [t for t in trials if t.log_ratio is not None]
    if not measured:
        return "no configuration could be measured"
    best = min(measured, key=lambda t: t.log_ratio or 0.0)
    factor, config = factor_words(best.speedup), in_words(best.config)
    steps = context.spec.planned_steps
    for gain in searched.gains:
        late = gain.break_even_steps is not None and gain.break_even_steps > steps
        if late and best.config.get(gain.knob) == gain.value:
            why = paid_back_words(gain.start_up_s, gain.break_even_steps or 0)
            return f"{config} reached {factor} in the running job, but {why}, and planned_steps is {steps}"
    return (
        f"none of {len(trials)} configurations was clearly more than 2% {better}; the best:"
        f" {factor} ({config})"
    )
