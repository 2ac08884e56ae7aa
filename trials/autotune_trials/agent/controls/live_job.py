"""What knobs may touch in the running job: the LiveJob of :mod:`autotune_spaces.base`, implemented."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from autotune_spaces.glibc import Heap
from autotune_trials.agent.controls.attention import Attention
from autotune_trials.agent.controls.autocast import AutocastRegion, LossScaler
from autotune_trials.agent.controls.collector import Collector
from autotune_trials.agent.controls.entry_modules import Entry
from autotune_trials.agent.controls.micro_batch import MicroBatch
from autotune_trials.agent.controls.optimizers import OptimizerControl
from autotune_trials.agent.controls.prefetch import Prefetch
from autotune_trials.agent.controls.replicas import Replicas

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


class IgnoredLoader:
    """Stands in for a DataLoader the agent does not know yet: in fixed runs the loader part applies its settings itself."""

    def set(self, **settings: Any) -> None:
        """Nothing to do here."""

    def own(self, name: str) -> None:
        """Unknown."""


class LiveJobControl:
    """The job's switches. Every setter is idempotent; the job's own value restores the job."""

    def __init__(self, torch: Any, agent: Agent, loss_scale: float | None = None) -> None:
        """``loss_scale``: where a float16 LossScaler starts; None: where torch's own does."""
        self.torch = torch
        self._agent = agent
        self._loss_scale = loss_scale
        self.device = ""  # "cpu" or "cuda", known with the first tensor
        self.cuda: Any = None  # the torch.device trained on, with its index, if it is a GPU
        self.autocast = AutocastRegion(torch)
        self.scaler: LossScaler | None = None  # float16 only
        self._last_scaler: LossScaler | None = None
        self.non_blocking: bool | None = None
        self.prefetch: Prefetch | None = None  # while batches are copied to the GPU ahead
        self.attention = Attention(torch, look_at=1 if agent.config.mode == "live" else -1)
        self.collector = Collector()
        self.heap = Heap()
        self.micro: MicroBatch | None = None  # while the model is to compute other portions than the job's batches
        self.lr_factor = 1.0
        self.own_fallback_random: bool | None = None  # inductor's setting while an entry is compiled by us
        self.built = Replicas()
        self._entries: list[Entry] = []
        self._controls: dict[int, OptimizerControl] = {}  # by id, in the order they were built
        self._last_stepping: Any = lambda: None
        self._stepping: list[int] = []  # ids, in the order they first stepped

    # ------------------------------------------------------------------ what there is

    @property
    def loader(self) -> Any:
        hooks = self._agent.loader_hooks
        training = hooks.training if hooks is not None else None
        if training is None and self._agent.knobs.held:
            return IgnoredLoader()
        return training

    @property
    def entries(self) -> list[Entry]:
        self._entries = [e for e in self._entries if e.alive]
        return self._entries

    @property
    def controls(self) -> list[OptimizerControl]:
        """Optimizers that have stepped; before any has, all that were built."""
        ids = self._stepping or list(self._controls)
        return [self._controls[i] for i in ids if i in self._controls and self._controls[i].optimizer is not None]

    @property
    def optimizers(self) -> list[Any]:
        return [o for o in (c.optimizer for c in self.controls) if o is not None]

    @property
    def replicas(self) -> list[Any]:
        """The job's DistributedDataParallel modules."""
        return self.built.modules()

    def every_optimizer(self) -> list[Any]:
        """All that were built and still live."""
        return [o for o in (c.optimizer for c in self._controls.values()) if o is not None]

    def parameters(self) -> list[Any]:
        """What is trained: the optimizers' parameters, else the entry modules'."""
        optimizers = self.optimizers
        found = (
            [p for o in optimizers for g in o.param_groups for p in g["params"]]
            if optimizers
            else [p for e in self.entries for p in e.module.parameters()]
        )
        return list({id(p): p for p in found}.values())

    def control(self, optimizer: Any) -> OptimizerControl:
        """The control of ``optimizer``, made if need be."""
        control = self._controls.get(id(optimizer))
        if control is None or control.optimizer is not optimizer:  # an id is used again after its object is gone
            control = self._controls[id(optimizer)] = OptimizerControl(self.torch, optimizer)
        return control

    def note_stepping(self, optimizer: Any) -> bool:
        """``optimizer`` is about to step; True if it is its first time."""
        if optimizer is self._last_stepping():
            return False
        self._last_stepping = weakref.ref(optimizer)
        if id(optimizer) in self._stepping and self._controls[id(optimizer)].optimizer is optimizer:
            return False
        self.control(optimizer)
        self._stepping = [i for i in self._stepping if i != id(optimizer)] + [id(optimizer)]
        return True

    def add_entry(self, module: Any) -> Entry | None:
        """Make ``module`` an entry; None if it is one already or its slot is taken."""
        if any(e.module is module for e in self.entries):
            return None
        entry = Entry(module, self._agent)
        if not entry.install():
            return None
        self._entries.append(entry)
        return entry

    def drop_entries(self) -> None:
        """Forget all entries without touching what they call."""
        for entry in self._entries:
            entry.release()
        self._entries = []

    # ------------------------------------------------------------------ switches

    def set_autocast(self, dtype: str | None) -> None:
        if dtype == "float16" and not self.every_optimizer():
            raise RuntimeError("float16 needs a torch optimizer, whose steps can be left out when gradients overflow")
        hooks = self._agent.loader_hooks
        at_batch = hooks is not None and hooks.training_state is not None and not self._agent.stopped
        self.autocast.set(None if dtype is None else getattr(self.torch, dtype), at_batch)
        if dtype == "float16":
            self.scaler = self._last_scaler = self._last_scaler or LossScaler(self.torch, self._loss_scale)
        else:
            self.scaler = None

    @property
    def scale_used(self) -> float | None:
        """The scale of the agent's own scaler as it is now; None if it was never in use."""
        return self._last_scaler.scale if self._last_scaler is not None else None

    def set_non_blocking(self, on: bool | None) -> None:
        self.non_blocking = on

    def set_cuda_prefetch(self, on: bool) -> None:
        if on != (self.prefetch is not None):
            self.prefetch = Prefetch(self._agent) if on else None

    def cuda_prefetch_effect(self) -> str | None:
        return self.prefetch.effect() if self.prefetch is not None else None

    def set_attention(self, kernel: str | None) -> None:
        if self.attention.prefer(kernel, self.device, self._agent.iterations):
            for entry in self.entries:
                entry.compile_anew()

    def attention_kernels(self) -> set[str] | None:
        return self.attention.seen

    def set_lr_factor(self, factor: float) -> None:
        self.lr_factor = float(factor)

    def set_optimizer_impl(self, implementation: str | None) -> None:
        for control in self.controls:
            control.set(implementation)

    def set_malloc_retain(self, on: bool) -> None:
        (self.heap.retain if on else self.heap.give_back)()

    def set_gc(self, freeze: bool, threshold: int | None) -> None:
        """Frozen is what there is when training begins, model and data among it: not what little there is when torch is imported."""
        begun = bool(self._stepping) or self._agent.manual
        self.collector.set(freeze and begun, threshold)

    def set_micro_batch(self, size: int | None) -> None:
        if size == (self.micro.size if self.micro is not None else None):
            return
        self.micro = MicroBatch(self.torch, self._agent, size) if size is not None else None

    def micro_batch_effect(self) -> str | None:
        return self.micro.effect() if self.micro is not None else None

    def restore(self) -> None:
        """Everything as the job had it."""
        self.collector.set(False, None)
        self.heap.give_back()
        self.set_micro_batch(None)
        self.set_autocast(None)
        self.set_non_blocking(None)
        self.set_cuda_prefetch(False)
        self.set_attention(None)
        for control in self._controls.values():
            control.restore_lr()
            control.set(None)
        self.lr_factor = 1.0
        for entry in self.entries:
            entry.remove()
