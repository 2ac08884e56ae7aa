"""One run of ``autotune run``, from a JobSpec to its files; the same call again resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from autotune.disk import disk_errors_as_input_errors
from autotune.errors import InputError, Interrupted
from autotune.executors import executor_for
from autotune.executors.base import Executor
from autotune.executors.side_effects import summary
from autotune.explain.nsight import Tool
from autotune.export.fingerprint import as_here, compared, here
from autotune.export.tuned import build_tuned, write_tuned
from autotune.history.mlflow_store import RECORD
from autotune.history.store import Store, StoreError, own_path
from autotune.history.use import open_history
from autotune.job.sources import changed, digests
from autotune.job.spec import JobSpec
from autotune.journal import Journal, clock
from autotune.objectives import BETTER
from autotune.report.page.html import write_report
from autotune.report.plots.loss import write_loss_plot
from autotune.report.plots.waterfall import write_waterfall_plot
from autotune.report.progress import Progress
from autotune.report.result_file import load_result, write_findings, write_result
from autotune.report.terminal.plain import open_progress
from autotune.results import Observation, Result
from autotune.run_directory import (
    JOURNAL,
    RESULT,
    move_aside,
    require_outside_workdir,
    require_run_directory,
)
from autotune.stages.context import RunContext, Stop
from autotune.tracking import open_tracker, preflight, records
from autotune.tracking.base import Tracker
from autotune.tuner import tune
from autotune.words import config_words, factor_words
from autotune_spaces.codec import decode, encode
from autotune_spaces.facts import Machine
from autotune_trials.paths import publish

FINISHED = (
    "--fresh starts a new run (which first proves the recorded answer again); --fresh --no-history"
    " searches from scratch"
)


def tune_job(
    spec: JobSpec,
    run_dir: Path,
    *,
    fresh: bool = False,
    seed: int = 0,
    offline: bool = False,
    progress_kind: str = "auto",
    tools: tuple[Tool, ...] = (),
    history: bool = False,
    store: Path | None = None,
) -> Result:
    """Tune ``spec`` in ``run_dir``: check, resume or start, run the stages, write the results.

    Args:
        history: use earlier runs, and keep this one.
        store: the history's file; None: this user's.

    Raises:
        InputError, BaselineError, HookError, Interrupted: see :mod:`autotune.errors`.
    """
    if seed < 0:
        raise InputError(f"the seed is {seed}", where="seed", expected="0 or above")
    history = history and spec.remembered
    with disk_errors_as_input_errors(run_dir):
        require_outside_workdir(run_dir, spec.workdir)
        if not fresh:
            require_run_directory(run_dir, "run")
        other_torch = _other_torch(spec, run_dir, store) if history and not fresh else ""
        aside = fresh or bool(other_torch)
        if not offline and (aside or not (run_dir / RESULT).exists()):
            preflight(spec.tracking.uri, run_dir)  # before anything is written or moved
        if aside:
            move_aside(run_dir)
        journal = Journal(run_dir / JOURNAL, clock())
        with (
            closing(journal),
            open_progress(
                progress_kind, spec.budget.minutes * 60, spent_s=journal.elapsed_s
            ) as progress,
        ):
            _require_same_study(journal, spec, run_dir, seed)
            if journal.find("finished") is not None and (run_dir / RESULT).exists():
                return _show_earlier_answer(journal, spec, run_dir, progress)
            if other_torch:
                progress.note(
                    f"{other_torch}: tuning this job again; the earlier run was moved aside"
                )
            if journal.find("observation") is not None:
                progress.note(f"resuming after {journal.elapsed_s:.0f} s of earlier work")
            _compare_sources(journal, spec, progress)
            if elsewhere := _environment_changes(journal, spec):
                progress.warning(
                    f"this run began elsewhere ({elsewhere}): continuing mixes two machines or"
                    " torch versions; use --fresh to start over"
                )
            tracker = open_tracker(
                spec.tracking.uri,
                spec.tracking.experiment or spec.name,
                run_dir,
                offline,
                env=spec.env,
                say=progress.warning,
            )
            records.begin(tracker, spec, run_dir)
            past = open_history(store, progress.warning) if history else None
            stop = Stop()
            with (
                _mark_study_failed_on_error(tracker),
                closing(
                    open_executor(spec, run_dir, journal, progress.note, progress.warning)
                ) as executor,
                stop.listening(progress),
            ):
                result = _tune_and_write(
                    RunContext(
                        spec,
                        executor,
                        journal,
                        progress,
                        tracker,
                        run_dir,
                        seed,
                        stop,
                        tools,
                        history=past,
                    )
                )
            progress.finished(result, run_dir)
            return result


def _show_earlier_answer(
    journal: Journal, spec: JobSpec, run_dir: Path, progress: Progress
) -> Result:
    """The result of a finished run, and what has changed since."""
    result = load_result(run_dir / RESULT)
    if edited := _edited(journal, spec):
        progress.warning(
            f"{_listed(edited)} changed since this run ended; use --fresh to tune the job as it is"
            " now"
        )
    if elsewhere := _environment_changes(journal, spec):
        progress.warning(f"this run was measured elsewhere ({elsewhere}); use --fresh to tune here")
    progress.note(f"this job has already been tuned: {_answer_words(result)}. {FINISHED}")
    progress.finished(result, run_dir)
    return result


def _tune_and_write(context: RunContext) -> Result:
    """Run the stages; write, remember and track the result."""
    spec, journal = context.spec, context.journal
    tracker, run_dir = context.tracker, context.run_dir
    result = replace(tune(context), written=summary(run_dir, spec.workdir))
    write_result(result, run_dir / RESULT)
    publish_outcome(result, spec, run_dir)
    if context.history is not None:
        code = journal.find("sources") or {}
        kept = context.history.keep(spec, result, code, _number(journal))
        publish(run_dir / RECORD, json.dumps(encode(kept)) + "\n")
    records.record_result(tracker, result, run_dir)
    records.finish(tracker, "FINISHED", result)
    journal.append("finished", "", {})
    return result


@contextmanager
def _mark_study_failed_on_error(tracker: Tracker) -> Iterator[None]:
    """Record in the study that a run ended without a result, however it ended.

    Otherwise the study looks as if the run were still going on.
    """
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # what ended the run matters more than that the disk is full now
            records.finish(
                tracker,
                "KILLED" if isinstance(error, (Interrupted, KeyboardInterrupt)) else "FAILED",
            )
        raise


def open_executor(
    spec: JobSpec,
    run_dir: Path,
    journal: Journal,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Executor:
    """The executor for this run's sessions, on machines of the kind its first ones ran on.

    Raises:
        InputError: see :func:`autotune.executors.executor_for`.
    """
    known = journal.find("machine")
    like = None if known is None else decode(Machine, known)
    executor = executor_for(spec, run_dir, like=like, say=say, warn=warn)
    if known is None and executor.like is not None:
        journal.append("machine", "", encode(executor.like))
    return executor


def publish_outcome(result: Result, spec: JobSpec, run_dir: Path) -> None:
    """Write tuned.yaml, report.html, the findings and the standalone plots."""
    write_tuned(build_tuned(result, spec, run_dir), run_dir / "tuned.yaml")
    if result.loss.baseline_curve:
        write_loss_plot(result, run_dir / "loss.png")
    write_waterfall_plot(result, run_dir / "waterfall.png")
    write_findings(result.explanation, run_dir / "findings.json")
    write_report(result, run_dir)


def _require_same_study(journal: Journal, spec: JobSpec, run_dir: Path, seed: int) -> None:
    """Write the study's identity into a new journal, or check that this is the same study.

    Raises:
        InputError: the directory holds a run of another job.
    """
    known = journal.find("study")
    if known is None:
        journal.append("study", "", {"digest": spec.digest(), "name": spec.name, "seed": seed})
    elif known["digest"] != spec.digest():
        raise InputError(
            "this directory holds a run of another job, or job.yaml has changed since",
            where=str(run_dir),
            expected="the same command, workdir, env, search_space, search, objective, planned_steps,"
            " constraints, convergence and executor",
            remedy="use --fresh to move the old run aside and start over, or --run-dir to choose"
            " another directory",
        )


def _number(journal: Journal) -> str:
    """This run's ID in the history, the same if a resumed run is kept once more."""
    number = journal.find("number")
    if number is None:
        number = token_hex(16)
        journal.append("number", "", number)
    return str(number)


def _compare_sources(journal: Journal, spec: JobSpec, progress: Progress) -> None:
    """Warn if the job's code is not what this run has measured so far.

    Until something has been measured, the current code counts.
    """
    if journal.find("observation") is None:
        journal.append("sources", "", digests(spec.command, spec.workdir))
    elif edited := _edited(journal, spec):
        progress.warning(
            f"{_listed(edited)} changed since this run began: continuing mixes two versions of the"
            " job; use --fresh to start over"
        )


def _edited(journal: Journal, spec: JobSpec) -> list[str]:
    """Files of the job that changed since its run began."""
    return changed(journal.find("sources") or {}, digests(spec.command, spec.workdir))


def _environment_changes(journal: Journal, spec: JobSpec) -> str:
    """How this machine differs from the one that the run has measured so far; "" if it does not."""
    observed = journal.find("observation")
    if observed is None or spec.executor.kind != "local":
        return ""
    then = decode(Observation, observed)
    now = here(spec.command, {**os.environ, **spec.env}, spec.workdir)
    was_on_gpu, on_gpu = then.job.device == "cuda", now.device == "cuda"
    found = ["on a GPU then, none here"] if was_on_gpu and not on_gpu else []
    unlike = compared(as_here(encode(then.machine), now), now, gpu=was_on_gpu and on_gpu)
    return "; ".join([*found, *(f"{what}: {a} then, {b} here" for what, a, b in unlike)])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'has' if len(names) == 1 else 'have'}"


def _answer_words(result: Result) -> str:
    return (
        f"{factor_words(result.speedup.estimate)} with {config_words(result.knobs)}"
        if result.knobs
        else f"nothing was proven {BETTER.get(str(result.environment.get('objective')), 'faster')}"
    )


def _other_torch(spec: JobSpec, run_dir: Path, store: Path | None) -> str:
    """Both torch versions, if a finished run of this very job used another one; else "".

    Only a run that is in the history counts.
    """
    if spec.executor.kind != "local" or not (run_dir / RESULT).exists():
        return ""
    with closing(Journal(run_dir / JOURNAL, clock())) as journal:
        study = journal.find("study") or {}
        number = journal.find("number")  # of the run in the history
        if journal.find("finished") is None or study.get("digest") != spec.digest():
            return ""
        if number is None or _edited(journal, spec):
            return ""
    try:
        if number not in (run.id for run in Store(store or own_path()).runs(most=-1)):
            return ""
    except StoreError:
        return ""
    before = load_result(run_dir / RESULT).observation.machine.torch_version
    now = here(spec.command, {**os.environ, **spec.env}, spec.workdir).torch_version
    return f"torch {before} → {now}" if now and before and now != before else ""
