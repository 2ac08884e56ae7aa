"""What earlier runs know of this job: recalled after OBSERVE, because the baseline is always measured
first, and proven like any finalist before it is an answer again.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.executors.base import SessionFailed
from autotune.history.use import Recall
from autotune.job.configs import in_words
from autotune.objectives import BETTER
from autotune.results import PROVEN_ANEW, KnobGain, Observation, Rejected
from autotune.stages.budget import announce
from autotune.stages.confirm import confirm
from autotune.stages.context import ANNOUNCED, OVER, RunContext
from autotune.stages.converge import converge
from autotune.stages.decisions.worth_it import break_even_steps, paid_back_words
from autotune.stages.measuring.fresh import FIRST_RUN, first_look_s, pair_s
from autotune.stages.measuring.pairs import Pairs
from autotune.stages.prove import NOT_NEEDED, PROVEN, Proof, cold_s, why_not, without_idle
from autotune.stages.searching.model_study import PRIOR_DROPPED
from autotune.verdict.iterations import first_counted
from autotune.verdict.timing import start_up_excess
from autotune.words import plural
from autotune_spaces.codec import decode, encode

NOT_THERE = 0.05  # log speed-up by which a single run may fall short of half the recorded gain


def recall_job(context: RunContext, observation: Observation) -> Recall:
    """Recall the job from the history, or from the journal if this run has already done so."""
    if context.history is None:
        return Recall()
    stored = context.journal.find("recall")
    if stored is not None:
        return decode(Recall, stored)
    code = context.journal.find("sources") or {}
    recall = context.history.recall(context.spec, observation, code)
    context.journal.append("recall", "", encode(recall))
    _tell(context, recall)
    return recall


def _tell(context: RunContext, recall: Recall) -> None:
    found, progress = recall.summary, context.progress
    if found.slower and found.recorded_iteration_s and found.iteration_s:
        progress.warning(
            f"one iteration of the unchanged job takes {found.iteration_s * 1e3:.3g} ms; it took"
            f" {found.recorded_iteration_s * 1e3:.3g} ms when last tuned. The machine or its"
            " software has become slower"
        )
    if recall.answer:
        other = ", with other software" if found.kind == "other-software" else ""
        progress.note(
            f"tuned here before{other}; proving the recorded answer (--no-history searches instead)"
        )
    elif recall.expected:
        of = "similar jobs" if found.kind == "near" else "this job and similar ones"
        progress.note(
            f"search order taken from {plural(found.runs, 'earlier run')} of {of} (--no-history"
            " ignores them)"
        )


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
    pairs = Pairs(context, config, {}, "recalled", cold_s(config, gains))
    if not why:
        last = confirm(context, observation, config, pairs, finalist=0)
        why = "" if last.adopted else f"not proven {better}: {last.reason}"
    if not why:
        loss = converge(context, config, pairs)
        why = "" if loss.verdict == "unchanged" else why_not(loss, {})
    if not why and (beyond := pairs.beyond_limits(observation)):
        why = f"not proven {better}: it {beyond}"
    if not why:
        proof = Proof(config, PROVEN.format(better=better), last, loss, gains, ())
        return without_idle(context, observation, proof, pairs)
    context.progress.note(f"the recorded answer did not hold ({why}); searching")
    return Proof({}, why, last, loss, (), (Rejected(config, why),))


def _warn_if_proof_is_long(context: RunContext, observation: Observation) -> None:
    """Warn in advance if proving the recorded answer will take longer than the budget."""
    proof_s, budget_s = first_look_s(context, observation), context.spec.budget.minutes * 60
    needed = context.journal.elapsed_s + pair_s(context, observation) / 2 + proof_s
    if context.journal.find(ANNOUNCED) is None and needed > OVER * budget_s:
        announce(context, "proving the recorded answer", proof_s, "the run", needed)


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
    start_s = start_up_excess(after.window, first_counted(after.window))
    steps = break_even_steps(start_s, recall.log_gain, observation.anatomy.iteration_s)
    late = steps is not None and steps > context.spec.planned_steps
    gains = tuple(
        replace(gain, start_up_s=start_s / len(slow)) if gain.knob in slow else gain
        for gain in recall.gains
    )
    return paid_back_words(start_s, steps or 0) if late else "", gains


def recall_outcome(context: RunContext, recall: Recall, again: Proof | None) -> str:
    if again is not None:
        return PROVEN_ANEW if again.winner else "not proven"
    if context.journal.find(PRIOR_DROPPED) is not None:
        return "dropped"
    return "prior" if recall.expected else ""
