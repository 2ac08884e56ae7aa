"""The agent of one process: its parts, its channel to the tuner, and how it steps aside.

    patches ─▶ TrainingLoop ─▶ Events ─▶ FirstTimes · IterationMeter · SiteRecorder · LossSelection
                                         · TrainingLoaderChoice · Probe · controls … · Mode

The parts are put together here, and each owns its state. A failure stops the agent, not the job:
:meth:`Agent.fail`.
"""

from __future__ import annotations

import os
from typing import Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.bootstrap.channel import Channel
from autotune_trials.agent.controls.live_job import LiveJobControl
from autotune_trials.agent.core.events import Events, Listener
from autotune_trials.agent.core.first_times import FirstTimes
from autotune_trials.agent.core.installing import install, install_loader
from autotune_trials.agent.core.job_errors import JobErrors
from autotune_trials.agent.core.knob_applier import Knobs
from autotune_trials.agent.core.launch_mode import LaunchMode
from autotune_trials.agent.core.live_mode import LiveMode
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.core.mode import Mode
from autotune_trials.agent.core.record_mode import RecordMode
from autotune_trials.agent.core.training_loop import TrainingLoop
from autotune_trials.agent.dataloader.hooks import LoaderHooks
from autotune_trials.agent.facts.call_sites import SiteRecorder
from autotune_trials.agent.facts.gradient_probe import Probe
from autotune_trials.agent.facts.job_traits import JobTraits
from autotune_trials.agent.facts.ranks import rank
from autotune_trials.agent.loop.batch_accounting import Consumption
from autotune_trials.agent.loop.iteration_meter import IterationMeter
from autotune_trials.agent.loop.loss_meter import LossMeter
from autotune_trials.agent.loop.loss_selection import LossSelection
from autotune_trials.agent.loop.metrics import Metrics
from autotune_trials.agent.loop.module_discovery import ModuleDiscovery
from autotune_trials.agent.loop.own_updates import OwnUpdates
from autotune_trials.agent.loop.sample_count import SampleCount
from autotune_trials.agent.loop.timer import Timer
from autotune_trials.agent.loop.transfers import Transfers
from autotune_trials.agent.patches.patch_set import PatchSet
from autotune_trials.protocol.messages import Fault, SessionConfig, SessionMode

MODES: dict[SessionMode, type[Mode]] = {
    SessionMode.LIVE: LiveMode,
    SessionMode.FIXED: RecordMode,
    SessionMode.PROFILE: RecordMode,
    SessionMode.LAUNCH: LaunchMode,
}


class Agent:
    """One per process. Modes, facts and observers read its parts."""

    loaders: LoaderHooks  # set by install()

    def __init__(self, torch: Any, config: SessionConfig) -> None:
        """Raises ValueError for an unknown mode."""
        self.torch, self.config = torch, config
        self.pid = os.getpid()
        self._failing = False
        self.patches, self.channel = PatchSet(), Channel(config.socket)
        measures = SessionMode(config.mode) is not SessionMode.LAUNCH
        # shared by several parts
        self.state, self.events = LoopState(), Events()
        self.traits = JobTraits()
        self.timer = Timer(torch, self.state, self.events, measures)
        self.consumption, self.samples = Consumption(), SampleCount()
        # the loop, the job's parts, the knobs
        self.loop = TrainingLoop(self.events, self.state, self.fail, self.step_aside)
        self.live = LiveJobControl(torch, config, self.loop, self.patches, self.timer)
        self.knobs = Knobs(self.live, config)
        self.errors = JobErrors(self)
        self.loop.fail_knob, self.loop.on_error = self.knobs.fail, self.errors.on_job_error
        # the listeners
        self.first_times = FirstTimes(self.live, self.knobs)
        self.own_updates = OwnUpdates(self.live, self.loop.on_own_update, self._without_iterations)
        self.sites = SiteRecorder(torch, self.events, wanted=config.mode == SessionMode.LIVE)
        self.modules = ModuleDiscovery(self.live, self.knobs, self.traits)
        self.meter = IterationMeter(self.state, self.timer, self.consumption, self.samples)
        self.loss = LossMeter(torch)
        self.losses = LossSelection(self.live, self.loss, self.consumption, self.traits)
        self.probe = Probe(self.live, config.probe_steps if config.mode == SessionMode.FIXED else 0)
        self.metrics = Metrics(torch, self.samples)
        self.mode = MODES[SessionMode(config.mode)](self)

    # ------------------------------------------------------------------ starting and stopping

    def install(self) -> None:
        """Install hooks and listeners in the job. A failure leaves the job untouched."""
        try:
            self.loaders = install_loader(self)
            self._listen()
            install(self)
        except Exception:  # whatever it is, the job goes on without us
            self.fail("install")

    def _listen(self) -> None:
        """Register the listeners, in the order in which they receive each event."""
        listeners: list[Listener] = [self.first_times, self.live, self.own_updates]
        if self.mode.measures:
            listeners += [self.timer, self.meter]
        if self.sites.open:
            listeners += [self.sites]
        if self.mode.measures:
            listeners += [self.losses, self.metrics]
        listeners += [Transfers(self.live, self.sites), self.loaders.choice]
        if self.probe.wanted:
            listeners += [self.probe]
        self.events.listen(*listeners, self.modules, self.mode)

    def after_fork(self) -> None:
        """In a forked child: leave the parent's session if it has begun. If not, a child that
        trains starts its own."""
        self.pid = os.getpid()
        if self.channel.connected or self.state.iterations:
            self.state.stopped = True
            self.events.close()
            self.channel.close()

    def stop(self) -> None:
        """Undo every patch and setting; the job goes on alone."""
        self.state.stopped = True
        try:
            self.timer.close_ranges()
            self.live.restore()
        finally:
            self.events.close()
            self.patches.restore_all()

    def fail(self, where: str) -> None:
        """Report the exception being handled as the agent's own and step aside. Never raises."""
        self.step_aside(where, log.write_exception(where))

    def _without_iterations(self, why: str) -> None:
        """Step aside if the mode measures: the ends of iterations cannot be determined."""
        if self.mode.measures:
            self.step_aside("no optimizer", why, unhooked=True)

    def step_aside(self, where: str, text: str, unhooked: bool = False) -> None:
        """Stop the agent and tell the tuner why. ``unhooked``: nothing has failed, but the agent
        can no longer see the job. Never raises."""
        if self._failing:
            return
        self._failing = True
        try:
            self.stop()
        except Exception:  # undone as far as possible; the log has the failure
            log.write_exception(f"{where}, stepping aside")
        if not self.mode.measures:
            last = (text.strip().splitlines() or [""])[-1]
            log.tell(f"the job continues without its tuned settings ({where}: {last})")
        try:
            self.channel.send(Fault(rank(self.torch), where, text, unhooked))
        except Exception:  # the tuner is gone: there is nobody to report to
            log.write_exception(f"{where}, reporting")
