"""The agent: listens to the job's training loop and drives the session's mode from it.

    job      next(loader) ── batch ── model(x) ── loss.backward() ── optimizer.step() ──┐ (next iteration)
    events   on_batch_start  on_batch  on_entry_call  before/after_backward  before/after_step
    phases   │ data │ forward ........................│ backward │ other     │ optimizer │
                                                                                        └▶ end_iteration ─▶ mode

An iteration ends with the step of the *lead* optimizer (see lead_optimizer.py: GANs step several). Once the job calls ``autotune.step()``,
iterations end there and nowhere else.

Whatever goes wrong in here ends the agent and not the job: :meth:`Agent.fail`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.bootstrap.channel import Channel
from autotune_trials.agent.bootstrap.last_words import LastWords
from autotune_trials.agent.controls.entry_modules import Entry
from autotune_trials.agent.controls.live_job import LiveJobControl
from autotune_trials.agent.core.installing import install
from autotune_trials.agent.core.iteration import Iteration
from autotune_trials.agent.core.job_errors import JobErrors
from autotune_trials.agent.core.knob_applier import Knobs
from autotune_trials.agent.core.live_mode import LiveMode
from autotune_trials.agent.core.modes import Mode
from autotune_trials.agent.core.record_mode import RecordMode
from autotune_trials.agent.dataloader.facts import construction_spot
from autotune_trials.agent.facts.call_sites import SiteRecorder
from autotune_trials.agent.facts.gradient_probe import GradientSketch, NormProbe
from autotune_trials.agent.facts.job_facts import rank
from autotune_trials.agent.loop.batch_accounting import Consumption
from autotune_trials.agent.loop.batch_events import BatchEvents
from autotune_trials.agent.loop.closures import Evaluations
from autotune_trials.agent.loop.interruptions import Interruptions
from autotune_trials.agent.loop.lead_optimizer import Lead
from autotune_trials.agent.loop.loss import LossMeter
from autotune_trials.agent.loop.loss_events import LossEvents
from autotune_trials.agent.loop.module_events import ModuleEvents
from autotune_trials.agent.loop.sample_count import SampleCount
from autotune_trials.agent.patches import PatchSet
from autotune_trials.measure.clock import AWAY, BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, PhaseClock, StillClock
from autotune_trials.protocol.messages import Fault, SessionConfig

MODES: dict[str, type[Mode]] = {"live": LiveMode, "fixed": RecordMode, "profile": RecordMode, "launch": Mode}
CAPTURED = (
    "the job captures its training step in a CUDA graph of its own, where it can be neither seen nor changed; "
    "tune it without: compile_mode reduce-overhead makes such graphs"
)


class Agent:
    """One a process. Its attributes are what :mod:`facts` and the modes read."""

    def __init__(self, torch: Any, config: SessionConfig) -> None:
        self.torch, self.config = torch, config
        self.pid = os.getpid()
        self.stopped = False
        self.measures = config.mode != "launch"  # else settings are held, and nobody asks how the job does
        self.patches = PatchSet()
        self.channel = Channel(config.socket)
        self.last_words = LastWords(self)
        self.live = LiveJobControl(torch, self, config.loss_scale)
        self.clock: PhaseClock = PhaseClock() if self.measures else StillClock()
        self.loss = LossMeter(torch)
        self.probe = NormProbe(torch, config.probe_steps if config.mode == "fixed" else 0)
        self.sketch = GradientSketch(torch, wanted=self.probe.left > 0)
        self.loader_hooks: Any = None
        self.sites = SiteRecorder(torch, wanted=config.mode == "live")
        self.knobs = Knobs(self)
        # who else listens
        self.batches, self.modules, self.losses, self.errors = BatchEvents(self), ModuleEvents(self), LossEvents(self), JobErrors(self)
        # what the job was seen doing
        self.iterations = 0
        self.backwards = 0
        self.backwards_at_first = 0  # when the first iteration ended
        self.samples = SampleCount()
        self.manual = False
        self.own_autocast = ""
        self.own_scaler = False
        self.own_compile = False
        self.double_backward = False
        self.compares_samples = ""  # see agent.objective
        self.own_settings: dict[str, str] = {}
        self.loss_modules: set[str] = set()
        self.seeds_seen = config.seed is not None
        self.metrics: dict[str, list[tuple[float, Any]]] = {}  # (samples consumed before, value)
        # state of the running iteration
        self.inside_entry = False
        self.consumption = Consumption()
        self.training_called = False
        self.in_backward = False
        self.interruptions = Interruptions(self)
        self._captured = False  # backward or a step, in a CUDA graph of the job's
        self.in_step = False  # torch is calling the optimizer hooks, or the step between them
        self._lead = Lead()
        self._evaluations = Evaluations()
        self._begun = False
        self._failing = False
        self.compiles: Any = None  # a CompileLog, in profile runs once something is compiled
        self.mode = mode_for(config.mode)(self)

    # ------------------------------------------------------------------ coming and going

    def install(self) -> None:
        """Take hold of the job. A failure leaves it untouched."""
        try:
            install(self)
        except Exception:
            self.fail("install")

    def after_fork(self) -> None:
        """In a forked child: the parent's session is not ours. A child that trains itself starts its own."""
        self.pid = os.getpid()
        if self.channel.connected or self.iterations:
            self.stopped = True
            self.channel.close()

    def stop(self) -> None:
        """Step aside: every patch and setting is taken back, the job goes on alone."""
        self.stopped = True
        ranges, self.clock.ranges = self.clock.ranges, None
        try:
            if ranges is not None:
                ranges.close()
            self.live.restore()
        finally:
            self.patches.restore_all()

    def fail(self, where: str) -> None:
        """The exception being handled is ours: say so and step aside. Never raises."""
        self.step_aside(where, log.write_exception(where))

    def step_aside(self, where: str, text: str, unhooked: bool = False) -> None:
        """Be gone, and tell the tuner why. ``unhooked``: the job has left our sight, and nothing has failed. Never raises."""
        if self._failing:
            return
        self._failing = True
        try:
            self.stop()
        except Exception:
            log.write_exception(f"{where}, stepping aside")
        try:
            self.channel.send(Fault(rank(self.torch), where, text, unhooked))
        except Exception:
            log.write_exception(f"{where}, reporting")

    # ------------------------------------------------------------------ the job's own CUDA graphs

    @property
    def capturing(self) -> bool:
        """The job is capturing a CUDA graph: until it is done nothing may be timed, waited for or copied."""
        cuda = self.torch.cuda
        return self.measures and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())

    def after_capture(self) -> None:
        """The job has captured a CUDA graph. Its replay calls no hook: if it holds backward or a step, iterations are out of sight."""
        if self._captured and not self.stopped:
            self.step_aside("a CUDA graph of the job's", CAPTURED, unhooked=True)

    # ------------------------------------------------------------------ the model is called

    def begin(self) -> None:
        """Training begins: imports and the building of the model are no part of the first iteration."""
        if not self._begun:
            self._begun = True
            self.clock.resume()
            self._begin_range()

    def on_entry_call(self, entry: Entry, args: tuple[Any, ...]) -> Any | None:
        """Training calls ``entry`` with ``args``. Returns a context the call must run in, or None."""
        if self.capturing:
            return None
        try:
            self.begin()
            self.interruptions.end_look()
            if self.clock.phase == AWAY and self.consumption.untouched:
                self.clock.relabel(DATA)  # it was no evaluation that this batch was fetched for
            if self.clock.phase in (OTHER, DATA, OPTIMIZER, AWAY):
                self.clock.switch(FORWARD)
            self.training_called = True
            self.consumption.train()
            autocast = self.live.autocast
            if self.in_backward:
                return self._computed_again(entry, args)
            if not self.iterations and self.modules.seen_gradless and not autocast.entered:
                return None  # perhaps the second half of something, whose first half was computed without it: from the next iteration on
            return autocast.enter(self.live.device) or autocast.fade(self.live.device, args)
        except Exception:
            self.fail("on_entry_call")
            return None

    def _computed_again(self, entry: Entry, args: tuple[Any, ...]) -> Any | None:
        """Backward calls ``entry``: a checkpoint, which has to compute as it did going forward, and sets autocast as it was around that."""
        autocast, known = self.live.autocast, entry.checkpointed
        entry.checkpointed = entry.called_gradless
        device = self.live.device
        return (autocast.enter(device) if known else None) or autocast.carry_on(device, args) or autocast.fade(device, args)

    def on_gradless_call(self, entry: Entry, args: tuple[Any, ...]) -> Any | None:
        """``entry`` is called in evaluation or without gradients. Returns a context the call must run in, or None."""
        if self.capturing:
            return None
        try:
            self.consumption.evaluate()
            autocast, entry.called_gradless = self.live.autocast, entry.module.training
            carried = autocast.carry_on(self.live.device, args)
            if carried is None:
                autocast.leave()
            self.interruptions.note_gradless_call()
            self.mode.on_evaluation()
            part = self.losses.cached.seen or (entry.checkpointed and entry.called_gradless)
            if carried is None and part and self.iterations:  # what comes back goes into the loss: both halves must be computed alike
                return autocast.enter(self.live.device, keep_weights=False)
            return carried
        except Exception:
            self.fail("on_gradless_call")
        return None

    # ------------------------------------------------------------------ backward

    def before_backward(self, tensors: Any, gradients: Any, create_graph: bool) -> tuple[Any, Any]:
        """Returns the arguments backward is to be called with: the loss is scaled under float16."""
        if self.stopped:
            return tensors, gradients
        if self.capturing:
            self._captured = True
            return tensors, gradients
        try:
            if not self.backwards:
                self._begin_backward(tensors)
            self.in_backward = True
            self.interruptions.end_look()
            self.consumption.train()
            if not self.iterations and self.backwards and not self.in_step and self.losses.gradients_were_dropped():
                self.loss.drop_current()  # a search for the batch size, say, that ran before training
                self.consumption.drop_others(self.loader_hooks.last)
            if create_graph:
                self.double_backward = True
            if self.iterations == 1 and self.config.mode == "live":
                self.losses.look_for_comparison(tensors)
            if self.iterations == self.live.attention.look_at and self.measures:
                self.live.attention.look(tensors)
            if self.sites.open:
                self.sites.on_backward(sys._getframe(1))
            clock, live = self.clock, self.live
            if clock.phase == OTHER and not self.training_called and not self.consumption.batches:
                clock.relabel(FORWARD)  # a job without loader and modules: all before backward is its forward
            clock.switch(BACKWARD)
            if live.autocast.inside:
                live.autocast.leave()
            if not self._evaluations.repeated:
                self.losses.on_backward(tensors, gradients)
            scaler = live.scaler
            if scaler is not None:
                scaler.before_backward(live.every_optimizer())
                return scaler.scaled(tensors, gradients)
        except Exception:
            self.fail("before_backward")
        return tensors, gradients

    def _begin_backward(self, tensors: Any) -> None:
        """Of the job's first backward: by now its device is known."""
        log.crumb("backward")
        device = getattr(tensors[0] if isinstance(tensors, (list, tuple)) else tensors, "device", None)
        if device is not None:
            self.modules.learn_device(device)
        self.knobs.hold(final=False)
        self.begin()

    def after_backward(self) -> None:
        self.in_backward = False
        if self.stopped or self.capturing:
            return
        try:
            if self.live.scaler is not None:
                self.live.scaler.after_backward(self.live.every_optimizer())
            self.clock.switch(OPTIMIZER if self.in_step else OTHER)
            self.backwards += 1
            self.losses.cached.after_backward()
            if self.loader_hooks is not None:
                self.loader_hooks.credit_backward(doubtful=self.consumption.evaluated)
            if self.probe.left:
                self.probe.after_backward(self.live.parameters())
            if self.sketch.wanted and not (self.in_step and self.sketch.taken):  # of a closure's gradients, the first
                self.sketch.take(self.live.parameters())
        except Exception:
            self.fail("after_backward")

    # ------------------------------------------------------------------ optimizer

    def on_optimizer(self, built: Any, frame: Any) -> None:
        """An optimizer has been built, called from ``frame``."""
        if not self.stopped:
            self.live.control(built).spot = construction_spot(built, frame)
            self.sites.on_optimizer(built, frame)

    def before_step(self, stepping: Any, args: Any, kwargs: Any) -> Any:
        """Returns changed (args, kwargs), or None."""
        if self.stopped:
            return None
        if self.capturing:
            self._captured = True
            return None
        self.in_step = True
        try:
            live = self.live
            if live.autocast.inside:
                live.autocast.leave()
            if live.note_stepping(stepping):
                self.knobs.hold(final=True)
            if self.sites.open:
                self.sites.on_step(sys._getframe(1))
            if live.lr_factor != 1.0:
                live.control(stepping).scale_lr(live.lr_factor)
            self.clock.switch(OPTIMIZER)
            if self.probe.left:
                self.probe.before_step(stepping)
            if live.scaler is not None:
                self._withhold_overflow(stepping)
                return self._evaluations.watch(args, kwargs, lambda: self._withhold_overflow(stepping))
            return self._evaluations.watch(args, kwargs)
        except Exception:
            self.fail("before_step")
        return None

    def _withhold_overflow(self, stepping: Any) -> None:
        """Leave out a step whose gradients overflowed. With a closure, backward runs inside the step: look again after it."""
        if self.live.scaler is not None:
            self.live.scaler.before_step(stepping)

    def after_step(self, stepping: Any, args: Any, kwargs: Any) -> None:
        if self.stopped or self.capturing:
            return
        try:
            live = self.live
            if live.scaler is not None:
                live.scaler.after_step(stepping)
            if live.lr_factor != 1.0:
                live.control(stepping).restore_lr()
            if self.probe.left:
                self.probe.after_step()
            self._evaluations.end()
            if not self.manual and self._lead.ends_iteration(stepping):
                if self._lead.same_turn and self.iterations == 1:
                    self._start_over()
                    self.consumption.go_on_with_first()
                self.end_iteration()
            else:
                self.clock.switch(OTHER)
        except Exception:
            self.fail("after_step")
        finally:
            self.in_step = False

    # ------------------------------------------------------------------ iterations

    def on_manual_step(self, loss: Any, samples: float | None) -> None:
        """``autotune.step()`` in the job's loop."""
        if self.stopped or self.capturing:
            return
        try:
            if not self.manual:
                self.manual = True
                self.knobs.hold(final=True)
                self._start_over()
                self.consumption.start_over()
            if loss is not None and self.measures:
                self.loss.replace(loss)
            self.live.autocast.leave()
            self.end_iteration(samples)
        except Exception:
            self.fail("autotune.step")

    def _start_over(self) -> None:
        """All so far is part of the first iteration: the job marks iterations itself, or the turn of its optimizers is longer than it seemed."""
        self.loss.merge_into_current()
        self.iterations = 0
        self.samples.start_over()
        self.mode.start_over()

    def on_metric(self, name: str, value: Any) -> None:
        """``autotune.metric()`` in the job."""
        if not self.stopped and self.measures and len(self.metrics.setdefault(str(name), [])) < 100_000:
            if isinstance(value, self.torch.Tensor):
                value = value.detach().clone()
            self.metrics[str(name)].append((self.samples.total, value))

    def end_iteration(self, samples: float | None = None) -> None:
        """The running iteration ends now."""
        if not self.iterations:
            log.crumb("step")
        iteration = self._measured(samples) if self.measures else Iteration(self.iterations, 0.0, [])
        if self.live.scaler is not None:
            iteration.skipped = self.live.scaler.update()
        self.iterations += 1
        if self.iterations == 1:
            self.backwards_at_first = self.backwards
        self.training_called = False
        self.losses.end_iteration()
        if self.probe.left:
            self.probe.end_step()
        if self.sketch.wanted:
            self.sketch.end_step(iteration.skipped)
        self.modules.end_iteration()
        self.mode.on_iteration(iteration)
        self._begin_range()

    def _measured(self, samples: float | None) -> Iteration:
        """What the running iteration took, and trained on."""
        self.interruptions.end_look()
        wall, spent = self.clock.cut()
        iteration = Iteration(self.iterations, sum(wall[:AWAY]), spent)
        iteration.used = self.clock.used
        trained = self.consumption.take(self.batches.is_other, self.interruptions.other_loader_counts)
        self.samples.add(iteration, trained, samples)
        if trained.in_turn:
            self.interruptions.note_turn()
        iteration.interrupted = self.interruptions.end_iteration()
        return iteration

    def _begin_range(self) -> None:
        """In a profiler's timeline the next iteration begins here: what the agent does between two belongs to none."""
        if self.clock.ranges is not None and not self.stopped:
            self.clock.ranges.begin_iteration()

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """What runs inside is the agent's, and no part of any iteration."""
        try:
            yield
        finally:
            self.clock.resume()


def mode_for(name: str) -> type[Mode]:
    """The class for SessionConfig.mode; ValueError for what is none."""
    if name not in MODES:
        raise ValueError(f"mode is {name!r}, expected one of {', '.join(MODES)}")
    return MODES[name]
