"""What is learnt of the job's modules: which it calls in training, on what device, and what it casts or compiles itself."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.facts.job_facts import loss_module
from autotune_trials.agent.patches import modules, transfer
from autotune_trials.measure.clock import FORWARD, OTHER, TO_DEVICE, DeviceClock

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


class ModuleEvents:
    """Every call of a module is watched during warm-up, and no longer: it costs."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._watching = False
        self._called_gradless: weakref.WeakSet[Any] = weakref.WeakSet()  # modules in training, but without gradients, while they are watched

    @property
    def seen_gradless(self) -> bool:
        """A module in training was called without gradients."""
        return bool(self._called_gradless)

    def watch(self, on: bool) -> None:
        agent = self._agent
        if on:
            modules.install(agent.patches, agent.torch, agent)
        else:
            modules.restore(agent.patches)
        self._watching = on

    def end_iteration(self) -> None:
        agent = self._agent
        if self._watching:
            if agent.iterations >= agent.config.warmup_steps:
                self.watch(False)
        elif agent.iterations == 1 and self._nothing_compiled():
            self.watch(True)

    def on_module(self, module: Any) -> None:
        """A top-level module call, while modules are watched."""
        agent = self._agent
        if agent.stopped or agent.inside_entry or agent.capturing:
            return
        if agent.in_backward and module not in self._called_gradless:  # backward of a checkpointed part calls its modules again
            return
        try:
            if not agent.torch.is_grad_enabled():
                if module.training:
                    self._called_gradless.add(module)
                agent.consumption.evaluate()
                return
            if not module.training:
                return
            first = next(module.parameters(), None)
            if first is None:
                if hasattr(module, "reduction"):
                    agent.loss_modules.add(loss_module(module))
                return
            if isinstance(module, agent.torch.jit.ScriptModule):
                return
            self.learn_device(first.device)
            if agent.torch.is_autocast_enabled(agent.live.device) and agent.live.autocast.dtype is None:
                self._note_autocast(agent.torch.get_autocast_dtype(agent.live.device))
            if agent.live.add_entry(module) is not None:
                agent.knobs.hold(final=False)
        except Exception:
            agent.fail("on_module")

    def on_autocast(self, region: Any) -> None:
        """The job enters an autocast region, while modules are watched."""
        if not self._agent.live.autocast.entering and getattr(region, "_enabled", False):
            self._note_autocast(getattr(region, "fast_dtype", ""))

    def _note_autocast(self, dtype: Any) -> None:
        self._agent.own_autocast = self._agent.own_autocast or str(dtype).removeprefix("torch.")

    def before_own_compile(self, model: Any) -> None:
        """The job is about to compile: dynamo must find torch as it is."""
        agent = self._agent
        if not agent.stopped:
            self.listen_to_dynamo()
            self.watch(False)
            if isinstance(getattr(model, "__self__", model), agent.torch.nn.Module):
                agent.own_compile = True
                agent.live.drop_entries()

    def listen_to_dynamo(self) -> None:
        """Something is about to be compiled. Graph breaks happen in warm-up, long before anything is watched."""
        agent = self._agent
        if agent.config.mode == "profile":
            if agent.compiles is None:
                from autotune_trials.agent.observers.compiles import CompileLog

                agent.compiles = CompileLog(agent)
            agent.compiles.attach()

    def after_own_compile(self, compiled: Any) -> None:
        """What torch.compile made: if it is a module, it is what the job will call."""
        agent = self._agent
        try:
            if not agent.stopped and isinstance(compiled, agent.torch.nn.Module):
                first = next(compiled.parameters(), None)
                if first is not None:
                    self.learn_device(first.device)
                    agent.live.add_entry(compiled)
        except Exception:
            agent.fail("after_own_compile")

    def learn_device(self, device: Any) -> None:
        agent = self._agent
        if agent.live.device == device.type or (agent.live.device == "cuda" and device.type == "cpu"):
            return
        agent.live.device = device.type
        if device.type == "cuda":
            agent.live.cuda = device
        if device.type == "cuda" and not isinstance(agent.clock, DeviceClock) and agent.config.mode != "launch":
            ranges, agent.clock = agent.clock.ranges, DeviceClock(agent.torch, device)
            agent.clock.ranges = ranges
        changes_copies = agent.live.non_blocking is not None or agent.live.prefetch is not None
        if device.type == "cuda" and (agent.config.mode != "launch" or changes_copies):
            transfer.install(agent.patches, agent.torch, agent)

    def begin_transfer(self) -> int:
        """A copy to the device begins; returns the phase to go back to."""
        phase = self._agent.clock.phase
        if phase in (OTHER, FORWARD) and not self._agent.capturing:
            self._agent.clock.switch(TO_DEVICE)
        return phase

    def end_transfer(self, phase: int) -> None:
        if self._agent.clock.phase == TO_DEVICE:
            self._agent.clock.switch(phase)

    def _nothing_compiled(self) -> bool:
        """torch.compile was called (by a library, when it was imported), yet nothing of the job runs compiled."""
        utils = sys.modules.get("torch._dynamo.utils")
        return not self._agent.own_compile and not self._agent.live.entries and (utils is None or not utils.counters["stats"]["unique_graphs"])
