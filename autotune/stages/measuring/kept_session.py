"""One running process of the job, kept as long as it lives: the common part of live measurements.

run(block) ── the job ended ────────▶ a new process, shorter blocks (room.py)
   │       ── killed from outside ──▶ a new process, the same block
   │       ── its machine is lost ──▶ a new process elsewhere, the same block
   │       ── anything else ────────▶ BlockFailed: the configuration is to blame; the next block opens a new process
   └──▶ BlockReport
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from autotune.errors import BaselineError
from autotune.executors.base import LiveSession, SessionFailed
from autotune.secrets import mask_command
from autotune.stages.context import KILLS, RunContext
from autotune.stages.measuring.lanes import MOST_LOST
from autotune.stages.measuring.memory_limits import beyond_limits
from autotune.stages.measuring.room import Room
from autotune_spaces.base import Config
from autotune_spaces.facts import JobFacts
from autotune_trials.diagnosis.classify import KILLED, WORKERS_TOO_MANY
from autotune_trials.protocol.messages import Block, BlockReport, Window

ENERGY_BLOCK_S = 1.5  # on a GPU, whose counter NVML updates every 0.1 s
TOO_MANY_WORKERS = "workers are more than the machine or its limits allow"
COMPILE_LIMIT_S = 300.0  # max-autotune of a large model takes minutes
STARTS = 3  # failed ones in a row after which the job, which has started before, is given up


class BlockFailed(Exception):
    """A candidate could not be measured. ``kind``: infeasible (memory), failed (anything else)."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def not_measurable(context: RunContext, failure: BlockFailed) -> BaselineError:
    """Turn a failed block of the unchanged job into an error for its owner."""
    return BaselineError(
        f"the unchanged job could not be measured: {failure.reason}",
        where=" ".join(mask_command(context.spec.command)),
        remedy="see the session's logs in the run directory",
    )


@dataclass(frozen=True)
class Outcome:
    """The outcome of one block."""

    config: Config
    # None: see failure; if both are None, nothing is known (a worker was killed from outside)
    report: BlockReport | None
    failure: BlockFailed | None = None


class KeptSession:
    """Opens the job when needed and runs blocks in it. A context manager.

    Args:
        room: measured iterations that a session of this job is known to have room for.
        own_memory_gib: peak of the unchanged job.
    """

    def __init__(self, context: RunContext, room: int = 0, own_memory_gib: float = 0.0) -> None:
        self.context = context
        self.restarts = 0  # sessions that ended by themselves
        self.room = Room(room)
        self._session: LiveSession | None = None
        self._job: JobFacts | None = None
        self._kills = 0  # of the job from outside, since a block was finished
        self._lost = 0  # sessions whose machine was lost
        self._failed_starts = 0  # in a row
        self._stretched = True  # whether the session keeps epochs from ending
        self._changed = False  # whether another configuration than the unchanged job's was run
        self._own_memory_gib = own_memory_gib

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
        self.room.begin_session()

    def leave_running(self) -> None:
        """Leave the process to the next kept session."""
        if self._session is not None:
            self.context.executor.keep(self._session)
        self._session = None

    @property
    def session(self) -> LiveSession:
        """The running session, started if necessary."""
        if self._session is None:
            self._session = self._opened()
            self._job, self._failed_starts = self._session.job, 0
            self.room.begin_session(self._session.blocks, self._session.iterations)
            self._changed |= self._session.blocks > 0
        return self._session

    @property
    def job(self) -> JobFacts:
        """What the agent told of the job; a session that has ended is not started again for it."""
        return self._job or self.session.job

    def block_s(self, usual_s: float) -> float:
        """Target length of a measured block; ``usual_s``: where no GPU's energy is counted."""
        by_nvml = self.context.spec.reads_energy and self.job.device == "cuda"
        return max(usual_s, ENERGY_BLOCK_S) if by_nvml else usual_s

    def _opened(self) -> LiveSession:
        executor = self.context.executor
        # on a cluster, another session may have learned meanwhile what this one was opened without
        waits, self._stretched = executor.first_epoch_s, executor.stretches
        try:
            return executor.open_live()
        except SessionFailed as failure:
            if failure.kind not in ("ended", "unhooked") or not waits:
                raise
            # the job has only one epoch: it ended while the second was awaited
            executor.first_epoch_s = 0.0
            return executor.open_live()

    def run(self, config: Config, planned: Block) -> BlockReport:
        """Measure one block of ``config``.

        Raises:
            BlockFailed: out of memory, a knob that raised, a crash or a hang with this
                configuration.
            BaselineError: the job is too short to be measured in.
            SessionFailed: the unchanged job fails.
        """
        while True:
            [outcome] = self.run_all([(config, planned)])
            if outcome.failure is not None:
                raise outcome.failure
            if outcome.report is not None:
                return outcome.report

    def run_all(self, planned: Sequence[tuple[Config, Block]]) -> list[Outcome]:
        """Measure blocks without a pause while the job lives; outcomes in the order of the blocks.

        Raises:
            BaselineError, SessionFailed: as :meth:`run`.
        """
        outcomes: list[Outcome] = []
        left = list(planned)
        self._changed |= any(config for config, _ in left)
        shortened = 0  # block length that a session which ended by itself left room for
        while left:
            try:
                reports = self.session.measure([block for _, block in left])
            except SessionFailed as failure:
                reports = list(failure.partial)
                outcomes += self._judged(left, reports, shortened)
                left = left[len(reports) :]
                try:
                    if left and not _died_of_last(failure, reports):
                        block = left[0][1]
                        again = self._again(failure, *left[0])
                        if again != block:
                            shortened = again.iterations
                            left = [
                                (c, replace(b, iterations=min(b.iterations, shortened)))
                                for c, b in left
                            ]
                except BlockFailed as failed:
                    outcomes.append(Outcome(left.pop(0)[0], None, failed))
                finally:
                    self.close()
                outcomes += _not_tried(left, outcomes)
                left[:1] = [(c, _first_of_process(b)) for c, b in left[:1]]
                continue
            outcomes += self._judged(left, reports, shortened)
            left = []
        for place, outcome in enumerate(outcomes):
            block = planned[place][1]
            if outcome.failure and _is_own(outcome.config, block) and self._may_be_ours():
                self.close()
                [outcomes[place]] = self.run_all([(outcome.config, _first_of_process(block))])
        return outcomes

    def _may_be_ours(self) -> bool:
        """Whether the unchanged job may have failed because of what was run before it: memory that
        is still held, say. It is then measured again in a new process.
        """
        changed, self._changed = self._changed, False
        if changed:
            self.restarts += 1
            self.context.progress.note("the unchanged job failed; trying again in a new process")
        return changed

    def _judged(
        self,
        planned: Sequence[tuple[Config, Block]],
        reports: Sequence[BlockReport],
        shortened: int,
    ) -> list[Outcome]:
        if shortened and any(report.window is not None for report in reports):
            self.room.longest = min(self.room.longest, shortened)
        return [
            self._outcome(config, report)
            for (config, _), report in zip(planned, reports, strict=False)
        ]

    def _outcome(self, config: Config, report: BlockReport) -> Outcome:
        try:
            if self._worker_was_killed(report):
                return Outcome(config, None)
            self.room.finish(len(report.window.times_s) if report.window else 0)
            self.context.stop.check_after("crash" if report.error else "")
            self._kills = 0
            if report.error or report.window is None or not report.window.times_s:
                raise self._failed(report)
            if config and (why := self._beyond_limits(report.window)):
                raise BlockFailed("infeasible", why)
        except BlockFailed as failed:
            return Outcome(config, None, failed)
        return Outcome(config, report)

    def _beyond_limits(self, window: Window) -> str:
        limits, session = self.context.spec.constraints, self.session
        own_gib = self._own_memory_gib
        return beyond_limits(limits, session.machine, session.job.device, window, own_gib)

    def _again(self, failure: SessionFailed, config: Config, block: Block) -> Block:
        """The block to try in a new session if the job ended, was killed or lost its machine.

        Raises what any other failure means.
        """
        self.context.stop.check_after(failure.kind)
        if failure.kind == "killed" and self._kills < KILLS - 1:
            self._kills, self.restarts = self._kills + 1, self.restarts + 1
            self.context.progress.note(f"the job was killed ({failure.detail}); restarting it")
            return block
        if failure.kind == "lost":
            self.restarts, self._lost = self.restarts + 1, self._lost + 1
            if not self.context.executor.fails_over or self._lost > MOST_LOST:
                raise failure
            self.context.note_lost(failure)
            return block
        if self._session is None and self._job is not None:
            # it has started before: a port may still be in use, memory not yet be free
            self._failed_starts += 1
            if self._failed_starts == STARTS:
                raise failure
            self.restarts += 1
            self.context.progress.note(f"the job did not start again ({failure.detail}); retrying")
            return block
        # nothing was asked of the job that it does not do by itself
        own = _is_own(config, block)
        # it raised before it finished one iteration with these settings
        at_once = failure.kind == "crash" and failure.in_block == 0 and not own
        ended = not at_once and self.room.may_have_ended(failure.kind, block)
        if failure.kind == "crash" and (own or ended) and self._stretched:
            self.context.executor.stretches = self._stretched = False
            self.restarts += 1
            self.context.progress.note(
                f"the job failed in a live session ({failure.detail}), perhaps because that makes"
                " epochs longer; from now on they end where they do by themselves"
            )
            return block
        if ended:
            self.restarts += 1
            if self.room.end_session():
                return self.room.shortened(block)
            raise (
                self._too_short(failure)
                if own
                else BlockFailed(
                    "failed", f"the job ended before one block could be measured ({failure.detail})"
                )
            )
        if own:
            if self._may_be_ours():
                return block
            raise failure
        self._kills = 0
        raise _lost_trial(failure)

    def _worker_was_killed(self, report: BlockReport) -> bool:
        """Whether a DataLoader worker was killed from outside: the block is then measured again.

        Without that worker the job continues with its own settings.

        Raises:
            BlockFailed: too often in a row.
        """
        if not KILLED.search(report.error):
            return False
        self.context.stop.check_after("killed")
        self._kills += 1
        if self._kills < KILLS:
            self.context.progress.note(f"measuring again: {report.error}")
            return True
        self._kills = 0
        raise BlockFailed(
            "infeasible",
            f"workers of its DataLoader were killed {KILLS} times in a row ({report.error})",
        )

    def _too_short(self, failure: SessionFailed) -> BaselineError:
        command = " ".join(mask_command(self.context.spec.command))
        if failure.kind == "crash":
            tail = f"\n{failure.log_tail}" if failure.log_tail else ""
            return BaselineError(
                "the job failed before one block of iterations could be measured:"
                f" {failure.detail}{tail}",
                where=failure.where or command,
                expected="a few hundred optimizer steps",
                remedy=(
                    "check that the command runs that long by itself; if it fails past its planned"
                    " end, increase the number of epochs or steps in job.yaml's command"
                ),
            )
        return BaselineError(
            "the job ended before one block of iterations could be measured",
            where=command,
            expected=f"a few hundred optimizer steps ({failure.detail})",
            remedy=(
                "increase the number of epochs or steps in job.yaml's command: trials never run"
                " to the end"
            ),
        )

    def _failed(self, report: BlockReport) -> BlockFailed:
        kind, _, text = report.error.partition(":")
        if kind == "oom":
            return BlockFailed("infeasible", f"out of memory ({text.strip()})")
        if found := WORKERS_TOO_MANY.search(report.error):
            return BlockFailed(
                "infeasible", f"{found['workers']} {TOO_MANY_WORKERS} ({found['error']})"
            )
        return BlockFailed(
            "failed", report.error or "no iteration finished within the time limit of a block"
        )


def _is_own(config: Config, block: Block) -> bool:
    """Whether the job runs as it is."""
    return not config and not block.cached_batches


def _first_of_process(block: Block) -> Block:
    """Return ``block`` as a new process needs it: settling until its times level off.

    It may have been planned as a cheap switch.
    """
    return replace(block, level=True, min_settle=max(block.min_settle, Block.min_settle))


def _died_of_last(failure: SessionFailed, reports: Sequence[BlockReport]) -> bool:
    """Whether the job ran out of memory in the last reported block, and not in the one after it: a
    job usually dies of that after the agent has reported it.
    """
    return failure.kind == "oom" and bool(reports) and reports[-1].error.startswith("oom:")


def _not_tried(left: list[tuple[Config, Block]], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Take the next blocks out of ``left`` that contain the settings with which the job has just
    died: each attempt would cost a start of the job. What ran out of memory does so again; of
    those that contain what crashed, nothing is known.
    """
    lost = outcomes[-1] if outcomes else None
    if lost is None or lost.failure is None or not lost.config:
        return []
    partly = BlockFailed(
        lost.failure.kind, f"not tried, because a part of it failed: {lost.failure.reason}"
    )
    taken = []
    while left and lost.config.items() <= left[0][0].items():
        config, _ = left.pop(0)
        failure = lost.failure if config == lost.config else partly
        taken.append(Outcome(config, None, failure if failure.kind == "infeasible" else None))
    return taken


def _lost_trial(failure: SessionFailed) -> BlockFailed:
    """What the end of a session says about the configuration that was measured in it."""
    if failure.kind == "oom":
        return BlockFailed("infeasible", f"out of memory ({failure.detail})")
    # most likely by a guard of the machine's memory: larger sizes are not tried
    if failure.kind == "killed":
        return BlockFailed("infeasible", f"killed {KILLS} times in a row ({failure.detail})")
    return BlockFailed("failed", f"{failure.kind}: {failure.detail}")
