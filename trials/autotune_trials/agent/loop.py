"""The agent: listens to the job's training loop and drives the session's mode from it.

    job      next(loader) ── batch ── model(x) ── loss.backward() ── optimizer.step() ──┐ (next iteration)
    events   on_batch_start  on_batch  on_entry_call  before/after_backward  before/after_step
    phases   │ data │ forward ........................│ backward │ other     │ optimizer │
                                                                                        └▶ end_iteration ─▶ mode

An iteration ends with the step of the *lead* optimizer (see lead.py: GANs step several). Once the job calls ``autotune.step()``,
iterations end there and nowhere else.

Whatever goes wrong in here ends the agent and not the job: :meth:`Agent.fail`.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autotune_trials import marking
from autotune_trials.agent import log
from autotune_trials.agent.blocks import LiveMode
from autotune_trials.agent.cached_gradients import CachedGradients, Value
from autotune_trials.agent.channel import Channel
from autotune_trials.agent.closures import Evaluations
from autotune_trials.agent.consumption import Consumption
from autotune_trials.agent.entries import is_out_of_memory
from autotune_trials.agent.facts import loss_module, rank
from autotune_trials.agent.holding import Knobs
from autotune_trials.agent.interruptions import Interruptions
from autotune_trials.agent.last_words import LastWords
from autotune_trials.agent.lead import Lead
from autotune_trials.agent.live import LiveJobControl
from autotune_trials.agent.loader_facts import construction_spot
from autotune_trials.agent.loss import LossMeter
from autotune_trials.agent.modes import Mode
from autotune_trials.agent.objective import comparison
from autotune_trials.agent.patches import (
    PatchSet,
    backward,
    clipping,
    compiling,
    modules,
    optimizer,
    parallel,
    seeds,
    settings,
    transfer,
)
from autotune_trials.agent.probe import GradientSketch, NormProbe
from autotune_trials.agent.recording import RecordMode
from autotune_trials.agent.sites import SiteRecorder
from autotune_trials.measure.clock import (
    AWAY,
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    TO_DEVICE,
    DeviceClock,
    PhaseClock,
)
from autotune_trials.measure.nvtx import nvtx_ranges
from autotune_trials.protocol import Fault, SessionConfig


class Iteration:
    """One iteration as it was seen."""

    __slots__ = ("index", "wall_s", "spent", "samples", "wait_s", "turnovers", "interrupted", "skipped")

    def __init__(self, index: int, wall_s: float, spent: list[float]) -> None:
        self.index = index
        self.wall_s = wall_s  # as seen by the CPU, without what was AWAY
        self.spent = spent  # seconds a phase; on CUDA final only after clock.finish()
        self.samples = 0.0
        self.wait_s = 0.0
        self.turnovers: list[float] = []
        self.interrupted = False
        self.skipped = False


class Agent:
    """One a process. Its attributes are what :mod:`facts` and the modes read."""

    def __init__(self, torch: Any, config: SessionConfig) -> None:
        self.torch, self.config = torch, config
        self.pid = os.getpid()
        self.stopped = False
        self.patches = PatchSet()
        self.channel = Channel(config.socket)
        self.last_words = LastWords(self)
        self.live = LiveJobControl(torch, self, config.loss_scale)
        self.clock: PhaseClock = PhaseClock()
        self.loss = LossMeter(torch)
        self.probe = NormProbe(torch, config.probe_steps if config.mode == "fixed" else 0)
        self.sketch = GradientSketch(torch, wanted=self.probe.left > 0)
        self.loader_hooks: Any = None
        self.sites = SiteRecorder(torch, wanted=config.mode == "live")
        self.knobs = Knobs(self)
        # what the job was seen doing
        self.iterations = 0
        self.backwards = 0
        self._backwards_at_first = 0  # when the first iteration ended
        self.samples_total = 0.0
        self.samples_counted = False
        self.manual = False
        self.own_autocast = ""
        self.own_scaler = False
        self._scaled: tuple[Any, Any] = (lambda: None, None)  # what the job's own scaler made last, and of what
        self.own_compile = False
        self.double_backward = False
        self.own_gradients = False  # torch.autograd.grad was called
        self.compares_samples = ""  # see agent.objective
        self.own_settings: dict[str, str] = {}
        self.loss_modules: set[str] = set()
        self.seeds_seen = config.seed is not None
        self.metrics: dict[str, list[tuple[float, Any]]] = {}  # (samples consumed before, value)
        # state of the running iteration
        self.inside_entry = False
        self.consumption = Consumption()
        self._first_iteration: Iteration | None = None
        self.training_called = False
        self.in_backward = False
        self._interruptions = Interruptions(self)
        self._skipped = False
        self.in_step = False  # torch is calling the optimizer hooks, or the step between them
        self._lead = Lead()
        self._evaluations = Evaluations()
        self._cached_gradients = CachedGradients(torch, self)
        self._watching_modules = False
        self._called_gradless: weakref.WeakSet[Any] = weakref.WeakSet()  # top-level modules, while they are watched
        self._held_at_batch = False
        self._begun = False
        self._pass_begun: tuple[Any, int] = (None, 0)
        self._failing = False
        self.compiles: Any = None  # a CompileLog, in profile runs once something is compiled
        self.mode = mode_for(config.mode)(self)

    # ------------------------------------------------------------------ coming and going

    def install(self) -> None:
        """Put all patches in place. A failure leaves the job untouched."""
        try:
            from autotune_trials.agent import stacks
            from autotune_trials.paths import SessionPaths

            if self.config.mode != "launch":
                stacks.install_stack_dump(SessionPaths(_path(self.config.directory)))
            if self.config.seed is not None:
                seeds.install(self.patches, self.torch, self, self.config.seed)
            backward.install(self.patches, self.torch, self)
            optimizer.install(self.patches, self.torch, self)
            clipping.install(self.patches, self.torch, self)
            compiling.install(self.patches, self.torch, self)
            settings.install(self.patches, self.torch, self)
            parallel.install(self.patches, self.torch, self)
            self._watch_modules(True)
            self._install_loader()
            self._install_hooks()
            if self.config.nvtx and self.config.mode != "launch":
                self.clock.ranges = nvtx_ranges()
            self.mode.start()
            self.last_words.tell_restart()
            self.knobs.hold(final=False)
        except Exception:
            self.fail("install")

    def _install_loader(self) -> None:
        from autotune_trials.agent import loader

        data = sys.modules["torch.utils.data.dataloader"]  # imported by torch itself since 1.x
        self.loader_hooks = loader.install(data, self, self.config)
        self.patches.on_restore(self.loader_hooks.uninstall)

    def _install_hooks(self) -> None:
        marking.receiver = self
        self.patches.on_restore(lambda: setattr(marking, "receiver", None))
        previous = sys.excepthook

        def excepthook(kind: Any, error: Any, trace: Any) -> None:
            self.on_uncaught(error)
            previous(kind, error, trace)

        sys.excepthook = excepthook
        os.register_at_fork(after_in_child=self._after_fork)

    def _watch_modules(self, on: bool) -> None:
        if on:
            modules.install(self.patches, self.torch, self)
        else:
            modules.restore(self.patches)
        self._watching_modules = on

    def _after_fork(self) -> None:
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
        text = log.write_exception(where)
        if self._failing:
            return
        self._failing = True
        try:
            self.stop()
        except Exception:
            log.write_exception(f"{where}, stepping aside")
        try:
            self.channel.send(Fault(rank(self.torch), where, text))
        except Exception:
            log.write_exception(f"{where}, reporting")

    # ------------------------------------------------------------------ the data side (called by the loader part)

    def on_loader(self, built: Any, frame: Any) -> None:
        """A DataLoader has been built, called from ``frame``."""
        self.sites.on_loader(built, frame)

    def on_batch_start(self, loader: Any) -> None:
        if self.stopped:
            return
        if not self._held_at_batch:
            self._held_at_batch = True
            log.crumb("loader")
            self.knobs.hold(final=False)
            self._begin()
        if not self.backwards:
            self._begin_with(loader)
        if self.live.autocast.inside:
            self.live.autocast.leave()
        self._end_of_batch()
        other = self._is_other(loader)
        if other:
            self._interruptions.note_other_loader()
        elif self.live.autocast.ending:
            self.live.autocast.end()
        self.clock.switch(AWAY if other and not self._interruptions.other_loader_counts else DATA)
        self._interruptions.note_batch()

    def _end_of_batch(self) -> None:
        """The job is done with the latest batch. If it was only evaluated, it is no part of the iteration."""
        if self.consumption.evaluating:
            self.consumption.settle(left_out=self._interruptions.leave_out_batch())
        else:
            self._interruptions.end_look()

    def _begin(self) -> None:
        """Training begins: imports and the building of the model are no part of the first iteration."""
        if not self._begun:
            self._begun = True
            self.clock.resume()
            self._begin_range()

    def _begin_with(self, loader: Any) -> None:
        """No backward yet: what came before this pass over the data (statistics, Lightning's try of the validation) was no training."""
        if self._pass_begun != (loader, loader.passes):
            self._pass_begun = (loader, loader.passes)
            self.clock.resume()

    def on_batch(self, loader: Any, batch: Any, samples: float, wait_s: float, turnover_s: float | None) -> None:
        if self.stopped:
            return
        clock, hooks = self.clock, self.loader_hooks
        if hooks.own_s:
            clock.last_s, wait_s, hooks.own_s = clock.last_s + hooks.own_s, max(0.0, wait_s - hooks.own_s), 0.0
        if self.consumption.begins_pass(hooks.last):
            self._begin_pass(loader)
        self.consumption.fetch(loader, hooks.last, samples, wait_s, turnover_s)
        if self.live.micro is not None:
            self.live.micro.on_batch(loader, batch)
        if clock.phase == AWAY and self._is_other(loader):
            return
        if turnover_s is not None:
            clock.relabel(AWAY)
        clock.switch(FORWARD)
        if self.live.autocast.dtype is not None and self.iterations and loader.training and not self.live.entries:
            self.live.autocast.enter(self.live.device or "cpu")  # a job that calls no module: from the batch on

    def _begin_pass(self, loader: Any) -> None:
        """The batch is the first of its iterator. If nothing was trained in the pass before, over the same data, that was an evaluation."""
        if self.backwards and self.consumption.passed_in_vain(loader):
            self._interruptions.leave_out_pass()
            self.consumption.leave_out_pass()
        self._interruptions.note_pass()

    def on_epoch_end(self, loader: Any) -> None:
        if not self.stopped and not self._is_other(loader):
            self._end_of_batch()
            self.consumption.end_epoch(self.loader_hooks.last, trained=self.backwards > 0)
            self.clock.relabel(AWAY)  # waiting for the end, and what comes until the next batch, is turnover

    def on_fault(self, where: str, text: str) -> None:
        """Trouble in the loader part, which has already put things right for the job."""
        log.write(f"{where}\n{text}")
        if where.startswith("loader settings"):
            self.knobs.fail(f"{where}: {text.strip().splitlines()[-1]}")
            return
        self._failing = True
        self.stop()
        self.channel.send(Fault(rank(self.torch), where, text))

    def _is_other(self, loader: Any) -> bool:
        """Another loader than the one trained on, as far as that is known; one that is built anew for every epoch is the same."""
        known = self.loader_hooks.training_state
        return known is not None and loader.key != known.key

    # ------------------------------------------------------------------ the model side

    def on_module(self, module: Any) -> None:
        """A top-level module call, while modules are watched."""
        if self.stopped or self.inside_entry:
            return
        if self.in_backward and module not in self._called_gradless:  # backward of a checkpointed part calls its modules again
            return
        try:
            if not self.torch.is_grad_enabled():
                self._called_gradless.add(module)
                self.consumption.evaluate()
                return
            if not module.training:
                return
            first = next(module.parameters(), None)
            if first is None:
                if hasattr(module, "reduction"):
                    self.loss_modules.add(loss_module(module))
                return
            if isinstance(module, self.torch.jit.ScriptModule):
                return
            self._learn_device(first.device)
            if self.torch.is_autocast_enabled(self.live.device) and self.live.autocast.dtype is None:
                self._note_autocast(self.torch.get_autocast_dtype(self.live.device))
            if self.live.add_entry(module) is not None:
                self.knobs.hold(final=False)
        except Exception:
            self.fail("on_module")

    def on_autocast(self, region: Any) -> None:
        """The job enters an autocast region, while modules are watched."""
        if not self.live.autocast.entering and getattr(region, "_enabled", False):
            self._note_autocast(getattr(region, "fast_dtype", ""))

    def _note_autocast(self, dtype: Any) -> None:
        self.own_autocast = self.own_autocast or str(dtype).removeprefix("torch.")

    def on_entry_call(self, args: tuple[Any, ...]) -> Any | None:
        """Training calls an entry module with ``args``. Returns a context the call must run in, or None."""
        try:
            if not self._begun:
                self._begin()
            self._interruptions.end_look()
            if self.clock.phase == AWAY and self.consumption.untouched:
                self.clock.relabel(DATA)  # it was no evaluation that this batch was fetched for
            if self.clock.phase in (OTHER, DATA, OPTIMIZER, AWAY):
                self.clock.switch(FORWARD)
            self.training_called = True
            self.consumption.train()
            autocast = self.live.autocast
            return autocast.enter(self.live.device) or autocast.fade(self.live.device, args)
        except Exception:
            self.fail("on_entry_call")
            return None

    def on_gradless_call(self) -> Any | None:
        """An entry module is called in evaluation or without gradients. Returns a context the call must run in, or None."""
        try:
            self.consumption.evaluate()
            self.live.autocast.leave()
            self._interruptions.note_gradless_call()
            if self._cached_gradients.seen:  # what comes back goes into the loss: both halves must be computed alike
                return self.live.autocast.for_gradless(self.live.device)
        except Exception:
            self.fail("on_gradless_call")
        return None

    def before_own_compile(self, model: Any) -> None:
        """The job is about to compile: dynamo must find torch as it is."""
        if not self.stopped:
            self.listen_to_dynamo()
            self._watch_modules(False)
            if isinstance(getattr(model, "__self__", model), self.torch.nn.Module):
                self.own_compile = True
                self.live.drop_entries()

    def listen_to_dynamo(self) -> None:
        """Something is about to be compiled. Graph breaks happen in warm-up, long before anything is watched."""
        if self.config.mode == "profile":
            if self.compiles is None:
                from autotune_trials.agent.watching.compiles import CompileLog

                self.compiles = CompileLog(self)
            self.compiles.attach()

    def after_own_compile(self, compiled: Any) -> None:
        """What torch.compile made: if it is a module, it is what the job will call."""
        try:
            if not self.stopped and isinstance(compiled, self.torch.nn.Module):
                first = next(compiled.parameters(), None)
                if first is not None:
                    self._learn_device(first.device)
                    self.live.add_entry(compiled)
        except Exception:
            self.fail("after_own_compile")

    def _learn_device(self, device: Any) -> None:
        if self.live.device == device.type or (self.live.device == "cuda" and device.type == "cpu"):
            return
        self.live.device = device.type
        if device.type == "cuda" and not isinstance(self.clock, DeviceClock) and self.config.mode != "launch":
            ranges, self.clock = self.clock.ranges, DeviceClock(self.torch)
            self.clock.ranges = ranges
        if device.type == "cuda" and (self.config.mode != "launch" or self.live.non_blocking is not None):
            transfer.install(self.patches, self.torch, self)

    def begin_transfer(self) -> int:
        """A copy to the device begins; returns the phase to go back to."""
        phase = self.clock.phase
        if phase in (OTHER, FORWARD):
            self.clock.switch(TO_DEVICE)
        return phase

    def end_transfer(self, phase: int) -> None:
        if self.clock.phase == TO_DEVICE:
            self.clock.switch(phase)

    # ------------------------------------------------------------------ backward

    def before_backward(self, tensors: Any, gradients: Any, create_graph: bool) -> tuple[Any, Any]:
        """Returns the arguments backward is to be called with: the loss is scaled under float16."""
        if self.stopped:
            return tensors, gradients
        try:
            if not self.backwards:
                first = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
                log.crumb("backward")
                device = getattr(first, "device", None)
                if device is not None:
                    self._learn_device(device)
                self.knobs.hold(final=False)
                if not self._begun:
                    self._begin()
            self.in_backward = True
            self._interruptions.end_look()
            self.consumption.train()
            if not self.iterations and self.backwards and not self.in_step and self._gradients_were_dropped():
                self.loss.drop_current()  # a search for the batch size, say, that ran before training
                self.consumption.drop_others(self.loader_hooks.last)
            if create_graph:
                self.double_backward = True
            if self.iterations == 1 and self.config.mode == "live" and self.consumption.batches and not self.compares_samples:
                self.compares_samples = comparison(tensors, int(self.consumption.batches[-1].samples or 0))
            if self.sites.open:
                self.sites.on_backward(sys._getframe(1))
            clock, live = self.clock, self.live
            if clock.phase == OTHER and not self.training_called and not self.consumption.batches:
                clock.relabel(FORWARD)  # a job without loader and modules: all before backward is its forward
            clock.switch(BACKWARD)
            if live.autocast.inside:
                live.autocast.leave()
            if not self._evaluations.repeated:
                self._note_loss(tensors, gradients)
            scaler = live.scaler
            if scaler is not None:
                scaler.before_backward(live.every_optimizer())
                return scaler.scaled(tensors, gradients)
        except Exception:
            self.fail("before_backward")
        return tensors, gradients

    def _note_loss(self, tensors: Any, gradients: Any) -> None:
        """``tensors`` are differentiated: the loss, or what stands for it."""
        scaled, true_loss = self._scaled
        value, differentiated = self._cached_gradients.judge(tensors, gradients), true_loss if tensors is scaled() else tensors
        if value is Value.TOTAL:
            self.loss.add_total(differentiated, gradients)
        elif value is Value.LOSS:
            self.loss.add(differentiated, gradients)

    def _gradients_were_dropped(self) -> bool:
        """No parameter has a gradient although backward ran: what it was computed for was no training."""
        parameters = self.live.parameters()
        return bool(parameters) and not self._cached_gradients.under_way and all(p.grad is None for p in parameters)

    def on_scaled(self, loss: Any, scaled: Any) -> None:
        """The job's own GradScaler made ``scaled`` of ``loss``: the loss is what counts, whatever the scale is by then."""
        if not self.stopped and scaled is not loss and type(scaled) is type(loss) is self.torch.Tensor:
            self._scaled = (weakref.ref(scaled), loss.detach())

    def after_backward(self) -> None:
        self.in_backward = False
        if self.stopped:
            return
        if self.live.micro is not None:
            self.live.micro.after_backward()  # not below: what this raises is the job's
        try:
            if self.live.scaler is not None:
                self.live.scaler.after_backward(self.live.every_optimizer())
            self.clock.switch(OPTIMIZER if self.in_step else OTHER)
            self.backwards += 1
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
        self.in_step = True
        if self.live.micro is not None:
            self.live.micro.before_step()
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
            self._skipped = self.live.scaler.before_step(stepping) or self._skipped

    def after_step(self, stepping: Any, args: Any, kwargs: Any) -> None:
        if self.stopped:
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
                    self._go_on_with_first()
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
        if self.stopped:
            return
        try:
            if not self.manual:
                self.manual = True
                self.knobs.hold(final=True)
                self._start_over()
            if loss is not None:
                self.loss.replace(loss)
            self.live.autocast.leave()
            self.end_iteration(samples)
        except Exception:
            self.fail("autotune.step")

    def _start_over(self) -> None:
        """The job marks iterations itself: what was counted by the optimizer until now belongs to its first one."""
        self.loss.merge_into_current()
        self.iterations, self.samples_total = 0, 0.0
        self.consumption.start_over()
        self.mode.start_over()

    def _go_on_with_first(self) -> None:
        """The first iteration was taken to end with the step before: it goes on to this one, with its batches."""
        self.loss.merge_into_current()
        self.iterations, self.samples_total = 0, 0.0
        self.consumption.go_on_with_first()
        self.mode.start_over()

    def on_metric(self, name: str, value: Any) -> None:
        """``autotune.metric()`` in the job."""
        if not self.stopped and len(self.metrics.setdefault(str(name), [])) < 100_000:
            if isinstance(value, self.torch.Tensor):
                value = value.detach().clone()
            self.metrics[str(name)].append((self.samples_total, value))

    def end_iteration(self, samples: float | None = None) -> None:
        """The running iteration ends now."""
        if not self.iterations:
            log.crumb("step")
        self._interruptions.end_look()
        wall, spent = self.clock.cut()
        iteration = Iteration(self.iterations, sum(wall[:AWAY]), spent)
        self._count_samples(iteration, samples)
        iteration.interrupted = self._interruptions.end_iteration()
        iteration.skipped, self._skipped = self._skipped, False
        if self.live.scaler is not None:
            self.live.scaler.update()
        self.iterations += 1
        if self.iterations == 1:
            self._backwards_at_first = self.backwards
        self.training_called = False
        self._cached_gradients.end_iteration()
        if self.probe.left:
            self.probe.end_step()
        if self.sketch.wanted:
            self.sketch.end_step(iteration.skipped)
        if self._watching_modules:
            if self.iterations >= self.config.warmup_steps:
                self._watch_modules(False)
        elif self.iterations == 1 and self.own_nothing_compiled():
            self._watch_modules(True)
        self.mode.on_iteration(iteration)
        self._begin_range()

    def _begin_range(self) -> None:
        """In a profiler's timeline the next iteration begins here: what the agent does between two belongs to none."""
        if self.clock.ranges is not None and not self.stopped:
            self.clock.ranges.begin_iteration()

    def own_nothing_compiled(self) -> bool:
        """torch.compile was called (by a library, when it was imported), yet nothing of the job runs compiled."""
        utils = sys.modules.get("torch._dynamo.utils")
        return not self.own_compile and not self.live.entries and (utils is None or not utils.counters["stats"]["unique_graphs"])

    def _count_samples(self, iteration: Iteration, given: float | None) -> None:
        trained = self.consumption.take(self._is_other, self._interruptions.other_loader_counts)
        iteration.wait_s, iteration.turnovers = trained.wait_s, list(trained.turnovers_s)
        if trained.in_turn:
            self._interruptions.note_turn()
        counted, found = (trained.samples, trained.counted) if given is None else (float(given), True)
        if trained.first_fetched_ahead and given is None and self._first_iteration is not None:
            self._first_iteration.samples -= trained.first_fetched_ahead
            self.samples_total -= trained.first_fetched_ahead
        self._first_iteration = iteration if not iteration.index else None
        self.samples_counted = self.samples_counted or found
        iteration.samples = counted if self.samples_counted else 1.0
        self.samples_total += iteration.samples

    def backwards_per_step(self) -> float:
        """From the end of the first iteration on: what comes before may lack a part (GANs step several times)."""
        if self.iterations < 2:
            return float(self.backwards)
        return (self.backwards - self._backwards_at_first) / (self.iterations - 1)

    def sampler_name(self) -> str:
        """Class of the training loader's sampler, for the fingerprint."""
        state = getattr(self.loader_hooks, "training_state", None)
        loader = state.loader() if state is not None else None
        return type(loader.sampler).__name__ if loader is not None else ""

    # ------------------------------------------------------------------ trouble of the job's own

    def on_job_error(self, error: BaseException) -> None:
        """An exception passes through code of the job that we wrap; it is raised again by the caller."""
        self.in_backward = False
        if not self.stopped and isinstance(error, Exception) and is_out_of_memory(error):
            self.note_out_of_memory(error)
            self.last_words.tell(error, "oom", surviving=True)

    def on_uncaught(self, error: BaseException) -> None:
        """The job is about to die of ``error``."""
        try:
            lost = is_out_of_memory(error)
            if lost:
                self.note_out_of_memory(error)
            self.last_words.tell(error, "oom" if lost else "crash", surviving=False)
            self.mode.on_crash()
        except Exception:
            log.write_exception("excepthook")

    def note_out_of_memory(self, error: BaseException) -> None:
        """Leave word of it, so that the end of this process is not taken for a crash."""
        try:
            log.crumb("oom")
            log.write(f"oom: {str(error)[:500]}")
            self.mode.on_out_of_memory(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        except Exception:
            self.fail("out of memory")

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """What runs inside is the agent's, and no part of any iteration."""
        try:
            yield
        finally:
            self.clock.resume()


def mode_for(name: str) -> type[Mode]:
    """The class for SessionConfig.mode.

    Raises:
        ValueError: no such mode.
    """
    if name == "live":
        return LiveMode
    if name in ("fixed", "profile"):
        return RecordMode
    if name == "launch":
        return Mode
    raise ValueError(f"mode is {name!r}, expected live, fixed, profile or launch")


def _path(directory: str) -> Any:
    from pathlib import Path

    return Path(directory)
