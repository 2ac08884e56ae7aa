"""Whether the two runs of a pair may be alive at once and train in slices.

The slices are made by executors/interleave.py. Decided once per run, when the first pair is made.
Allowed only where it cannot change what is measured: for one process that trains on the CPU, with
enough memory for both. DataLoader workers are stopped with the process they belong to, but what
they wait for (network storage, a server) goes on: with workers that mostly wait, runs follow each
other. So they do if reading waits at all: both processes read the same data, the second one from
the system's cache.

Files are recorded for both processes together. If one of them reads or removes what the other has
written, it was not as if alone: the pair is made again, and runs follow each other from then on. So
they do if files change that cannot be recorded, or if a run fails: a failure because two do not fit
is no verdict.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from autotune.executors.base import SessionFailed
from autotune.executors.interleave import CROSSED
from autotune.executors.side_effects import summary
from autotune.results import Observation
from autotune.stages.context import RunContext
from autotune.stages.measuring.fresh import FIRST_RUN
from autotune_spaces.base import Config
from autotune_spaces.facts import JobFacts
from autotune_spaces.knobs.num_workers import COMPUTES
from autotune_trials.protocol.messages import Record

# journal key: why runs of a pair follow each other; "": they are interleaved
WHY_NOT = "not-interleaved"
WAITING = 0.02  # share of an iteration
# multiple of the job's memory that must be free beside it: a candidate may need more than the job
ROOM = 2.0
WRITES = "the job writes files whose changes cannot be tracked"
READS = "the two processes of a pair share a file"


def may_interleave(context: RunContext, *configs: Config) -> bool:
    """Whether runs of ``configs`` may be interleaved."""
    if context.journal.find(WHY_NOT) is None:
        _decide(context)
    if not context.executor.interleaves or context.journal.find(WHY_NOT) != "":
        return False
    observation = context.observation
    workers = any(config.get("num_workers") for config in configs)
    return not workers or observation is None or not workers_wait(observation.job)


def _decide(context: RunContext) -> None:
    """Decide for this run and those that resume it, once the job has been observed."""
    observation, first = context.observation, context.stored(FIRST_RUN)
    if observation is None or first is None:
        return
    context.executor.close_kept()  # what it wrote is known once it has ended
    written = unrecorded_files(context.run_dir, context.spec.workdir)
    peak_gib = first.window.peak_memory_gib
    keep_decision(context, why_not(context, observation, peak_gib, written))


def keep_decision(context: RunContext, why: str) -> None:
    """Keep for this run and those that resume it why runs follow each other; "": they do not."""
    context.journal.append(WHY_NOT, "", why)
    if why.startswith((WRITES, READS)):
        context.progress.note(
            f"{why}: the two sides run one after the other. Running them in alternating slices"
            " would reduce noise; to allow that, write only to {trial_dir}"
        )


def stop_interleaving(context: RunContext, failure: SessionFailed) -> None:
    """Make runs one after the other from now on.

    ``failure``: of one of two runs that were alive at once.
    """
    why = f"a run failed while both sides were running together ({failure.kind}: {failure.detail})"
    context.journal.append(WHY_NOT, "", why)
    context.progress.note(f"{why}; from now on they run one after the other")


def crossed(records: Iterable[Record]) -> str:
    """Why not, by what the two runs of a pair have read and removed; "": nothing of each other."""
    path = next((r.notes[CROSSED] for r in records if CROSSED in r.notes), "")
    return f"{READS} ({os.path.basename(path)})" if path else ""


def unrecorded_files(run_dir: Path, workdir: Path) -> str:
    """Why not, by files that changed and cannot be recorded or restored; "": there are none."""
    it = summary(run_dir, workdir)
    names = (*it.left, *it.noticed, *it.unkept, *it.failed)
    some = f"{names[0]}{', …' if len(names) > 1 else ''}" if names else ""
    return f"{WRITES} ({some})" if names else ""


def workers_wait(job: JobFacts) -> bool:
    """Whether DataLoader workers mostly wait, or nothing is known of that."""
    return job.reader is None or job.reader.cpu_share < COMPUTES


def why_not(context: RunContext, observation: Observation, peak_gib: float, written: str) -> str:
    """Why runs of this job follow each other; "": they may be interleaved.

    Args:
        peak_gib: memory that a run takes.
        written: see :func:`unrecorded_files`.
    """
    job, machine = observation.job, observation.machine
    if not context.executor.interleaves:
        return "the executor runs one session at a time"
    if context.spec.reads_energy:
        return "energy is counted for the whole machine"
    if job.device != "cpu":
        return "two processes would share the device's memory"
    if job.world_size > 1:
        return "the job has several ranks"
    if job.loader is None and job.process.children:
        return "the job has processes of its own, and it is unknown what they do"
    if job.loader is not None and job.loader.num_workers and workers_wait(job):
        return "the job has DataLoader workers, and they wait more than they compute"
    waits_s = 0.0 if job.reader is None else job.reader.fetch_s - job.reader.cpu_s
    if waits_s > WAITING * observation.anatomy.batch_cost_s:
        return "reading waits for storage, which has the data at hand for the second process"
    needed_gib = ROOM * peak_gib
    if machine.available_gib < needed_gib:
        free = f"{machine.available_gib:.1f} GiB are free"
        return f"a second process may need {needed_gib:.1f} GiB of memory, and {free}"
    if not context.spec.side_effects.put_back:
        return "files that the job writes are not put back"
    return written
