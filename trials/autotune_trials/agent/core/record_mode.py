"""Fixed and profile runs: knobs are held and all iterations recorded from the start.

WARMUP ── Hello ─▶ RECORDING ── the window is full ─▶ DONE: Record, then wait for the end
                       │  └─ profile runs ─▶ PROFILING ─▶ WATCHING ─┘  │
                       └──────────── an Extent: it goes on ────────────┘

In an interleaved comparison (``slice_steps``) the job also waits at the end of each slice: it sends
Pace and receives an Extent with the end of the next slice.
"""

from __future__ import annotations

import atexit
import enum
import gc
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_spaces.base import Undone
from autotune_trials.agent.bootstrap.log import reason
from autotune_trials.agent.controls.autocast import AutocastControl
from autotune_trials.agent.controls.compiled_forward import compile_notes
from autotune_trials.agent.controls.lr_factor import LrFactor
from autotune_trials.agent.core.mode import Mode, hello
from autotune_trials.agent.core.pausing import children_stopped
from autotune_trials.agent.core.thread_end import ThreadEnd
from autotune_trials.agent.core.window_recorder import WindowRecorder
from autotune_trials.agent.facts.job_facts import fingerprint, in_force, startup_s
from autotune_trials.agent.facts.ranks import rank, world_size
from autotune_trials.protocol.evidence import Evidence
from autotune_trials.protocol.messages import Extent, Pace, Record, SessionMode, Window

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.core.profiling import Profiling
    from autotune_trials.agent.observers.watch import Watch

# iterations after which each of several ranks first reports its pace; the later half is past most
# warm-ups
PACE_STEPS = 24
WORTH_SENDING = 1.1  # growth of a record since the last thread's end that is worth sending again


class Stage(enum.Enum):
    """The stage of a recorded run."""

    WARMUP = "recorded, and the tuner has not been told of the job yet"
    RECORDING = "recorded"
    PROFILING = "under torch.profiler"
    WATCHING = "watched by observers"
    DONE = "the record is sent"


class RecordMode(Mode):
    """Records one window and ends."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self.stage = Stage.WARMUP
        # what the current stage does with an iteration
        self._take: Callable[[Iteration], None] = self._record
        self._profiles = agent.config.mode == SessionMode.PROFILE
        self._window: WindowRecorder | None = None  # from the end of the first iteration on
        self._began = 0.0
        self._alone = True
        self._thread_end = ThreadEnd(self._at_thread_end)
        self._sent_iterations = 0  # in the last record sent at a thread's end
        self._steps = agent.config.steps  # several ranks: as agreed; raised if the tuner wants more
        # iterations after which the job waits for the tuner; 0: it does not
        self._slice_end = agent.config.slice_steps
        self._crashed = False
        self._failures: list[str] = []
        self._profiling: Profiling | None = None
        self._watch: Watch | None = None
        # contents of the record
        self._result: Window | None = None
        self._fingerprint: dict[str, Any] = {}
        self._trace = ""
        self._evidence: Evidence | None = None
        self._notes: dict[str, Any] = {}
        self._in_force: dict[str, Any] = {}

    def start(self) -> None:
        atexit.register(self._at_exit)
        self.agent.patches.on_restore(lambda: atexit.unregister(self._at_exit))

    def started_over(self) -> None:
        if self._window is not None:
            self._window.restart()

    def evaluated(self, entry: Entry, args: tuple[Any, ...]) -> None:
        if self.stage not in (Stage.WARMUP, Stage.DONE):
            self.report_progress()

    def on_crash(self) -> None:
        self._crashed = True

    def iteration_ended(self, iteration: Iteration) -> None:
        if self._window is None:
            with self.agent.timer.own_time():
                self._begin()
        self._thread_end.register()
        if self.agent.knobs.failures:
            self._failures += self.agent.knobs.take_failures()
        if self.stage is not Stage.WARMUP:
            self.report_progress()
        self._take(iteration)

    # ------------------------------------------------------------------ the window

    def _begin(self) -> None:
        """Open the window at the end of the first iteration, which it also covers."""
        agent = self.agent
        self.startup_s = startup_s()
        self._began = perf_counter()
        self._alone = world_size(agent.torch) == 1
        if not self._alone and (agent.config.min_seconds or agent.config.max_seconds):
            self._slice_end = PACE_STEPS
        self._window = self.open_window(keep_interrupted=True)
        self.register_end_of_child()

    def _record(self, iteration: Iteration) -> None:
        agent, config, window = self.agent, self.agent.config, self._window
        assert window is not None
        window.add(iteration)
        agent.loss.end_step()
        if self.stage is Stage.WARMUP and agent.state.iterations >= config.warmup_steps:
            with agent.timer.own_time():
                self._send_hello()
        count = len(window.iterations)
        if self._full(window, count):
            with agent.timer.own_time():
                self._end_of_window(window)
        elif self._slice_end and count >= self._slice_end:
            with agent.timer.own_time():
                self._end_of_slice(window)

    def _send_hello(self) -> None:
        self.stage = Stage.RECORDING
        message = hello(self.agent)
        self._fingerprint = dict(message.fingerprint)
        self._in_force = in_force(self.agent)
        self.agent.channel.send(message)

    def _full(self, window: WindowRecorder, count: int) -> bool:
        """Whether the window is full. Several ranks must end at the same step, so they do not look
        at their own clocks: the tuner tells them where, at the end of each slice."""
        config = self.agent.config
        if not self._alone:
            return count >= self._steps
        seconds = perf_counter() - self._began
        if count >= config.max_steps or (config.max_seconds and seconds >= config.max_seconds):
            return True
        return count >= self._steps and seconds >= config.min_seconds

    def _tell_pace(self, window: WindowRecorder) -> None:
        last = [i.time_s for i in window.iterations[-PACE_STEPS // 2 :]]
        away_s = fmean(i.away_s for i in window.iterations)
        self.agent.channel.send(Pace(rank(self.agent.torch), len(window), median(last), away_s))

    def _end_of_slice(self, window: WindowRecorder) -> None:
        """Wait while the process it is compared with trains, or until all ranks have reported.
        Only a short message is sent: a whole record would change the job's heap."""
        self.agent.timer.finish()
        with self._workers_stopped():
            goes_on = self._goes_on(window, lambda: self._tell_pace(window))
        if not goes_on:
            self.agent.stop()

    def _workers_stopped(self) -> AbstractContextManager[None]:
        """While this lasts, DataLoader workers make no batches that no iteration is charged for.
        (Of several ranks, one may be the parent of the others, which have to answer, too.)"""
        return children_stopped() if self._alone else nullcontext()

    def _goes_on(self, window: WindowRecorder, say: Callable[[], None]) -> bool:
        """Call ``say`` and wait for the tuner's answer: whether to go on recording. The window's
        clock stops before ``say``: once the tuner has the message, it may stop this process."""
        window.stand_still()
        waits_s = perf_counter()
        say()
        extent = self.agent.channel.receive()  # None: the tuner has closed the socket
        if not isinstance(extent, Extent):
            return False
        self._began += perf_counter() - waits_s
        self._steps, self._slice_end = extent.steps, extent.slice_end
        self.stood_still()
        window.go_on()
        return True

    def _end_of_window(self, window: WindowRecorder) -> None:
        if self.stage is Stage.WARMUP:  # iterations so slow that time is up first
            self._send_hello()
        with self._workers_stopped():
            self._result = window.close()
            # by now a loader that had to be found first has been switched too
            self._in_force = in_force(self.agent)
        if self._profiles:
            self._start_profiling()
        else:
            self._finish()

    def _finish(self) -> None:
        """Send the record, then hold the job until the tuner ends it or asks for more
        iterations."""
        assert self._window is not None
        with self._workers_stopped():
            goes_on = self._goes_on(
                self._window, lambda: self._send_final_record(ended_early=False)
            )
        if goes_on:
            self.stage, self._take = Stage.RECORDING, self._record
            self._result = None  # closed again, with more iterations, if the job ends early
        else:
            self.agent.stop()

    # ------------------------------------------------------------------ the profile

    def _start_profiling(self) -> None:
        # imported only here, so that timed iterations do not pay for it
        from autotune_trials.agent.core.profiling import Profiling

        self.stage, self._take = Stage.PROFILING, self._go_on_profiling
        try:
            self._profiling = Profiling(self.agent)
            self._profiling.start()
            if self._profiling.note:
                self._notes["nvtx_modules"] = self._profiling.note
        except Exception:  # torch's profiler may fail: the record counts without a trace
            self._give_up_profile()

    def _go_on_profiling(self, iteration: Iteration) -> None:
        self.agent.loss.drop_current()
        assert self._profiling is not None
        try:
            if not self._profiling.step():
                return
            with self.agent.timer.own_time():
                self._trace = self._profiling.stop()
        except Exception:  # torch's profiler may fail: the record counts without a trace
            self._give_up_profile()
            return
        self._after_profile()

    def _give_up_profile(self) -> None:
        """Go on without a trace; the record still counts."""
        self._notes["profile"] = reason("profile")
        if self._profiling is not None:
            self._profiling.close_ranges()
        self._after_profile()

    def _after_profile(self) -> None:
        # it holds thousands of events, which would slow down the job's garbage collections
        self._profiling = None
        if self.agent.config.watch_steps:
            self._start_watching()
        else:
            self._finish()

    # ------------------------------------------------------------------ the watched window

    def _start_watching(self) -> None:
        self.stage, self._take = Stage.WATCHING, self._go_on_watching
        try:
            # imported only here, so that timed iterations do not pay for it
            from autotune_trials.agent.observers.watch import Watch

            with self.agent.timer.own_time():
                gc.collect()
                self._watch = Watch(self.agent)
                self._watch.begin()
        except Exception:  # of any kind: the record counts without what is watched
            self._notes["watch"] = reason("watch")
            self._watch = None
            self._finish()

    def _go_on_watching(self, iteration: Iteration) -> None:
        self.agent.loss.drop_current()
        assert self._watch is not None
        if self._watch.end_iteration(iteration):
            with self.agent.timer.own_time():
                self._end_watching()
                self._finish()

    def _end_watching(self) -> None:
        if self._watch is not None:
            self._evidence, self._watch = self._watch.finish(), None

    # ------------------------------------------------------------------ the record

    def _send_final_record(self, ended_early: bool) -> None:
        assert self._result is not None
        self.stage = Stage.DONE
        self._send_record(self._result, ended_early)

    def _send_record(self, window: Window, ended_early: bool, so_far: bool = False) -> None:
        agent, recorded = self.agent, self._window
        assert recorded is not None
        gradient_norms, update_norms = agent.probe.norms.norms()
        notes = {**self._notes, **compile_notes(agent.live.entries), "in_force": self._in_force}
        if (factor := agent.live.get(LrFactor).factor) != 1.0:
            notes["lr_factor"] = factor
        if (scale := agent.live.get(AutocastControl).scale_used) is not None:
            notes["loss_scale"] = scale
        if agent.probe.failure:
            notes["probe"] = agent.probe.failure
        if self._failures:
            notes["knob_failures"] = self._failures
        no_effect = agent.knobs.no_effect(self._failures)
        flush_output()
        agent.channel.send(
            Record(
                rank=rank(agent.torch),
                window=window,
                losses=tuple(agent.loss.values()),
                samples_before=tuple(recorded.samples_before),
                gradient_norms=gradient_norms,
                update_norms=update_norms,
                gradient_sketch=agent.probe.sketch.values(),
                skipped=tuple(i.index for i in recorded.iterations if i.skipped),
                fingerprint=self._fingerprint,
                metrics={
                    name: tuple(float(value) for _, value in reported)
                    for name, reported in agent.metrics.reported.items()
                },
                metrics_at={
                    name: tuple(at for at, _ in reported)
                    for name, reported in agent.metrics.reported.items()
                },
                no_effect=no_effect,
                idle=tuple(k for k, why in no_effect.items() if not isinstance(why, Undone)),
                ended_early=ended_early,
                so_far=so_far,
                trace=self._trace,
                evidence=self._evidence,
                notes=notes,
            )
        )

    def _ended(self) -> bool:
        return self.stage is Stage.DONE or self._crashed or self.agent.state.stopped

    def _at_exit(self) -> None:
        """The job ends by itself before the window is full: send what was recorded."""
        agent = self.agent
        if self._ended() or self._window is None or agent.pid != os.getpid():
            return
        try:
            agent.loop.go_on()  # may end an iteration, and with it the window
            if self._ended():
                return
            if self.stage is Stage.WARMUP:
                self._send_hello()
            if self._result is None:
                self._result = self._window.close()
            self._end_watching()
            if not self._fingerprint:
                self._fingerprint = fingerprint(agent)
            self._send_final_record(ended_early=True)
        except Exception:  # the job must end as it would by itself; the tuner is told
            agent.fail("atexit")

    def at_end_of_child(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            self._crashed = self._crashed or error.code not in (None, 0)
        super().at_end_of_child()
        self._at_exit()

    def _at_thread_end(self) -> None:
        """The training thread has ended. The process may now be killed (Ray Train kills its workers
        then) or go on training in another thread: the record so far counts if no other follows.
        """
        agent, window = self.agent, self._window
        begun = self.stage is not Stage.WARMUP and window is not None
        if not begun or self._ended() or agent.pid != os.getpid():
            return
        assert window is not None
        # with many threads, only a few send a record
        if len(window) < WORTH_SENDING * self._sent_iterations:
            return
        began_s = perf_counter()
        try:
            agent.loop.go_on()  # may end an iteration, and with it the window
            if not self._ended():
                self._send_record(self._result or window.close(), ended_early=True, so_far=True)
                self._sent_iterations = len(window)
                agent.timer.clock.leave_out(perf_counter() - began_s)
        except Exception:  # the thread must end as it would by itself; the tuner is told
            agent.fail("thread end")


def flush_output() -> None:
    """Flush what the job has printed to its log: the tuner reads metrics from there once it has the
    record."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, replaced or None
            pass
