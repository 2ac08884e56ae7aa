"""What knobs may touch in the running job: implements LiveJob of :mod:`autotune_spaces.base`."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.controls.entry_modules import Entry
from autotune_trials.agent.controls.optimizers import OptimizerControl
from autotune_trials.agent.controls.replicas import Replicas
from autotune_trials.agent.controls.switches import SWITCHES
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.facts.construction import construction_spot
from autotune_trials.agent.facts.parameters import parameters_of

if TYPE_CHECKING:
    from autotune_trials.agent.core.training_loop import TrainingLoop
    from autotune_trials.agent.dataloader.control import TrainingLoaderControl
    from autotune_trials.agent.dataloader.hooks import LoaderHooks
    from autotune_trials.agent.loop.timer import Timer
    from autotune_trials.agent.patches.patch_set import PatchSet
    from autotune_trials.protocol.messages import SessionConfig

C = TypeVar("C", bound=Control)


class LiveJobControl(Listener):
    """The job's parts: its entry modules, optimizers and replicas, and the switches that act on
    them."""

    loaders: LoaderHooks  # set when the agent is installed

    def __init__(
        self, torch: Any, config: SessionConfig, loop: TrainingLoop, patches: PatchSet, timer: Timer
    ) -> None:
        self.torch, self.config, self.loop = torch, config, loop
        self.patches, self.timer = patches, timer
        self.events, self.state = loop.events, loop.state
        # called when an entry is about to be compiled
        self.before_compile: Callable[[], None] = lambda: None
        self.device = ""  # "cpu" or "cuda", known from the first tensor on
        self.cuda: Any = None  # the torch.device trained on, with its index, if it is a GPU
        # the job's fallback_random of inductor, while a knob has an entry compiled
        self.own_fallback_random: bool | None = None
        self.built = Replicas()
        self._entries: list[Entry] = []
        self._optimizers: dict[int, OptimizerControl] = {}  # by id, in the order they were built
        self._stepping: list[int] = []  # ids, in the order they first stepped
        # a parameter that was trainable when last checked
        self._trainable: Callable[[], Any] = lambda: None
        self._switches: dict[str, Control] = {kind.name: kind(self) for kind in SWITCHES}

    # ------------------------------------------------------------------ what there is

    @property
    def loader(self) -> TrainingLoaderControl | None:
        return self.loaders.training

    @property
    def entries(self) -> list[Entry]:
        self._entries = [e for e in self._entries if e.alive]
        return self._entries

    @property
    def optimizer_controls(self) -> list[OptimizerControl]:
        """Controls of the optimizers that have stepped; before any has, of all that were built."""
        ids = self._stepping or list(self._optimizers)
        return [
            self._optimizers[i]
            for i in ids
            if i in self._optimizers and self._optimizers[i].optimizer is not None
        ]

    def every_optimizer_control(self) -> list[OptimizerControl]:
        """Controls of all optimizers that were built."""
        return list(self._optimizers.values())  # a copy: another thread may build one meanwhile

    @property
    def optimizers(self) -> list[Any]:
        return [o for o in (c.optimizer for c in self.optimizer_controls) if o is not None]

    @property
    def replicas(self) -> list[Any]:
        return self.built.modules()

    @property
    def has_stepped(self) -> bool:
        return bool(self._stepping)

    @property
    def all_have_stepped(self) -> bool:
        """Whether every optimizer that was built and still exists has stepped."""
        return all(
            number in self._stepping
            for number, control in self._optimizers.items()
            if control.optimizer is not None
        )

    def every_optimizer(self) -> list[Any]:
        """All optimizers that were built and still exist."""
        found = [control.optimizer for control in self.every_optimizer_control()]
        return [optimizer for optimizer in found if optimizer is not None]

    def parameters(self) -> list[Any]:
        """The trained parameters: the optimizers', or without optimizers those of the entry
        modules.
        """
        optimizers = self.optimizers
        found = (
            [p for o in optimizers for p in parameters_of(o)]
            if optimizers
            else [p for e in self.entries for p in e.module.parameters()]
        )
        return list({id(p): p for p in found}.values())

    def anything_trainable(self, module: Any) -> bool:
        """Whether any parameter of the optimizers, or of ``module`` (optimizers may step copies of
        its parameters), is trainable now; True without optimizers. Where none is, the job
        evaluates, whatever gradients it takes (e.g. forces of a potential). Cheap: runs in every
        call of a module.
        """
        parameter = self._trainable()
        if parameter is not None and parameter.requires_grad:
            return True
        optimizers = self.every_optimizer()
        stepped = (p for o in optimizers for p in parameters_of(o))
        every = itertools.chain(stepped, module.parameters())
        parameter = next((p for p in every if p.requires_grad), None)
        self._trainable = (lambda: None) if parameter is None else weakref.ref(parameter)
        return parameter is not None or not optimizers

    def optimizer_control(self, optimizer: Any) -> OptimizerControl:
        control = self._optimizers.get(id(optimizer))
        # ids are reused once their object is freed
        if control is None or control.optimizer is not optimizer:
            control = self._optimizers[id(optimizer)] = OptimizerControl(self.torch, optimizer)
            self._stepping = [i for i in self._stepping if i != id(optimizer)]
        return control

    def note_stepping(self, optimizer: Any) -> bool:
        """Record that ``optimizer`` is about to step; True if for the first time."""
        if (
            id(optimizer) in self._stepping
            and self._optimizers[id(optimizer)].optimizer is optimizer
        ):
            return False
        self.optimizer_control(optimizer)
        self._stepping.append(id(optimizer))
        return True

    def add_entry(self, module: Any) -> Entry | None:
        """Make ``module`` an entry; None if it is one already or its slot is taken."""
        if any(e.module is module for e in self.entries):
            return None
        entry = Entry(module, self)
        if not entry.install():
            return None
        self._entries.append(entry)
        return entry

    def drop_entries(self, but: Sequence[Entry] = ()) -> None:
        """Forget all entries but these, without restoring their modules."""
        for entry in self._entries:
            if entry not in but:
                entry.release()
        self._entries = list(but)

    # ------------------------------------------------------------------ events

    def device_found(self, device: Any) -> None:
        self.device = device.type
        if device.type == "cuda":
            self.cuda = device

    def optimizer_built(self, optimizer: Any, frame: FrameType, own_rates: bool) -> None:
        self.optimizer_control(optimizer).built_at = construction_spot(optimizer, frame)
        for entry in self.entries:
            entry.layout.optimizer_built(optimizer)

    # ------------------------------------------------------------------ switches

    def control(self, name: str) -> Control:
        """The switch of this name. Raises KeyError if there is none."""
        return self._switches[name]

    def get(self, kind: type[C]) -> C:
        found = self._switches[kind.name]
        assert isinstance(found, kind)
        return found

    def restore(self) -> None:
        """Restore everything to the job's own settings."""
        for switch in self._switches.values():
            switch.set(switch.own)
        for entry in self.entries:
            entry.remove()
