"""The job's optimizers: which implementations they can be switched between, and the switching."""

from __future__ import annotations

import weakref
from typing import Any

IMPLEMENTATIONS = ("for-loop", "foreach", "fused")


class OptimizerControl:
    """One optimizer's implementation and learning-rate factor."""

    def __init__(self, torch: Any, optimizer: Any) -> None:
        self._torch = torch
        self._optimizer = weakref.ref(optimizer)
        self.spot: Any = None  # (code, line) that built it, None if that is not known
        self._own: list[tuple[Any, Any]] | None = None  # (foreach, fused) of each group, once changed
        self._own_amp_flag: Any = None
        self._own_lr: list[Any] | None = None  # during a step under a factor

    @property
    def optimizer(self) -> Any | None:
        return self._optimizer()

    def supported(self) -> tuple[str, ...]:
        """Implementations this optimizer can take here; () where its ``step`` is not torch's."""
        optimizer = self.optimizer
        if optimizer is None or not _step_is_torchs(type(optimizer)) or "foreach" not in optimizer.defaults:
            return ()
        groups = optimizer.param_groups
        if any(g.get("differentiable") or g.get("capturable") for g in groups):
            return ()
        found = ["for-loop"]
        if not any(self._torch.is_tensor(g.get("lr")) for g in groups):
            found.append("foreach")
        parameters = [p for g in groups for p in g["params"]]
        fusible = all(
            p.is_floating_point() and p.device.type in ("cpu", "cuda") and p.layout == self._torch.strided for p in parameters
        )
        if "fused" in optimizer.defaults and fusible:
            found.append("fused")
        return tuple(found)

    def implementation(self) -> str:
        """What the job asked for."""
        optimizer = self.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        foreach, fused = (self._own or [(g.get("foreach"), g.get("fused")) for g in groups] or [(None, None)])[0]
        if fused:
            return "fused"
        if foreach:
            return "foreach"
        return "for-loop" if foreach is False else "default"

    def set(self, implementation: str | None) -> None:
        """Switch; None goes back to the job's own. What this optimizer does not support leaves it as it is."""
        optimizer = self.optimizer
        if optimizer is None:
            return
        if implementation is None:
            if self._own is None:
                return
            for group, (foreach, fused) in zip(optimizer.param_groups, self._own, strict=False):
                self._write(group, foreach, fused)
            if self._own_amp_flag is None:
                vars(optimizer).pop("_step_supports_amp_scaling", None)
            else:
                optimizer._step_supports_amp_scaling = self._own_amp_flag
            self._own = None
        elif implementation in self.supported():
            if self._own is None:
                self._own = [(g.get("foreach"), g.get("fused")) for g in optimizer.param_groups]
                self._own_amp_flag = getattr(optimizer, "_step_supports_amp_scaling", None)
            fused = implementation == "fused"
            for group in optimizer.param_groups:
                self._write(group, implementation == "foreach", fused)
            optimizer._step_supports_amp_scaling = fused  # how a GradScaler tells a fused optimizer
        self._move_step_counters(optimizer)

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rates for the step that begins. A scheduler never sees the factor."""
        optimizer = self.optimizer
        self.restore_lr()
        if optimizer is None or factor == 1.0:
            return
        self._own_lr = [g.get("lr") for g in optimizer.param_groups]
        for group in optimizer.param_groups:
            if group.get("lr") is not None:
                group["lr"] = group["lr"] * factor

    def restore_lr(self) -> None:
        """The step has ended."""
        optimizer, own, self._own_lr = self.optimizer, self._own_lr, None
        if optimizer is not None and own is not None:
            for group, lr in zip(optimizer.param_groups, own, strict=False):
                if lr is not None:
                    group["lr"] = lr

    def _write(self, group: dict[str, Any], foreach: Any, fused: Any) -> None:
        group["foreach"] = foreach
        if "fused" in group:
            group["fused"] = fused

    def _move_step_counters(self, optimizer: Any) -> None:
        """Fused kernels count steps on the parameter's device, the others on the host."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                step: Any = optimizer.state[parameter].get("step") if parameter in optimizer.state else None
                if self._torch.is_tensor(step):
                    on_device = group.get("fused") or group.get("capturable")
                    optimizer.state[parameter]["step"] = step.to(parameter.device if on_device else "cpu")


def _step_is_torchs(cls: type) -> bool:
    for base in cls.__mro__:
        if "step" in vars(base):
            return base.__module__.startswith("torch.optim")
    return False
