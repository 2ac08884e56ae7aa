"""Turn exit status, logs, rank errors and stacks into the exception that tells the tuner why a
session failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autotune_trials.diagnosis import classify, hang_stacks, unhooked
from autotune_trials.diagnosis.oom_kills import OomKills
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.failures import SessionFailed
from autotune_trials.protocol.messages import Fault, JobError
from autotune_trials.session import ranks
from autotune_trials.session.launch_environment import Command
from autotune_trials.supervisor.masking import Masks

ACCUMULATES = (
    "If it accumulates gradients for longer, raise startup_timeout_s and hang_timeout_s in"
    " job.yaml."
)


class Postmortem:
    """Explains the failure of one session. Its messages contain none of the job's secrets.

    Args:
        command: as it is in the session.
        mark: the mark of the session's processes.
    """

    _oom_kills: OomKills  # set by begin()

    def __init__(self, command: Command, paths: SessionPaths, mark: str, masks: Masks) -> None:
        self._argv, self._workdir = command.argv, command.workdir
        self._paths = paths
        self._mark = mark
        self._masks = masks
        # with ranks on other machines: why one of these is lost; "": none is
        self.lost_machine: Callable[[], str] = lambda: ""
        # and how the command on one of these ended; None: all go on
        self.ended_elsewhere: Callable[[], classify.Diagnosis | None] = lambda: None

    def begin(self) -> None:
        """Start counting OOM kills; called just before the command starts."""
        self._oom_kills = OomKills()

    def failure(
        self, kind: str, detail: str, *, log_tail: str = "", where: str = ""
    ) -> SessionFailed:
        if gone := self.lost_machine():  # its loss first shows up as errors on other ranks
            kind, detail, log_tail, where = "lost", gone, "", ""
        masked = self._masks.text
        return SessionFailed(
            kind,
            masked(detail),
            log_tail=masked(log_tail),
            where=masked(where),
            directory=str(self._paths.root),
        )

    def of_exit(self, status: int, until: str) -> SessionFailed:
        """The command ended with ``status`` before ``until``."""
        return self.found(self.after_exit(status, until))

    def after_exit(self, status: int, until: str) -> classify.Diagnosis:
        if status == 0 and "step" not in classify.markers_of(self._paths):
            return unhooked.explain(self._argv, self._paths, "the command ended (exit code 0)")
        return classify.of_exit(status, self._workdir, self._paths, until, self._oom_kills.since())

    def of_lost_supervisor(self, lost: str) -> SessionFailed:
        """The supervisor is gone; ``lost`` says why."""
        return self.failure("crash", lost, log_tail=classify.log_tail(self._paths))

    def of_fault(self, fault: Fault) -> SessionFailed:
        """The agent reports an error of its own, or has lost sight of the training."""
        text = fault.text.strip()
        if fault.unhooked:
            return self.failure("unhooked", text)
        last = text.splitlines()[-1] if text else "no details"
        if classify.KILLED.search(last):  # torch raises it wherever the process happens to be
            return self.failure(self._of_killed(), last[:500], log_tail=text)
        return self.failure("agent", f"the agent failed in {fault.where}: {last}", log_tail=text)

    def _of_killed(self) -> str:
        return "killed" if self._oom_kills.since() == 0 else "oom"

    def of_silent_rank(self, rank: int, alive: bool, until: str) -> SessionFailed:
        """A training process closed its connection before ``until`` while the command still runs.

        ``alive``: the process itself still exists.
        """
        found = classify.of_logs(
            self._workdir,
            self._paths,
            f"the training process (rank {rank}) ended",
            self._oom_kills.since(),
        )
        if found.kind in ("oom", "killed") or classify.ending_of(self._paths).traceback:
            return self.found(found)
        if alive:
            return self.failure(
                "agent",
                f"the agent of rank {rank} closed its connection before {until}",
                log_tail=found.log_tail,
            )
        detail = (
            f"the training process (rank {rank}) ended before {until},"
            " while the command keeps running"
        )
        return self.failure("ended", detail, log_tail=found.log_tail)

    def of_errors(self, errors: Sequence[JobError]) -> SessionFailed:
        """Ranks report errors of the job; one is the cause, the others are consequences."""
        cause = ranks.first_cause(errors)
        if cause is None or cause.kind == "restart":
            elsewhere = self.ended_elsewhere()
            if elsewhere is not None and elsewhere.kind in ("oom", "killed"):
                return self.found(elsewhere)  # no log here says so
            happened = (
                cause.text
                if cause is not None
                else f"rank {errors[0].rank} lost its connection to another rank"
            )
            return self.found(
                classify.of_logs(self._workdir, self._paths, happened, self._oom_kills.since())
            )
        lines, kind = cause.text.strip().splitlines(), cause.kind
        # a DataLoader worker of that rank was killed
        if kind == "crash" and classify.KILLED.search(cause.text):
            kind = self._of_killed()
        error = classify.in_one_line(classify.ending(cause.text).error)
        return self.failure(
            kind,
            f"rank {cause.rank}: {(error or ranks.last_line(cause.text))[:500]}",
            log_tail="\n".join(lines[-classify.TAIL_LINES :]),
            where=classify.user_line(lines, self._workdir),
        )

    def of_slow_start(
        self, waited_s: float, pids: Mapping[int, int], world_size: int
    ) -> SessionFailed:
        """Not all of ``world_size`` ranks train after ``waited_s``. ``pids``: rank -> process of
        those that do.
        """
        if pids:
            return self.hang(
                pids, f"{len(pids)} of {world_size} ranks started training within {waited_s:.0f} s"
            )
        markers = classify.markers_of(self._paths)
        if "step" in markers:
            return self.hang(
                pids,
                "the job started training but did not finish its first iterations within"
                f" {waited_s:.0f} s",
            )
        hang_stacks.save_stacks(self._paths, self._mark, pids)
        happened = f"{waited_s:.0f} s have passed since the start"
        found = unhooked.explain(self._argv, self._paths, happened)
        if "backward" in markers:
            found = replace(found, detail=f"{found.detail}\n{ACCUMULATES}")
        return self.found(found)

    def hang(self, pids: Mapping[int, int], what: str) -> SessionFailed:
        """The job makes no progress; ``what`` describes it. Saves the stacks of all processes."""
        stacks = hang_stacks.save_stacks(self._paths, self._mark, pids)
        busy = hang_stacks.busy(stacks)
        lines = stacks[(busy or [*stacks])[0]] if stacks else []
        if len(stacks) > 1 and len(busy) == 1:
            what += f"; the other processes seem to be waiting for {busy[0]}"
        # faulthandler dumps have the most recent call first
        where = classify.user_line(reversed(lines), self._workdir)
        return self.failure(
            "hang",
            f"{what}; its thread stacks are in {self._paths.root}/stacks-*.txt",
            log_tail=hang_stacks.stacks_in_words(stacks, classify.TAIL_LINES)
            or classify.log_tail(self._paths),
            where=where,
        )

    def found(self, found: classify.Diagnosis) -> SessionFailed:
        return self.failure(found.kind, found.detail, log_tail=found.log_tail, where=found.where)
