"""One judgement from two sides to its files; the same call again resumes."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack, closing
from pathlib import Path

from autotune.disk import disk_errors_as_input_errors
from autotune.errors import InputError
from autotune.journal import Journal, clock
from autotune.judging.measure import judge_sides
from autotune.judging.records import SCHEMA_VERSION, Judgement
from autotune.judging.sides import Side, digest
from autotune.report.result_file import json_text
from autotune.report.terminal.plain import open_progress
from autotune.run_directory import (
    JUDGEMENT,
    move_aside,
    require_outside_workdir,
    require_run_directory,
)
from autotune.stages.context import RunContext, Stop
from autotune.tracking import Tracker
from autotune.verdict.loss import RULES
from autotune_spaces.codec import decode
from autotune_trials.paths import publish


def judge_job(
    sides: tuple[Side, Side],
    run_dir: Path,
    *,
    margin: float,
    loss: str = "",
    fresh: bool = False,
    progress_kind: str = "quiet",
) -> Judgement:
    """Judge B against A in ``run_dir`` and write judgement.json.

    Args:
        margin: share within which two speeds are the same.
        loss: what B has to show: "exact", "rounding", "random-stream" or "statistical"; "": what
            its knobs may do, at least rounding.
        progress_kind: "auto", "quiet", "silent" or "json".

    Raises:
        InputError, BaselineError, HookError, Interrupted: see :mod:`autotune.errors`.
    """
    from autotune.executors.local import LocalExecutor

    check_loss_class(loss, "loss")
    for side in sides:
        require_outside_workdir(run_dir, side.spec.workdir)
    if fresh:
        move_aside(run_dir)
    else:
        require_run_directory(run_dir, "judgement")
    spec = sides[0].spec
    with disk_errors_as_input_errors(run_dir), ExitStack() as stack:
        journal = stack.enter_context(closing(Journal(run_dir / "journal.jsonl", clock())))
        _require_same_study(journal, digest(sides, loss), run_dir)
        progress = stack.enter_context(
            open_progress(progress_kind, spec.budget.minutes * 60, spent_s=journal.elapsed_s)
        )
        stored = _finished(journal, run_dir, spec.budget.minutes, margin)
        if stored is not None:
            it, at = stored
            progress.warning(f"already judged at {at}; use --fresh to judge again")
            return it
        stop = Stop()
        stack.enter_context(stop.listening(progress))
        contexts = {}
        # the outer directory first: its lock covers those in it
        for side in sorted(sides, key=lambda s: len(os.path.realpath(s.spec.workdir))):
            place = run_dir / side.name
            place.mkdir(parents=True, exist_ok=True)
            # while runs of both are alive, neither may take the other's files for the job's
            executor = LocalExecutor(side.spec, place, own=(run_dir.absolute(),))
            stack.enter_context(closing(executor))
            executor.loader_key = side.loader_key
            contexts[side.name] = RunContext(
                side.spec, executor, journal, progress, Tracker(), run_dir, stop=stop
            )
        it = judge_sides(contexts, sides, margin, loss)
        publish(run_dir / JUDGEMENT, json_text(it))
        at = time.strftime("%Y-%m-%d %H:%M")
        journal.append("finished", "", {"minutes": spec.budget.minutes, "at": at})
        return it


def check_loss_class(loss: str, where: str) -> None:
    """Check a loss class.

    Raises:
        InputError: ``loss`` is neither "" nor a known class.
    """
    classes = ("exact", *RULES)
    if loss and loss not in classes:
        raise InputError(f"unknown loss class '{loss}'", where=where, expected=", ".join(classes))


def load_judgement(path: Path) -> Judgement:
    """Load a judgement.

    Raises:
        InputError: not a judgement, or one of another schema version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {data['schema_version']}")
        return decode(Judgement, data)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"cannot be read: {error}",
            where=str(path),
            expected="a file written by `autotune judge`",
            remedy="run the same command with --fresh",
        ) from None


def _finished(
    journal: Journal, run_dir: Path, minutes: float, margin: float
) -> tuple[Judgement, str] | None:
    """The judgement that was made here, and when; None if it has to continue.

    It continues with its pairs if another margin is asked for, or if it is undecided and other
    minutes are given. That is sound because the looks were planned before the first pair.
    """
    ended = journal.find("finished")
    if ended is None or not (run_dir / JUDGEMENT).exists():
        return None
    it = load_judgement(run_dir / JUDGEMENT)
    same = it.decided or ended.get("minutes") == minutes
    return (it, ended.get("at", "an earlier time")) if same and it.margin == margin else None


def _require_same_study(journal: Journal, identity: str, run_dir: Path) -> None:
    known = journal.find("study")
    if known is None:
        journal.append("study", "", {"digest": identity})
    elif known["digest"] != identity:
        raise InputError(
            "this directory holds another judgement (different sides, --loss, code, or versions of"
            " Python or torch)",
            where=str(run_dir),
            expected="the sides it was started with",
            remedy="use --fresh to move it aside and start over, or --run-dir to choose another"
            " directory",
        )
