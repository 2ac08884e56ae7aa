"""One run of the user's command: start it, talk to its agent, watch it, end its process tree.

    start()        directory, session.json, socket, supervisor → command
    wait_hello()   every training process connects            live, fixed, profile
    run_plan()     a list of blocks, one report each          live
    wait_record()  the record of the whole window             fixed, profile
    go_on()        run to the end of the next slice           fixed, interleaved with another session
    halt()         stop all its processes until go_on()
    end_job()      end the training, let a profiler around it finish
    close()        end the whole process tree

Every failure is a :class:`SessionFailed` of one kind, with the last lines of the logs:

    unhooked   no optimizer step was ever seen, with the cause          ended   the job finished by itself
    hang       no message for too long (silence.py); stacks saved       oom     out of device or host memory
    agent      our own code failed in the job                           killed  SIGKILL, neither by us nor by the OOM killer
    crash      any other exit

One thread, one selector; nothing here runs while the tuner is busy elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune_spaces.codec import encode
from autotune_spaces.facts import JobFacts
from autotune_trials.diagnosis import classify
from autotune_trials.diagnosis.failure_report import Postmortem
from autotune_trials.file_restore.ledger import Ledger, RestoreOptions, path_scope
from autotune_trials.file_restore.log import none_inside
from autotune_trials.file_restore.restore import Outcome, put_back
from autotune_trials.paths import SessionPaths, publish
from autotune_trials.protocol.failures import SessionFailed
from autotune_trials.protocol.messages import (
    Block,
    BlockReport,
    Extent,
    Hello,
    Pace,
    Plan,
    PlanDone,
    Record,
    SessionConfig,
    SessionMode,
)
from autotune_trials.protocol.rank_merge import merge_hellos, merge_records, merge_reports
from autotune_trials.session import ranks
from autotune_trials.session.agent_connection import Connection
from autotune_trials.session.inbox import Inbox
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.silence import SlowestGap, Work
from autotune_trials.session.uninterrupted import uninterrupted
from autotune_trials.session.waiting import LAST_WORDS_S, Timeouts, Waiting
from autotune_trials.supervisor import process_tags, procfs
from autotune_trials.supervisor.client import SupervisedCommand
from autotune_trials.supervisor.masking import Masks

SUPERVISOR_S = 60.0  # for the supervisor to start, however busy the machine
LAUNCHER_S = 30.0  # after all ranks have trained and were killed: for the command to exit
MOST_EXTENTS = 4  # most extensions of one recorded window


class Session:
    """See the module. A context manager: leaving it ends the process tree.

    Args:
        config: ``directory`` and ``socket`` are filled in here.
        restore: None: files the job writes stay.
        pace: the job's own pace, known from earlier sessions.
        unchanged: the job runs at its own settings until a block or ``config`` sets others.

    A session that spans several machines (autotune/executors/cluster/multinode/spread.py) builds on
    ``inbox`` (connections and messages of its ranks), ``postmortem`` (why it failed) and
    ``waiting.check_elsewhere``.
    """

    def __init__(
        self,
        command: Command,
        paths: SessionPaths,
        config: SessionConfig,
        *,
        timeouts: Timeouts = Timeouts(),
        restore: RestoreOptions | None = None,
        pace: SlowestGap | None = None,
        unchanged: bool = False,
    ) -> None:
        self.paths = SessionPaths(Path(os.path.abspath(paths.root)))
        self.mark = process_tags.new_mark()
        command = command.in_session(self.paths, self.mark)
        self.workdir, self.config, self._timeouts = command.workdir, config, timeouts
        self._masks = Masks(command.secrets)
        scope = None
        if restore is not None:
            restore = replace(restore, own=[self.paths.root, *restore.own])
            scope = path_scope(command.workdir, command.env, restore)
        self.ledger = Ledger(self.paths.written, scope)
        # result of restoring files, once the session has ended
        self.outcome: Outcome | None = None
        self.inbox = Inbox(self._masks)
        self.postmortem = Postmortem(command, self.paths, self.mark, self._masks)
        self._plans = 0
        self._halted: set[int] = set()
        # marker -> when it was first seen, by a monotonic clock
        self._seen_s: dict[str, float] = {}
        self.command = SupervisedCommand(
            command,
            self.paths,
            self.mark,
            grace_s=timeouts.grace_s,
            selector=self.inbox.selector,
            on_exit=self.inbox.drain,
        )
        self.waiting = Waiting(
            self.command,
            self.inbox,
            self.postmortem,
            Work(self._tree),
            timeouts,
            pace or SlowestGap(),
            unchanged and not config.knobs,
        )
        self._ranks = self.waiting.ranks

    # ---------------------------------------------------------------------------------------- start

    def start(self) -> None:
        """Create the session directory and start the command.

        Raises:
            SessionFailed: crash, the command cannot be started.
            OSError: the session directory cannot be written.
        """
        try:
            for folder in (self.paths.root, self.paths.markers, self.paths.out):
                folder.mkdir(parents=True, exist_ok=True)
            self.ledger.create()
            self.inbox.listen(self.mark)
            self.config = replace(
                self.config, directory=str(self.paths.root), socket=self.inbox.address
            )
            publish(self.paths.config, json.dumps(encode(self.config)))
            self._started_s = time.monotonic()
            self.postmortem.begin()
            self.command.start(self.inbox.folder)
            while not (self.command.pid or self.command.error or self.command.lost):
                self.inbox.handle_events(1.0)
                if time.monotonic() - self._started_s > SUPERVISOR_S:
                    raise self.postmortem.failure(
                        "crash",
                        "the supervisor process of this session did not start within"
                        f" {SUPERVISOR_S:.0f} s",
                    )
            if self.command.error:
                raise self.postmortem.failure(
                    "crash", f"the command cannot be started: {self.command.error}"
                )
            if self.command.lost:
                raise self.postmortem.failure("crash", self.command.lost)
        except BaseException:  # Ctrl-C too: the caller has no session yet that it could close
            self.close()
            raise

    # ------------------------------------------------------------------------ messages of the agent

    @property
    def hello(self) -> Hello:
        """Hello of the lowest connected rank, with samples and memory merged over all ranks (see
        :mod:`.rank_merge`).
        """
        return merge_hellos(self._hellos())

    def _hellos(self) -> dict[int, Hello]:
        return {rank: c.hello for rank, c in self._ranks.items() if c.hello is not None}

    def _jobs(self) -> dict[int, JobFacts]:
        """rank -> what it told of the job."""
        return {rank: hello.job for rank, hello in self._hellos().items()}

    def wait_hello(self) -> Hello:
        """Wait until every rank trains; return their merged Hello.

        Raises:
            SessionFailed
        """
        deadline = self._started_s + self._timeouts.startup_timeout_s
        # messages of fast ranks while slow ones are still starting
        early: list[tuple[Connection, Any]] = []
        while not self._ranks or len(self._ranks) < self.hello.job.world_size:
            arrived = self.waiting.next(1.0, "its first iterations were done")
            if arrived is None:
                if time.monotonic() > deadline + self._further_s() or self._never_steps():
                    ranks_in_all = self.hello.job.world_size if self._ranks else 0
                    raise self.postmortem.of_slow_start(
                        time.monotonic() - self._started_s, self.waiting.pids(), ranks_in_all
                    )
                continue
            rank, message = arrived
            if isinstance(message, Hello):
                self._welcome(rank, message)
                # the other ranks should follow soon
                deadline = max(deadline, time.monotonic() + self._timeouts.hang_timeout_s)
            else:
                early.append(arrived)
        self.inbox.messages.extendleft(reversed(early))
        return self.hello

    def _further_s(self) -> float:
        """How much longer a job that has stepped may take to say hello: until its warm-up has ended,
        with iterations no longer than the first, and in a live session its first epoch."""
        seen = self._markers_seen_s()
        if "step" not in seen:
            return 0.0
        first_s = seen["step"] - seen.get("backward", self._started_s)
        return self.config.first_epoch_s + self.config.warmup_steps * first_s

    def _never_steps(self) -> bool:
        """Whether backward() had been called many times long ago, and still no optimizer has
        stepped: stop waiting. The first iteration alone may compile for as long as a start-up."""
        seen = self._markers_seen_s()
        if "backwards" not in seen or "step" in seen:
            return False
        patience_s = max(2 * self._timeouts.hang_timeout_s, seen["backwards"] - self._started_s)
        return time.monotonic() - seen["backwards"] > patience_s

    def _markers_seen_s(self) -> dict[str, float]:
        # not the markers' mtime: the system clock may be changed meanwhile
        for marker in classify.markers_of(self.paths):
            self._seen_s.setdefault(marker, time.monotonic())
        return self._seen_s

    def _welcome(self, rank: Connection, hello: Hello) -> None:
        known = self._ranks.get(hello.rank)
        if known is not None and not known.dead:
            # a second training process: its agent switches itself off
            self.inbox.forget(rank)
            return
        rank.hello = hello
        self._ranks[hello.rank] = rank

    def run_plan(self, blocks: Sequence[Block]) -> list[BlockReport]:
        """Have all ranks run ``blocks``; return one report per block, merged over ranks (see
        :mod:`.rank_merge`).

        Raises:
            SessionFailed: with the finished blocks' reports in ``partial``.
        """
        self._plans += 1
        self.waiting.in_block = None
        reports: dict[str, dict[int, BlockReport]] = {block.id: {} for block in blocks}
        working = set(self._ranks)
        if any(block.knobs or block.cached_batches for block in blocks):
            self.waiting.unchanged = False
        try:
            for rank in self._ranks.values():
                self.inbox.send(rank, Plan(self._plans, tuple(blocks)))
            while working:
                allowed_s = max(
                    (b.max_seconds for b in blocks if len(reports[b.id]) < len(self._ranks)),
                    default=0.0,
                )
                slow_start = any(b.slow_start and not reports[b.id] for b in blocks)
                message = self.waiting.message(
                    allowed_s,
                    "the measurement was done",
                    stray=self._stray(reports),
                    slow_start=slow_start,
                )
                if isinstance(message, BlockReport) and message.id in reports:
                    reports[message.id][message.rank] = message
                elif isinstance(message, PlanDone) and message.id == self._plans:
                    working.discard(message.rank)
        except SessionFailed as failure:
            complete = [b for b in blocks if len(reports[b.id]) == len(self._ranks)]
            failure.in_block = self.waiting.in_block
            failure.partial = tuple(self._merged(b, reports[b.id]) for b in complete)
            raise
        return [self._merged(block, reports[block.id]) for block in blocks]

    def _stray(self, reports: Mapping[str, Mapping[int, BlockReport]]) -> BlockReport | None:
        """The report of a rank that gave up a block others still run: they may deadlock."""
        split = (
            of_block.values()
            for of_block in reports.values()
            if 0 < len(of_block) < len(self._ranks)
        )
        return next((report for of_block in split for report in of_block if report.error), None)

    def _merged(self, block: Block, reports: Mapping[int, BlockReport]) -> BlockReport:
        missing = sorted(set(self._ranks) - set(reports))
        if missing:
            return BlockReport(
                block.id, min(self._ranks), None, error=f"agent: no report from rank {missing[0]}"
            )
        return merge_reports(reports, self._jobs())

    def wait_record(self, more: Callable[[Record], int] | None = None) -> Record:
        """Wait for the records of all ranks and merge them (see :mod:`.rank_merge`).

        While the job waits, ``more`` is called for the total number of iterations the window should
        have; 0: it is long enough. This repeats at most :data:`MOST_EXTENTS` times, since a longer
        window may reveal a longer warm-up.

        Raises:
            SessionFailed
        """
        record = self._record_of_all()
        for _ in range(MOST_EXTENTS):
            steps = 0 if more is None or record.ended_early else more(record)
            if steps <= len(record.window.times_s):
                break
            for rank in self._ranks.values():
                self.inbox.send(rank, Extent(steps))
            record = self._record_of_all()
        return record

    def go_on(self, steps: int, slice_end: int) -> None:
        """Continue after :meth:`halt` until ``slice_end`` of the window's ``steps`` iterations are
        recorded.
        """
        procfs.send(self._halted, signal.SIGCONT)
        for rank in self._ranks.values():
            self.inbox.send(rank, Extent(steps, slice_end))

    def wait_slice(self) -> Pace | None:
        """Wait for the end of a slice. None: the window ended, :meth:`wait_record` has its record.

        Raises:
            SessionFailed
        """
        message = self.waiting.message(
            self.config.max_seconds,
            "its turn in the measurement was over",
            bounded=self.config.max_seconds > 0,
        )
        if isinstance(message, Pace):
            return message
        self.inbox.messages.appendleft((next(iter(self._ranks.values())), message))
        return None

    def halt(self) -> None:
        """Stop (SIGSTOP) all running processes of the job until :meth:`go_on`.

        The agent itself has stopped its workers, and will continue them when the clock runs again.
        """
        self._halted.clear()
        with none_inside(str(self.paths.written)):
            # until none is new: one may have forked before it was stopped
            while further := procfs.running(self._tree()) - self._halted:
                procfs.stop(further)
                self._halted |= further

    def _tree(self) -> set[int]:
        return self.command.descendants() | process_tags.marked(self.mark)

    def _record_of_all(self) -> Record:
        records: dict[int, Record] = {}
        self.waiting.handed_in.clear()
        so_far: dict[int, Record] = {}
        paces: dict[int, Pace] = {}
        while not self._ranks or len(records) < len(self._ranks):
            try:
                message = self.waiting.message(
                    self.config.max_seconds,
                    "the measurement window was full",
                    bounded=self.config.max_seconds > 0,
                )
            except SessionFailed as failure:
                records = {**so_far, **records}
                if failure.kind != "ended" or not records or len(records) < len(self._ranks):
                    raise
                self.waiting.check_exit(LAUNCHER_S)
                break
            if isinstance(message, Record) and message.so_far:
                so_far[message.rank] = message
            elif isinstance(message, Record):
                records[message.rank] = message
                self.waiting.handed_in.add(message.rank)
            elif isinstance(message, Pace):
                paces[message.rank] = message
                if len(paces) == len(self._ranks):
                    extent = ranks.common_extent(list(paces.values()), self.config)
                    paces.clear()
                    for rank in self._ranks.values():
                        self.inbox.send(rank, extent)
        merged = merge_records(records, self._jobs())
        # (torch's profiler may crash a process that ends while it runs)
        if merged.ended_early and self.config.mode != SessionMode.PROFILE:
            self.waiting.check_exit(LAST_WORDS_S)
        return merged

    def end_job(self, patience_s: float) -> None:
        """End the training processes and wait at most ``patience_s`` for the command to exit, so
        that a profiler around it can write its report.

        Training processes that ignore TERM are killed.
        """
        pids = {
            pid for pid in self.waiting.pids().values() if process_tags.mark_of(pid) == self.mark
        }
        procfs.send(pids, signal.SIGTERM)
        began = time.monotonic()
        killed = False
        while (
            self.command.exit_status is None
            and not self.command.lost
            and time.monotonic() < began + patience_s
        ):
            self.inbox.handle_events(0.2)
            if not killed and time.monotonic() > began + 5 * self._timeouts.grace_s:
                killed = True
                procfs.send(
                    {pid for pid in pids if process_tags.mark_of(pid) == self.mark}, signal.SIGKILL
                )

    # -------------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """End every process of the session, and wait until they are gone. Idempotent."""
        if self.closed:
            return
        self.waiting.closed, gone = True, False
        try:
            self.command.ask_to_stop()
            self.inbox.hang_up()  # frees a job that handles TERM itself from the agent's wait
            self.command.wait_until_gone(self.inbox.handle_events)
            gone = True
        finally:
            self.command.close()
            self.inbox.close()
            # if the wait was interrupted, the supervisor or the next run restores the files
            if gone and self.paths.written.exists():
                uninterrupted(self._put_back)
            self._masks.file(self.paths.agent_log)
            # every process opens one, few are ever written to
            for dump in self.paths.root.glob("stacks-*.txt"):
                if not dump.stat().st_size:
                    dump.unlink()

    def _put_back(self) -> None:
        self.outcome = put_back(str(self.paths.root), running=self.command.left)

    @property
    def closed(self) -> bool:
        return self.waiting.closed

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
