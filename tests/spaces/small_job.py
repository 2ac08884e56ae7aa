"""A real small training job with everything that knobs may change, in one process and without the
agent's hooks.

It does by hand what the agent does inside a user's program, so that knobs are tested on their own.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from knob_settings import shown
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune_spaces.glibc import Heap
from autotune_spaces.knobs.compile_mode import arguments

FROZEN = gc.get_freeze_count()  # not 0 from Python 3.12 on
OWN_THRESHOLDS = gc.get_threshold()
OWN_LOADER = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "pin_memory": False,
    "batch_size": 8,
    "in_order": True,
}


class Loader:
    def __init__(self, dataset: TensorDataset) -> None:
        self.dataset, self.overrides = dataset, {}  # type: ignore[var-annotated]

    def own_batch_size(self) -> Any:
        return OWN_LOADER["batch_size"]

    def set(self, **settings: Any) -> None:
        assert set(settings) <= set(OWN_LOADER), settings
        for name, value in settings.items():
            self.overrides.pop(name, None)
            if value is not None and value != OWN_LOADER[name]:
                self.overrides[name] = value

    def build(self) -> DataLoader:
        arguments = {**OWN_LOADER, **self.overrides}
        if not arguments["num_workers"]:
            arguments.update(persistent_workers=False, prefetch_factor=None)
        return DataLoader(self.dataset, **arguments)


class Entry:
    def __init__(self, module: nn.Module) -> None:
        self.module, self.mode = module, None
        self._call: Any = module

    def set_compiled(self, mode: str | None) -> None:
        if mode == self.mode:
            return
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        self.mode = mode
        self._call = (
            self.module
            if mode is None
            else torch.compile(lambda *a: self.module.forward(*a), **arguments(mode))
        )

    def compiled_graphs(self) -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    def set_channels_last(self, on: bool) -> None:
        self.module.to(memory_format=torch.channels_last if on else torch.contiguous_format)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._call(x)


@dataclass
class Switch:
    """A Control."""

    set: Callable[[Any], None]
    effect: Callable[[], str | None]


class SmallJob:
    """A LiveJob with a two-layer image classifier; ``step`` trains on a batch, returns its loss."""

    torch = torch

    def __init__(self, module: nn.Module | None = None, device: str = "cpu") -> None:
        torch.manual_seed(0)
        images = torch.randn(64, 3, 8, 8)
        self.device = device
        self.dataset = TensorDataset(images, (images.mean(dim=(1, 2, 3)) > 0).long())
        net = module or nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2)
        )
        self.entries = [Entry(net.to(device))]
        self.optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-3)]
        self.loader = Loader(self.dataset)
        self.autocast: str | None = None
        self.non_blocking: bool | None = None
        self.prefetch = False
        self.attention: str | None = None
        self.lr_factor = 1.0
        self.heap = Heap()
        self.own_lr = [g["lr"] for o in self.optimizers for g in o.param_groups]

    def control(self, name: str) -> Switch:
        setters = {
            "autocast": self.set_autocast,
            "non_blocking": self.set_non_blocking,
            "cuda_prefetch": self.set_cuda_prefetch,
            "attention": self.set_attention,
            "lr_factor": self.set_lr_factor,
            "optimizer_impl": self.set_optimizer_impl,
            "malloc_retain": self.set_malloc_retain,
            "gc": self.set_gc,
        }
        effects = {
            "cuda_prefetch": lambda: "nothing is copied",
            "attention": lambda: (
                None if self.attention == "math" else "torch ran no fused kernel instead"
            ),
        }
        return Switch(setters[name], effects.get(name, lambda: None))

    def set_autocast(self, dtype: str | None) -> None:
        self.autocast = dtype

    def set_non_blocking(self, on: bool | None) -> None:
        self.non_blocking = on

    def set_cuda_prefetch(self, on: bool) -> None:
        self.prefetch = on

    def set_attention(self, kernel: str | None) -> None:
        self.attention = kernel
        torch.backends.cuda.enable_flash_sdp(kernel != "math")

    def set_lr_factor(self, factor: float) -> None:
        self.lr_factor = factor
        for group, lr in zip(self._groups(), self.own_lr, strict=True):
            group["lr"] = lr * factor

    def set_optimizer_impl(self, implementation: str | None) -> None:
        for group in self._groups():
            group["foreach"] = None if implementation is None else implementation == "foreach"
            group["fused"] = None if implementation is None else implementation == "fused"

    def set_malloc_retain(self, on: bool) -> None:
        (self.heap.retain if on else self.heap.give_back)()

    def set_gc(self, value: Any) -> None:
        gc.set_threshold(
            value if isinstance(value, int) else OWN_THRESHOLDS[0], *OWN_THRESHOLDS[1:]
        )
        (gc.freeze if value == "freeze" else gc.unfreeze)()

    def _groups(self) -> list[dict[str, Any]]:
        return [g for o in self.optimizers for g in o.param_groups]

    def step(self) -> float:
        images, labels = next(iter(self.loader.build()))
        images, labels = (
            t.to(self.device, non_blocking=bool(self.non_blocking)) for t in (images, labels)
        )
        context = contextlib.nullcontext()
        if self.autocast:
            context = torch.autocast(self.device, dtype=getattr(torch, self.autocast))
        with context:
            loss = nn.functional.cross_entropy(self.entries[0](images), labels)
        self.optimizers[0].zero_grad()
        loss.backward()
        self.optimizers[0].step()
        return loss.item()

    def state(self) -> dict[str, Any]:
        """Everything that a knob may have changed, as comparable data."""
        module = self.entries[0].module
        return {
            "loader": {**OWN_LOADER, **self.loader.overrides},
            "autocast": self.autocast,
            "non_blocking": self.non_blocking,
            "prefetch": self.prefetch,
            "attention": (self.attention, torch.backends.cuda.flash_sdp_enabled()),
            "compiled": self.entries[0].mode,
            "strides": {name: p.stride() for name, p in module.named_parameters()},
            "groups": [{k: v for k, v in g.items() if k != "params"} for g in self._groups()],
            "threads": torch.get_num_threads(),
            "precision": torch.get_float32_matmul_precision(),
            "gc": (gc.get_threshold(), gc.get_freeze_count() > FROZEN),
            "retaining": self.heap.retaining,
            "benchmark": torch.backends.cudnn.benchmark,
            **shown(),
        }
