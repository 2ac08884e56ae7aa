"""Whether the two runs of a pair may be alive at once and train in slices.

The slices are made by executors/interleave.py. Decided once per run, when the first pair is made:
what the job writes has then been seen in the search, too. Allowed only where it cannot change what
is measured: for one process that trains on the CPU, that writes no files outside its {trial_dir},
with enough memory for both, and without DataLoader workers on either side. Until all workers are
stopped at the end of a slice, they make batches in time that is not counted (64 workers, network
storage: a quarter too fast). If a run fails all the same, pairs are made one run after the other
from then on: a failure because two do not fit is no verdict. So is a pair during which the job began
to write files: it is made again.
"""

from __future__ import annotations

from pathlib import Path

from autotune.executors.base import SessionFailed
from autotune.executors.side_effects import summary
from autotune.results import Observation
from autotune.stages.context import RunContext
from autotune.stages.measuring.fresh import FIRST_RUN
from autotune_spaces.base import Config
from autotune_spaces.codec import decode

# journal key: why runs of a pair follow each other; "": they are interleaved
WHY_NOT = "not-interleaved"
# multiple of the job's memory that must be free beside it: a candidate may need more than the job
ROOM = 2.0
WRITES = "the job writes files"


def may_interleave(context: RunContext, *configs: Config) -> bool:
    """Whether runs of ``configs`` may be interleaved."""
    if context.journal.find(WHY_NOT) is None:
        _decide(context)
    workers = any(config.get("num_workers") for config in configs)
    return context.executor.interleaves and not workers and context.journal.find(WHY_NOT) == ""


def _decide(context: RunContext) -> None:
    """Decide for this run and those that resume it, once the job has been observed."""
    observed, first = context.journal.find("observation"), context.stored(FIRST_RUN)
    if observed is None or first is None:
        return
    context.executor.close_kept()  # what it wrote is known once it has ended
    written = files_written(context.run_dir, context.spec.workdir)
    observation, peak_gib = decode(Observation, observed), first.window.peak_memory_gib
    keep_decision(context, why_not(context, observation, peak_gib, written))


def keep_decision(context: RunContext, why: str) -> None:
    """Keep for this run and those that resume it why runs follow each other; "": they do not."""
    context.journal.append(WHY_NOT, "", why)
    if why.startswith(WRITES):
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


def files_written(run_dir: Path, workdir: Path) -> str:
    """Why not, by the files that the runs so far have written; "": they have written none."""
    it = summary(run_dir, workdir)
    names = (*it.restored, *it.removed, *it.prepared, *it.left)
    names += (*it.noticed, *it.unkept, *it.failed)
    return f"{WRITES} ({names[0]}{', …' if len(names) > 1 else ''})" if names else ""


def why_not(context: RunContext, observation: Observation, peak_gib: float, written: str) -> str:
    """Why runs of this job follow each other; "": they may be interleaved.

    Args:
        peak_gib: memory that a run takes.
        written: see :func:`files_written`.
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
    if job.loader is None:
        return "how the job loads its batches is unknown"
    if job.loader.num_workers:
        return "the job has DataLoader workers"
    needed_gib = ROOM * peak_gib
    if machine.available_gib < needed_gib:
        free = f"{machine.available_gib:.1f} GiB are free"
        return f"a second process may need {needed_gib:.1f} GiB of memory, and {free}"
    if not context.spec.side_effects.put_back:
        return "files that the job writes are not put back"
    return written
