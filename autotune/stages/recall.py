"""Recalls earlier runs of this job after OBSERVE: the baseline is always measured first."""

from __future__ import annotations

from autotune.history.use import Recall
from autotune.results import Observation
from autotune.stages.context import RunContext
from autotune.words import plural
from autotune_spaces.codec import decode, encode


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
