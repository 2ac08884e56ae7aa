"""Fixed and profile runs: the knobs hold from the start, every iteration from the first is recorded.

    first iteration ─── steps (and min_seconds) ── [profile_steps under torch.profiler ── a few with Python frames ── watched] ── Record ── wait for the end
          └ gradient and update norms of the first probe_steps                            an Extent: the window goes on ─┘
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap.log import write_exception
from autotune_trials.agent.controls.entry_modules import compile_notes
from autotune_trials.agent.core.modes import Mode, hello
from autotune_trials.agent.facts.applied_settings import in_force
from autotune_trials.agent.facts.job_facts import fingerprint, rank, startup_s, world_size
from autotune_trials.agent.loop.loss import to_number
from autotune_trials.measure.nvtx import ModuleRanges, ProfilerRanges, Several
from autotune_trials.measure.window import WindowRecorder
from autotune_trials.protocol.evidence import Evidence
from autotune_trials.protocol.messages import Extent, Pace, Record

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.agent.core.iteration import Iteration

PACE_STEPS = 24  # iterations after which several ranks are asked how fast they go; the later half is past most warm-ups


class RecordMode(Mode):
    """Records one window and ends."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._window: WindowRecorder | None = None
        self._began = 0.0
        self._alone = True
        self._steps = agent.config.steps  # several ranks: as agreed; more, if the tuner asks for more
        self._agreed = False
        self._greeted = False
        self._fingerprint: dict[str, Any] = {}
        self._failures: list[str] = []
        self._crashed = False
        self._sent = False
        self._profiler: Any = None
        self._profiled = 0
        self._module_ranges: list[ModuleRanges] = []
        self._trace = ""
        self._watch: Any = None
        self._watched = False
        self._evidence: Evidence | None = None
        self._notes: dict[str, Any] = {}
        self._in_force: dict[str, Any] = {}

    def start(self) -> None:
        atexit.register(self._at_exit)

    def start_over(self) -> None:
        if self._window is not None:
            self._window.restart()

    def on_evaluation(self) -> None:
        if self._greeted and not self._sent:
            self.show_life()

    def on_crash(self) -> None:
        self._crashed = True

    def on_iteration(self, iteration: Iteration) -> None:
        agent, config = self.agent, self.agent.config
        if self._window is None:
            with agent.own_time():
                self._begin()
        if agent.knobs.failure:
            self._failures.append(agent.knobs.failure)
            agent.knobs.failure = ""
        if self._greeted:
            self.show_life()
        if self._watch is not None:
            self._go_on_watching(iteration)
            return
        if self._profiler is not None:
            self._go_on_profiling()
            return
        assert self._window is not None
        self._window.add(iteration)
        agent.loss.end_step(keep=config.record_loss)
        if not self._greeted and agent.iterations >= config.warmup_steps:
            with agent.own_time():
                self._greet()
        if self._full():
            with agent.own_time():
                self._end_of_window()

    # ------------------------------------------------------------------ the window

    def _begin(self) -> None:
        """The first iteration has ended: the window, opened late, covers it too."""
        self.startup_s = startup_s()
        self._began = perf_counter()
        self._alone = world_size(self.agent.torch) == 1
        self._window = WindowRecorder(self.agent, keep_interrupted=True)
        self._window.open()

    def _greet(self) -> None:
        self._greeted = True
        message = hello(self.agent)
        self._fingerprint = dict(message.fingerprint)
        self._in_force = in_force(self.agent)
        self.agent.channel.send(message)

    def _full(self) -> bool:
        """Ranks must end at the same step, so several of them look at no clock of their own: see :meth:`_agree`."""
        assert self._window is not None
        config, count, seconds = self.agent.config, len(self._window), perf_counter() - self._began
        if not self._alone:
            if not self._agreed and count >= PACE_STEPS:
                with self.agent.own_time():
                    self._agree(count)
            return count >= self._steps
        if count >= config.max_steps or (config.max_seconds and seconds >= config.max_seconds):
            return True
        return count >= self._steps and seconds >= config.min_seconds

    def _agree(self, count: int) -> None:
        """Tell the tuner this rank's pace and wait for the step at which all ranks end."""
        assert self._window is not None
        self._agreed, config = True, self.agent.config
        if not (config.min_seconds or config.max_seconds) or self.agent.channel.closed:
            return
        last = [i.wall_s for i in self._window.iterations()[-PACE_STEPS // 2 :]]
        self.agent.channel.send(Pace(rank(self.agent.torch), count, median(last)))
        extent = self.agent.channel.receive()
        self.stood_still()
        if isinstance(extent, Extent):
            self._steps = extent.steps

    def _end_of_window(self) -> None:
        assert self._window is not None
        self._result = self._window.close()
        self._in_force = in_force(self.agent)  # by now a loader that had to be found first is switched, too
        if self.agent.config.mode == "profile":
            self._start_profiling()
        else:
            self._finish()

    def _finish(self) -> None:
        """Send the record, then keep the job where it is until the tuner ends it, or asks for more iterations. A profile run is watched
        before that."""
        if self.agent.config.mode == "profile" and not self._watched and self.agent.config.watch_steps:
            self._start_watching()
            return
        self._send(ended_early=False)
        further = self.agent.channel.receive()  # None: the tuner has closed the socket
        if isinstance(further, Extent):
            self._steps, self._sent = further.steps, False
            self.stood_still()
        else:
            self.agent.stop()

    # ------------------------------------------------------------------ the watched window

    def _start_watching(self) -> None:
        from autotune_trials.agent.observers import Watch  # only here: what is timed pays nothing for it

        self._watched = True
        try:
            with self.agent.own_time():
                self._profiler = None  # thousands of events: the collector would walk them, and the job pay for it
                gc.collect()
                self._watch = Watch(self.agent)
                self._watch.begin()
        except Exception:
            self._notes["watch"] = write_exception("watch").strip().splitlines()[-1]
            self._watch = None
            self._finish()

    def _go_on_watching(self, iteration: Iteration) -> None:
        self.agent.loss.end_step(keep=False)
        if self._watch.end_iteration(iteration):
            with self.agent.own_time():
                self._end_watching()
                self._finish()

    def _end_watching(self) -> None:
        if self._watch is not None:
            self._evidence, self._watch = self._watch.finish(), None

    # ------------------------------------------------------------------ the profile

    def _start_profiling(self) -> None:
        from autotune_trials.measure.capture import CaptureWindow
        from autotune_trials.measure.profiler import ProfileWindow
        from autotune_trials.paths import SessionPaths

        agent, config = self.agent, self.agent.config
        path = SessionPaths(_path(config.directory)).trace(rank(agent.torch))
        try:
            self._profiler = CaptureWindow(agent.torch, agent.live.cuda) if config.capture else ProfileWindow(agent.torch, str(path), config.stacks)
            self._profiler.start()
            if not config.capture:
                agent.clock.ranges = Several(agent.clock.ranges, ProfilerRanges(agent.torch))
            self._draw_modules()
        except Exception:
            self._give_up_profile()

    def _draw_modules(self) -> None:
        """Ranges for the modules below what the job calls, for the length of the profiled window."""
        agent, depth = self.agent, self.agent.config.nvtx_modules
        if not depth or agent.clock.ranges is None:
            return
        if agent.own_compile or any(entry.compiled for entry in agent.live.entries):
            self._notes["nvtx_modules"] = "the model is compiled: inside it there are no modules to draw"
            return
        roots = [entry.module for entry in agent.live.entries if entry.alive]
        self._module_ranges = [ModuleRanges(agent.clock.ranges, root, depth) for root in roots]
        if not any(ranges.names for ranges in self._module_ranges):
            self._notes["nvtx_modules"] = "no module with children was seen called in training"

    def _close_ranges(self) -> None:
        """What was drawn for the profile ends with it."""
        for drawn in self._module_ranges:
            drawn.remove()
        self._module_ranges = []
        if self.agent.clock.ranges is not None:
            self.agent.clock.ranges.close()
            self.agent.clock.ranges = None

    def _go_on_profiling(self) -> None:
        agent = self.agent
        agent.loss.end_step(keep=False)
        try:
            self._profiler.step()
            self._profiled += 1
            if self._profiled < agent.config.profile_steps:
                return
            with agent.own_time():
                self._close_ranges()
                self._trace = self._profiler.stop()
        except Exception:
            self._give_up_profile()
            return
        self._finish()

    def _give_up_profile(self) -> None:
        """A record without a trace is still a record."""
        self._notes["profile"] = write_exception("profile").strip().splitlines()[-1]
        self._close_ranges()
        self._finish()

    # ------------------------------------------------------------------ the record

    def _send(self, ended_early: bool) -> None:
        agent, config = self.agent, self.agent.config
        self._sent = True
        gradient_norms, update_norms = agent.probe.norms()
        iterations = self._window.iterations() if self._window is not None else []
        notes = {**self._notes, **compile_notes(agent.live.entries), "in_force": self._in_force}
        if agent.live.lr_factor != 1.0:
            notes["lr_factor"] = agent.live.lr_factor
        if agent.live.scale_used is not None:
            notes["loss_scale"] = agent.live.scale_used
        if agent.probe.failure:
            notes["probe"] = agent.probe.failure
        if self._failures:
            notes["knob_failures"] = self._failures
        flush_output()
        agent.channel.send(
            Record(
                rank=rank(agent.torch),
                window=self._result,
                losses=tuple(agent.loss.values()) if config.record_loss else (),
                samples_before=tuple(self._window.samples_before) if self._window is not None else (),
                gradient_norms=gradient_norms,
                update_norms=update_norms,
                gradient_sketch=agent.sketch.values(),
                skipped=tuple(i.index for i in iterations if i.skipped),
                fingerprint=self._fingerprint,
                metrics={k: tuple(to_number(agent.torch, v) for _, v in told) for k, told in agent.metrics.items()},
                metrics_at={k: tuple(at for at, _ in told) for k, told in agent.metrics.items()},
                no_effect=self._no_effect(),
                seeds_seen=agent.seeds_seen,
                ended_early=ended_early,
                trace=self._trace,
                evidence=self._evidence,
                notes=notes,
            )
        )

    def _no_effect(self) -> dict[str, str]:
        """Knobs that did nothing, those that failed among them."""
        found = {}
        for choice in self.agent.config.knobs:
            failed = next((f for f in self._failures if f.startswith(f"{choice.name}:")), None)
            try:
                reason = failed or self.agent.knobs.get(choice.name, choice.options).effect(self.agent.live, choice.value)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            if reason:
                found[choice.name] = reason
        return {**found, **self._no_effect_at_start()}

    def _no_effect_at_start(self) -> dict[str, str]:
        """The same of what was set before this process started. Nothing is known of a knob that cannot be asked."""
        found = {}
        for choice in self.agent.config.process_knobs:
            try:
                reason = self.agent.knobs.get(choice.name, choice.options).effect(self.agent.live, choice.value)
            except Exception:
                write_exception(f"effect of {choice.name}")
                continue
            if reason:
                found[choice.name] = reason
        return found

    def _at_exit(self) -> None:
        """The job ends by itself before the window is full."""
        agent = self.agent
        if self._sent or self._crashed or agent.stopped or self._window is None or agent.pid != os.getpid():
            return
        try:
            if not self._greeted:
                self._greet()
            if not hasattr(self, "_result"):
                self._result = self._window.close()
            self._end_watching()
            if not self._fingerprint:
                self._fingerprint = fingerprint(agent)
            self._send(ended_early=True)
        except Exception:
            agent.fail("atexit")


def flush_output() -> None:
    """What the job has printed so far reaches its log: the tuner reads metrics from there once it has the record."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, replaced or None
            pass


def _path(directory: str) -> Any:
    from pathlib import Path

    return Path(directory)
