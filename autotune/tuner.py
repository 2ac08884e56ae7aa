"""One run from job to result: the stages in order, and what is adopted.

    observe ─▶ search ─▶ for each finalist: confirm ─▶ converge ─▶ explain ─▶ Result
       │         ▲                             │           │                    ▲
       │         │                      not faster      changed or undecided    │
       │         │                             ▼           ▼                    │
       │         │                     next finalist   the same without the knobs that did it
       │         └ not proven                                                   │
       └▶ the history knows this job: its answer ─▶ confirm ─▶ converge ────────┘

Everything measured is in the journal before it is used, so the same call again continues where a
killed one stopped.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autotune.disk import is_disk_error
from autotune.errors import AutotuneError
from autotune.executors.base import SessionFailed
from autotune.explain.records import Explanation
from autotune.history.use import Recall
from autotune.job.configs import in_words, key_of, normalize, without
from autotune.objectives import BETTER
from autotune.results import (
    NO_GAIN,
    PROVEN_ANEW,
    CompileCache,
    Confirmation,
    KnobGain,
    LossState,
    LossVerdict,
    Observation,
    Point,
    Rejected,
    Result,
    RunVerdict,
    Trial,
)
from autotune.search.pareto import Figures, pareto
from autotune.secrets import mask_command
from autotune.stages.budget import SEARCH_BEGAN, explain_s, needed_s
from autotune.stages.compile_cache import pack_compile_cache
from autotune.stages.confirm import VARIANTS, confirm, sharpen
from autotune.stages.context import ANNOUNCED, OVER, RunContext
from autotune.stages.converge import converge
from autotune.stages.decisions.build_up import credit
from autotune.stages.decisions.culprit import culprits
from autotune.stages.decisions.worth_it import break_even_steps, paid_back_words
from autotune.stages.explain import explain, trace_trials, with_idle_device
from autotune.stages.measuring.fresh import FEWEST_PAIRS, FIRST_RUN, first_look_s, pair_s, rounds
from autotune.stages.measuring.pairs import Pairs
from autotune.stages.observe import observe
from autotune.stages.recall import recall_job
from autotune.stages.search import Finalist, Searched, search
from autotune.stages.searching.fresh_search import UNTRIED
from autotune.stages.searching.model_study import PRIOR_DROPPED
from autotune.verdict.timing import first_counted, start_up_excess
from autotune.words import duration_words, factor_words, no_effect_words
from autotune_spaces.base import Config, Numerics, Value
from autotune_spaces.codec import encode
from autotune_trials.paths import publish

NOT_NEEDED = LossVerdict(LossState.NOT_NEEDED, "nothing was changed", 0, 0)
NOT_THERE = 0.05  # log speed-up by which a single run may fall short of half the recorded gain
PROVEN = "{better}, and training converges the same way"
PROVEN_AGAIN = (
    "Proven again from the history, so it was not profiled; run `autotune profile` to see where the"
    " time goes."
)
EXPLAIN_ERROR = "explain-error.txt"

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


def tune(context: RunContext) -> Result:
    """Run every stage (or take it from the journal) and assemble the result.

    Raises:
        BaselineError, HookError: the job itself cannot be measured.
        Interrupted: the user asked to stop; call again to resume.
    """
    observation = observe(context)
    recall = recall_job(context, observation)
    again = prove_again(context, observation, recall)
    trials: tuple[Trial, ...] = ()
    if again is not None and again.winner:
        proof, explanation = again, Explanation(notes=(PROVEN_AGAIN,))
        context.progress.note(PROVEN_AGAIN)
    else:
        _warn_if_budget_is_short(context, observation)
        searched = search(context, observation, () if again else recall.expected)
        context.stop.check()
        trials = searched.trials
        proof = prove(
            context,
            observation,
            searched,
            VARIANTS - 1 if again and again.confirmation else VARIANTS,
        )
        proof = replace(proof, rejected=(*(again.rejected if again else ()), *proof.rejected))
        context.stop.check()
        explanation = _explained(context, observation, proof, trials)
        trace_trials(context, observation, trials)
    cold_s = _cold_s(proof.winner, proof.gains)
    compiled = pack_compile_cache(context, observation, proof.winner, cold_s)
    disturbed = list(context.journal.all("disturbed"))
    return Result(
        name=context.spec.name,
        verdict=RunVerdict.TUNED if proof.winner else RunVerdict.KEEP_BASELINE,
        reason=proof.reason,
        speedup=proof.confirmation.speedup if proof.winner and proof.confirmation else NO_GAIN,
        loss=proof.loss,
        knobs=proof.winner,
        baseline=observation.defaults,
        observation=with_idle_device(observation, explanation.sides.get("baseline")),
        confirmation=proof.confirmation,
        gains=proof.gains,
        rejected=proof.rejected,
        trials=trials,
        wall_s=round(context.journal.elapsed_s, 1),
        environment=environment(context, observation),
        explanation=explanation,
        disturbed=len(disturbed),
        disturbed_why=disturbed[-1].data if disturbed else "",
        untried=context.journal.find(UNTRIED) or "",
        compile_cache=compiled or CompileCache(),
        points=_points(context, observation, trials),
        recalled=replace(recall.summary, outcome=_outcome(context, recall, again)),
    )


def _warn_if_budget_is_short(context: RunContext, observation: Observation) -> None:
    """Warn in advance if one proof will take longer than the budget."""
    needed, budget_s = needed_s(context, observation), context.spec.budget.minutes * 60
    if context.journal.find(SEARCH_BEGAN) is not None or not observation.domains:
        return  # a resumed run, or nothing to search
    if context.executor.lanes() is None and needed > OVER * budget_s:
        look_s = first_look_s(context, observation)
        _announce(context, "confirming one finalist", look_s, "a run that finds one", needed)


def _explained(
    context: RunContext, observation: Observation, proof: Proof, trials: Sequence[Trial]
) -> Explanation:
    """The explanation; if it fails, the verdict stands without it, and the traceback is kept.

    Raises:
        OSError: the disk is full, or read-only.
    """
    try:
        explanation = explain(context, observation, proof.winner)
        return credit(
            context.spec.search_space,
            observation,
            explanation,
            proof.confirmation if proof.winner else None,
            proof.gains,
            trials,
        )
    except AutotuneError:
        raise
    except Exception as error:
        if is_disk_error(error):  # with room again, the same command can explain it
            raise
        publish(context.run_dir / EXPLAIN_ERROR, "".join(traceback.format_exception(error)))
        note = (
            f"the result could not be explained ({type(error).__name__}: {error}); the traceback is"
            f" in {EXPLAIN_ERROR}"
        )
        context.progress.warning(note)
        return Explanation(notes=(note,))


def prove_again(context: RunContext, observation: Observation, recall: Recall) -> Proof | None:
    """Prove the recorded answer of this very job, by the rules for every finalist.

    None if there is no answer. The first run shows whether the gain is there at all, so a wrong
    record costs only that run.
    """
    config = recall.answer
    if config is None:
        return None
    context.progress.stage("confirm", f"from the history: {in_words(config, observation.defaults)}")
    _warn_if_proof_is_long(context, observation)
    last, loss = None, NOT_NEEDED
    better = BETTER[context.spec.objective]
    why, gains = _first_look(context, observation, recall)
    # a label of its own: in the first look nothing was compiled yet, so it is not half of a pair
    pairs = Pairs(context, config, {}, "recalled", _cold_s(config, gains))
    if not why:
        last = confirm(context, observation, config, pairs, finalist=0)
        why = "" if last.adopted else f"not proven {better}: {last.reason}"
    if not why:
        loss = converge(context, config, pairs)
        why = "" if loss.verdict == "unchanged" else _why_not(loss, {})
    if not why and (beyond := pairs.beyond_limits(observation)):
        why = f"not proven {better}: it {beyond}"
    if not why:
        proof = Proof(config, PROVEN.format(better=better), last, loss, gains, ())
        return _without_idle(context, observation, proof, pairs)
    context.progress.note(f"the recorded answer did not hold ({why}); searching")
    return Proof({}, why, last, loss, (), (Rejected(config, why),))


def _warn_if_proof_is_long(context: RunContext, observation: Observation) -> None:
    """Warn in advance if proving the recorded answer will take longer than the budget."""
    proof_s, budget_s = first_look_s(context, observation), context.spec.budget.minutes * 60
    needed = context.journal.elapsed_s + pair_s(context, observation) / 2 + proof_s
    if context.journal.find(ANNOUNCED) is None and needed > OVER * budget_s:
        _announce(context, "proving the recorded answer", proof_s, "the run", needed)


def _announce(context: RunContext, what: str, takes_s: float, run: str, run_s: float) -> None:
    """Tell that the run will take longer than the budget; keep how long."""
    context.journal.append(ANNOUNCED, "", run_s)
    context.progress.note(
        f"{what} takes about {duration_words(takes_s)} for this job; {run} will take about"
        f" {duration_words(run_s)} instead of budget.minutes ({context.spec.budget.minutes:g}),"
        " because a first proof is always finished"
    )


def _first_look(
    context: RunContext, observation: Observation, recall: Recall
) -> tuple[str, tuple[KnobGain, ...]]:
    """Run the recorded answer once, and compare it with the job's first run.

    Returns why the run speaks against the recorded gain ("": it does not), and the gains, with
    their start-up cost, as nothing was compiled yet.
    """
    config, before = recall.answer or {}, context.stored(FIRST_RUN)
    pairs = Pairs(context, config, {}, "recalled-look")
    try:
        after = pairs.first_candidate()
    except SessionFailed as failure:
        return f"it failed in a fresh process ({failure})", recall.gains
    costs = None if before is None else pairs.figures.costs(before, after)
    found = recall.log_gain if costs is None else math.log(costs[0] / costs[1])
    if found <= recall.log_gain / 2 - max(NOT_THERE, 3 * observation.noise):
        recorded, measured = math.exp(recall.log_gain), math.exp(found)
        why = f"recorded {recorded:.2f}×, measured {measured:.2f}× in a first fresh process"
        return why, recall.gains
    slow = [name for name in config if context.spec.search_space[name].start_up_cost]
    if not slow:
        return "", recall.gains
    cold_s = start_up_excess(after.window, first_counted(after.window))
    steps = break_even_steps(cold_s, recall.log_gain, observation.anatomy.iteration_s)
    late = steps is not None and steps > context.spec.planned_steps
    gains = tuple(
        replace(gain, start_up_s=cold_s / len(slow)) if gain.knob in slow else gain
        for gain in recall.gains
    )
    return paid_back_words(cold_s, steps or 0) if late else "", gains


def _outcome(context: RunContext, recall: Recall, again: Proof | None) -> str:
    if again is not None:
        return PROVEN_ANEW if again.winner else "not proven"
    if context.journal.find(PRIOR_DROPPED) is not None:
        return "dropped"
    return "prior" if recall.expected else ""


def prove(
    context: RunContext, observation: Observation, searched: Searched, most: int = VARIANTS
) -> Proof:
    """Confirm and check finalists until one stands, ``most`` at the most."""
    better = BETTER[context.spec.objective]
    queue = list(searched.finalists)
    if not queue:
        why = _why_nothing(context, observation, searched)
        given_back = tuple(replace(gain, kept=False) for gain in searched.gains)
        return Proof({}, why, None, NOT_NEEDED, given_back, ())
    # of a finalist that was proven faster; one of them is tried even if the time is up
    variants: list[Finalist] = []
    rejected: list[Rejected] = []
    gains: tuple[KnobGain, ...] = ()
    seen: set[str] = set()
    last: Confirmation | None = None
    loss = NOT_NEEDED
    seen_through = False  # whether a variant was tried although the time was up
    look_s = first_look_s(context, observation)  # of a finalist
    while (variants or queue) and len(seen) < most:
        is_variant = bool(variants)
        candidate = (variants or queue).pop(0)
        config = candidate.config
        if key_of(config) in seen:
            continue
        ahead_s = look_s + explain_s(context, observation)
        late = bool(rejected) and context.out_of_time_at(key_of(config), ahead_s)
        if late and (not is_variant or seen_through):
            reason = f"{rejected[-1].reason}; there was no time for another finalist"
            why = f"not tried in fresh processes: {context.out_of_time_words()}"
            rejected.append(Rejected(config, why))
            return Proof({}, reason, last, loss, gains, tuple(rejected))
        if late:
            seen_through = True
            context.progress.note(
                f"{context.out_of_time_words()}; the faster configuration is tried once more,"
                " without the knobs suspected of changing the loss, which takes about"
                f" {duration_words(ahead_s)}"
            )
        context.progress.stage("confirm", f"finalist: {in_words(config, observation.defaults)}")
        gains = candidate.gains
        seen.add(key_of(config))
        label, cold_s = f"confirm{len(seen)}", _cold_s(config, gains)
        pairs = Pairs(context, config, {}, label, cold_s)
        before = VARIANTS - most + len(seen) - 1  # an answer from the history counts, too
        last, loss = confirm(context, observation, config, pairs, before), NOT_NEEDED
        look_s = rounds(context, FEWEST_PAIRS) * pairs.pair_s() or look_s  # as timed now
        if not last.adopted:
            rejected.append(Rejected(config, f"not proven {better}: {last.reason}"))
            continue
        loss = converge(context, config, pairs)
        if loss.verdict == "unchanged":
            if why := pairs.beyond_limits(observation):
                last = replace(last, adopted=False, reason=f"it {why}")
            else:
                last = sharpen(context, observation, last, label, cold_s)
            if not last.adopted:
                rejected.append(Rejected(config, f"not proven {better}: {last.reason}"))
                continue
            reason = PROVEN.format(better=better)
            proof = Proof(config, reason, last, loss, gains, tuple(rejected))
            return _without_idle(context, observation, proof, pairs)
        found: dict[str, LossVerdict] = {}
        # after that one, no other is tried
        if loss.verdict != "no-proof" and not loss.chaotic and not seen_through:
            found = culprits(context, observation, config, pairs)
        rejected.append(Rejected(config, _why_not(loss, found)))
        guilty = {(name, config[name]) for name, it in found.items() if it.verdict == "changed"}
        queue = [other for other in queue if guilty.isdisjoint(other.config.items())]
        milder = [
            candidate.reduced_to(normalize(v, observation.defaults, context.spec.search_space))
            for v in _milder(context, config, loss, found)
        ]
        milder = [variant for variant in milder if variant.config]
        if loss.chaotic:  # what remains may gain nothing: it is worth no time beyond the budget
            queue = milder
            continue
        variants = [*milder, *variants]
        if len(variants) > 1 and context.out_of_time_at(f"{label}-variants", ahead_s):
            variants = variants[-1:]  # the safest
    return Proof({}, rejected[-1].reason, last, loss, gains, tuple(rejected))


def _without_idle(
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


def _cold_s(config: Config, gains: Sequence[KnobGain]) -> float:
    """What starting with ``config`` cost in the search, when nothing was compiled yet."""
    return math.fsum(gain.start_up_s for gain in gains if gain.knob in config)


def _why_not(loss: LossVerdict, found: Mapping[str, LossVerdict]) -> str:
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


def _points(
    context: RunContext, observation: Observation, trials: Sequence[Trial]
) -> tuple[Point, ...]:
    """The measured configurations by both objectives; () if there is only one objective."""
    spec = context.spec
    if not spec.second_objective:
        return ()
    objectives = (spec.objective, spec.second_objective)
    figures = Figures(objectives, spec.search_space, observation, spec.planned_steps, trials)
    return pareto(figures, trials)


def environment(context: RunContext, observation: Observation) -> dict[str, Any]:
    """The hardware and software that the figures belong to."""
    packages = {}
    for name in ("autotune-torch", "optuna", "mlflow", "ray", "nvtx"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        **context.executor.about(),
        "machine": encode(observation.machine),
        "packages": packages,
        "seed": context.seed,
        "command": mask_command(context.spec.command),
        "workdir": str(context.spec.workdir),
        "job_file": "" if context.spec.source is None else str(context.spec.source),
        "planned_steps": context.spec.planned_steps,
        "objective": context.spec.objective,
        "second_objective": context.spec.second_objective,
        "price": context.spec.price,
        "budget": {"minutes": context.spec.budget.minutes, "trials": context.spec.budget.trials},
    }
