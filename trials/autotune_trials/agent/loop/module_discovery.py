"""Learns about the job's modules: which ones it calls in training, on which device, and what it
casts or compiles itself."""

from __future__ import annotations

import sys
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.autocast import AutocastControl
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.facts.dynamo import dynamo_graphs
from autotune_trials.agent.facts.job_facts import loss_module
from autotune_trials.agent.loop.fake_tensors import without_data
from autotune_trials.agent.patches import modules
from autotune_trials.protocol.messages import SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.core.knob_applier import Knobs
    from autotune_trials.agent.facts.job_traits import JobTraits
    from autotune_trials.agent.observers.compiles import CompileLog

# under `launch`: iterations within which every optimizer steps, or one of them never will; module
# calls within which a process that trains has an optimizer or a backward
LAUNCH_PATIENCE = 1000


class ModuleDiscovery(Listener):
    """Looks at every module call during warm-up (under ``launch``, until every optimizer has
    stepped), and no longer, because that costs time."""

    def __init__(self, live: LiveJobControl, knobs: Knobs, traits: JobTraits) -> None:
        self._live, self._knobs, self._traits = live, knobs, traits
        self._torch, self._state = live.torch, live.state
        self._loop, self._config = live.loop, live.config
        self._discovering = False
        self._calls = 0  # module calls under launch, before anything shows that this process trains
        # modules called in training mode but without gradients, during the discovery
        self._called_gradless: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiles: CompileLog | None = None  # in profile runs, once something is compiled
        live.before_compile = self.listen_to_dynamo

    @property
    def discovering(self) -> bool:
        return self._discovering

    def discover(self, on: bool) -> None:
        if on:
            modules.install(self._live.patches, self._torch, self)
        else:
            self._live.patches.restore(*modules.NAMES)
        self._discovering = on

    def iteration_ended(self, iteration: Iteration) -> None:
        if self._state.iterations == 1 and self._nothing_compiled():
            self.discover(True)
        elif self._discovering:
            # under launch, another model may follow later with its own optimizer
            waits = (
                self._config.mode == SessionMode.LAUNCH
                and not self._live.all_have_stepped
                and self._state.iterations < LAUNCH_PATIENCE
            )
            if self._state.iterations >= self._config.warmup_steps and not waits:
                self.discover(False)
        elif self._state.iterations > 1:
            self._live.events.forget(self, "iteration_ended")

    def module_called(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """During warm-up: in a job that compiles, no module call is looked at, but it may call its
        model within its own autocast region all the same."""
        if self._state.iterations >= self._config.warmup_steps:
            self._live.events.forget(self, "module_called")
        elif self._live.device:
            self._look_for_autocast()

    def started_over(self) -> None:
        self._live.events.recall(self, "iteration_ended", "module_called")

    def on_module(self, module: Any) -> None:
        """A top-level module call, during the discovery."""
        torch, state, live = self._torch, self._state, self._live
        if state.stopped or state.inside_entry or state.capturing:
            return
        # a dataset calls it, here or in a worker: no part of the forward
        workers: Any = sys.modules["torch.utils.data._utils.worker"]
        if state.fetching == get_ident() or workers._worker_info is not None:
            return
        if self._config.mode == SessionMode.LAUNCH and not (
            state.backwards or live.every_optimizer()
        ):
            self._calls += 1
            if self._calls > LAUNCH_PATIENCE:  # a process that does not train, e.g. an evaluation
                self.discover(False)
                return
        if state.in_backward and module not in self._called_gradless:
            return  # the backward of a checkpointed part calls its modules again
        try:
            if state.aside and not (torch.is_grad_enabled() and live.anything_trainable(module)):
                return
            if not torch.is_grad_enabled():
                if module.training:
                    self._called_gradless.add(module)
                    state.seen_gradless = True
                self._loop.tell("other_evaluated")
                return
            if not module.training:
                return
            state.frozen = not live.anything_trainable(module)
            if state.frozen:
                self._loop.tell("other_evaluated")
                return
            first = next(module.parameters(), None)
            if first is None:
                if hasattr(module, "reduction"):
                    self._traits.loss_modules.add(loss_module(module))
                return
            if isinstance(module, torch.jit.ScriptModule) or without_data(first):
                return
            self._loop.learn_device(first.device)
            self._look_for_autocast()
            if live.add_entry(module) is not None:
                self._knobs.hold(final=False)
        except Exception:
            self._loop.fail("on_module")

    def on_autocast(self, region: Any) -> None:
        """The job enters an autocast region, during the discovery."""
        if not self._live.get(AutocastControl).region.entering and getattr(
            region, "_enabled", False
        ):
            self._note_autocast(getattr(region, "fast_dtype", ""))

    def _look_for_autocast(self) -> None:
        device = self._live.device
        ours = self._live.get(AutocastControl).region.dtype is not None
        if not ours and self._torch.is_autocast_enabled(device):
            self._note_autocast(self._torch.get_autocast_dtype(device))

    def _note_autocast(self, dtype: Any) -> None:
        self._traits.autocast = self._traits.autocast or str(dtype).removeprefix("torch.")

    def before_own_compile(self, model: Any) -> None:
        """The job is about to compile: dynamo must see modules unpatched. Of an autocast region
        inside the model we are told when dynamo traces it."""
        try:
            if not self._state.stopped:
                self.listen_to_dynamo()
                self._live.patches.restore(modules.CALLS)
                module = getattr(model, "__self__", model)
                if isinstance(module, self._torch.nn.Module):
                    self._traits.compiles = True
                    self._live.drop_entries(but=self._compiled_apart_from(module))
        except Exception:
            self._loop.fail("before_own_compile")

    def _compiled_apart_from(self, module: Any) -> list[Entry]:
        """Entries that the job has compiled and that are no part of ``module``: it compiles its
        blocks one by one."""
        parts = set(module.modules())
        compiled = (e for e in self._live.entries if hasattr(e.module, "_orig_mod"))
        return [entry for entry in compiled if entry.module not in parts]

    def listen_to_dynamo(self) -> None:
        """Something is about to be compiled: in profile runs, attach the compile log. Graph breaks
        happen in warm-up, long before the watched iterations."""
        if self._config.mode == SessionMode.PROFILE:
            if self.compiles is None:
                from autotune_trials.agent.observers.compiles import CompileLog

                self.compiles = CompileLog(self._live.patches)
            self.compiles.attach()

    def after_own_compile(self, compiled: Any) -> None:
        """``compiled`` was returned by torch.compile: if it is a module, the job will call it."""
        try:
            if not self._state.stopped and isinstance(compiled, self._torch.nn.Module):
                first = next(compiled.parameters(), None)
                if first is not None:
                    self._loop.learn_device(first.device)
                    self._live.add_entry(compiled)
        except Exception:
            self._loop.fail("after_own_compile")

    def _nothing_compiled(self) -> bool:
        """Whether nothing in the job runs compiled, although torch.compile may have been called (by
        a library, when it was imported)."""
        return not (self._traits.compiles or self._live.entries or dynamo_graphs())
