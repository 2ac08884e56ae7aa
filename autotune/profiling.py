"""One profile of ``autotune profile``, from a JobSpec to its files. Nothing is tuned."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from autotune.disk import disk_errors_as_input_errors
from autotune.executors.side_effects import summary
from autotune.explain.nsight import Tool
from autotune.job.spec import JobSpec
from autotune.journal import Journal, clock
from autotune.report.profile import status, write_profile
from autotune.report.terminal.plain import open_progress
from autotune.results import Profile
from autotune.run_directory import JOURNAL, move_aside, require_outside_workdir
from autotune.running import open_executor
from autotune.stages.context import RunContext
from autotune.stages.profile import explain_alone
from autotune.tracking import Tracker
from autotune.tuner import environment
from autotune.verdict.disturbed import disturbed
from autotune_spaces.base import Value
from autotune_trials.protocol.messages import Window


def profile_job(
    spec: JobSpec,
    config: dict[str, Value],
    directory: Path,
    *,
    nvtx_modules: int = 0,
    tools: tuple[Tool, ...] = (),
    shown: bool = True,
) -> Profile:
    """Profile ``spec`` with ``config``.

    Writes summary.json, profile.html and the traces to ``directory``.

    Raises:
        BaselineError, HookError: the job fails, or the agent cannot get in.
        InputError: the job is in ``directory``, or the disk is full or read-only.
    """
    began = time.monotonic()
    require_outside_workdir(directory, spec.workdir, "--out")
    move_aside(directory, "--out")
    journal = Journal(directory / JOURNAL, clock())
    with (
        disk_errors_as_input_errors(directory, "run it again"),
        closing(journal),
        status(spec.name, shown) as say,
        open_progress("quiet" if shown else "silent", 0.0) as progress,
        closing(open_executor(spec, directory, journal, say, say)) as executor,
    ):
        context = RunContext(
            spec,
            executor,
            journal,
            progress,
            Tracker(),
            directory,
            nsight=tools,
            nvtx_modules=nvtx_modules,
        )
        observation, explanation, record = explain_alone(context, config)
        notes = [*explanation.notes]
        if "nvtx_modules" in record.notes:
            notes.append(str(record.notes["nvtx_modules"]))
        notes += disturbance(record.window)
        found = Profile(
            spec.name,
            config,
            observation,
            replace(explanation, notes=tuple(notes)),
            round(time.monotonic() - began, 1),
            environment(context, observation),
            dict(record.no_effect),
            summary(directory, spec.workdir),
        )
    with disk_errors_as_input_errors(directory, "run it again"):
        write_profile(found, directory)
    return found


def disturbance(window: Window) -> tuple[str, ...]:
    """A note if something else slowed the machine down while the job was timed."""
    why = disturbed(window)
    if why is None:
        return ()
    told = f"while the job was timed, {why}: its times may be too long;"
    return (f"{told} profile it again when that is over",)
