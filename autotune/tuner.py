"""One run from job to result: the stages in order.

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

import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autotune.disk import is_disk_error
from autotune.errors import AutotuneError
from autotune.explain.records import Explanation
from autotune.results import NO_GAIN, CompileCache, Observation, Point, Result, RunVerdict, Trial
from autotune.search.pareto import Figures, pareto
from autotune.secrets import mask_command
from autotune.stages.budget import SEARCH_BEGAN, announce, needed_s
from autotune.stages.compile_cache import pack_compile_cache
from autotune.stages.confirm import VARIANTS
from autotune.stages.context import OVER, RunContext
from autotune.stages.decisions.build_up import credit
from autotune.stages.explain import explain, trace_trials, with_idle_device
from autotune.stages.measuring.fresh import first_look_s
from autotune.stages.observe import observe
from autotune.stages.prove import Proof, cold_s, prove
from autotune.stages.recall import prove_again, recall_job, recall_outcome
from autotune.stages.search import search
from autotune.stages.searching.fresh_search import UNTRIED
from autotune_spaces.codec import encode
from autotune_trials.paths import publish

PROVEN_AGAIN = (
    "Proven again from the history, so it was not profiled; run `autotune profile` to see where the"
    " time goes."
)
EXPLAIN_ERROR = "explain-error.txt"


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
    start_s = cold_s(proof.winner, proof.gains)
    compiled = pack_compile_cache(context, observation, proof.winner, start_s)
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
        recalled=replace(recall.summary, outcome=recall_outcome(context, recall, again)),
    )


def _warn_if_budget_is_short(context: RunContext, observation: Observation) -> None:
    """Warn in advance if one proof will take longer than the budget."""
    needed, budget_s = needed_s(context, observation), context.spec.budget.minutes * 60
    if context.journal.find(SEARCH_BEGAN) is not None or not observation.domains:
        return  # a resumed run, or nothing to search
    if context.executor.lanes() is None and needed > OVER * budget_s:
        look_s = first_look_s(context, observation)
        announce(context, "confirming one finalist", look_s, "a run that finds one", needed)


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
