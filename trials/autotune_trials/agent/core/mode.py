"""What the agent does with the iterations it sees. Each session has one mode, which never changes:

live      LiveMode (live_mode.py)      switches knobs between blocks of iterations
fixed     RecordMode (record_mode.py)  holds knobs from the start and records one window
profile   RecordMode, with torch.profiler
launch    LaunchMode (launch_mode.py)  holds knobs and records nothing
"""

from __future__ import annotations

import contextlib
import multiprocessing.util
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from autotune_spaces.machine import probe
from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.bootstrap.stack_dump import install_stack_dump
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.core.window_recorder import WindowRecorder
from autotune_trials.agent.facts.job_facts import fingerprint, job_facts
from autotune_trials.agent.facts.ranks import rank
from autotune_trials.measure.energy import EnergyMeter
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import PROGRESS_S, Hello, Progress

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent

# a gap this many times the slowest one the tuner knows, and this many seconds, is reported at once
SLOWER, WORTH_TELLING_S = 2.0, 0.1


class Mode(Listener):
    """Base class of the modes; receives each event after all other listeners."""

    measures = True  # False: settings are only held, and nothing is measured

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.startup_s = 0.0  # from the start of the process to the end of the first iteration
        self._reported_s = 0.0  # when the last Progress was sent
        # time of the last sign of life; 0.0: none since the job was paused for the tuner
        self._alive_s = 0.0
        self._slowest_s = self._reported_slowest_s = 0.0

    def start(self) -> None:
        """The patches are in place; the job has not begun."""

    def on_out_of_memory(self, text: str) -> None:
        """The job ran out of memory; the exception keeps propagating."""

    def on_crash(self) -> None:
        """The job is dying of an exception."""

    def open_window(self, keep_interrupted: bool) -> WindowRecorder:
        """A window that begins now."""
        agent = self.agent
        window = WindowRecorder(
            agent.torch,
            agent.live.cuda,
            agent.loaders.training_source,
            agent.timer.finish,
            keep_interrupted=keep_interrupted,
            energy=EnergyMeter(agent.live.cuda, rank(agent.torch)) if agent.config.energy else None,
        )
        window.open()
        return window

    def register_end_of_child(self) -> None:
        """Call once the work has begun: before, multiprocessing still clears its finalizers."""
        if multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, self.at_end_of_child, exitpriority=0)

    def at_end_of_child(self) -> None:
        """A child of multiprocessing ends, perhaps by an error: neither sys.excepthook nor, if it was
        forked, atexit is called there.
        """
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):  # torch.multiprocessing.spawn catches it, exits with 1
            error = error.__context__ if error.code not in (None, 0) else None
        if error is not None:
            self.agent.errors.on_uncaught(error)

    def report_progress(self) -> None:
        """Tell the tuner from time to time that the job is alive, so that a slow job is not taken
        for hung."""
        now = perf_counter()
        if not self._alive_s:  # first call after Hello or a Plan
            self._alive_s = now
            return
        gap_s, self._alive_s = now - self._alive_s, now
        due = now - self._reported_s >= PROGRESS_S
        if gap_s > self._slowest_s:
            self._slowest_s = gap_s
            due = due or gap_s > max(SLOWER * self._reported_slowest_s, WORTH_TELLING_S)
        if due:
            self._reported_s, self._reported_slowest_s = now, self._slowest_s
            self.agent.channel.send(
                Progress(rank(self.agent.torch), self.agent.state.iterations, self._slowest_s)
            )

    def stood_still(self, slowest_too: bool = False) -> None:
        """The job has waited for the tuner, which does not count as a gap. ``slowest_too``: also
        forget the slowest gap, because another configuration begins."""
        self._alive_s = 0.0
        if slowest_too:
            self._slowest_s = self._reported_slowest_s = 0.0


def hello(agent: Agent) -> Hello:
    """The first message of this process."""
    # for hang reports: a forked process has neither the marker nor the stack dump yet
    log.leave_marker("python")
    with contextlib.suppress(OSError):  # the directory cannot be written
        install_stack_dump(SessionPaths(Path(agent.config.directory)))
    job = job_facts(agent)
    return Hello(
        job.pid,
        rank(agent.torch),
        probe(agent.live.cuda, start_cuda=False),
        job,
        agent.mode.startup_s,
        fingerprint(agent),
    )
