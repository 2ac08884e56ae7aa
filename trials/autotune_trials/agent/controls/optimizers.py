"""The job's optimizers: which implementations each supports, and switching between them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.controls.optimizer_copy import fused_works
from autotune_trials.agent.facts.construction import BuiltAt
from autotune_trials.agent.facts.parameters import parameters_of

Flags = tuple[Any, Any]  # (foreach, fused), from which torch chooses
LOOKS = 20  # steps within which a job shows how it makes its gradients
LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")


class OptimizerControl:
    """One optimizer's implementation."""

    # whether torch's fused kernel works, by class, options, and (type, device, dtype) of the
    # parameters: a job may build an optimizer for every task, and trying it waits for the device
    _fused: ClassVar[dict[Any, bool]] = {}

    def __init__(self, torch: Any, optimizer: Any) -> None:
        self._torch = torch
        self._optimizer = weakref.ref(optimizer)
        self.built_at: BuiltAt | None = None  # None if unknown
        self._set_to: str | None = None  # a knob's implementation; None: the job's own
        self._own: list[Flags] = []  # each group's flags, while a knob's are set
        self._own_default: Flags = (None, None)  # flags for groups added later
        self._own_amp_flag: Any = None
        self._hooks: tuple[Any, ...] = ()
        self._looks = 0  # steps left whose gradients are all looked at
        self._unused: list[weakref.ref[Any]] = []  # tables that had no gradient yet

    @property
    def optimizer(self) -> Any:  # None once the job has dropped it
        return self._optimizer()

    def supported(self) -> tuple[str, ...]:
        """Implementations this optimizer can use here; () if it cannot be switched."""
        optimizer = self.optimizer
        if (
            optimizer is None
            or not step_is_torchs(type(optimizer))
            or "foreach" not in optimizer.defaults
        ):
            return ()
        groups = optimizer.param_groups
        if any(g.get("differentiable") or g.get("capturable") for g in groups):
            return ()
        found = ["for-loop"]
        if not any(self._torch.is_tensor(g.get("lr")) for g in groups):
            found.append("foreach")
        parameters = parameters_of(optimizer)
        fusible = all(
            p.is_floating_point()
            and p.device.type in ("cpu", "cuda")
            and p.layout == self._torch.strided
            and _suits_fused(p)
            for p in parameters
        )
        if "fused" in optimizer.defaults and fusible and self._fused_works(optimizer, parameters):
            found.append("fused")
        return tuple(found)

    def _fused_works(self, optimizer: Any, parameters: list[Any]) -> bool:
        kinds = frozenset((type(p), p.device, p.dtype) for p in parameters)
        options = frozenset(
            (name, bool(value))
            for name, value in optimizer.defaults.items()
            if isinstance(value, (bool, int, float))
        )
        key = (type(optimizer), kinds, options)
        if key not in self._fused:
            self._fused[key] = fused_works(self._torch, optimizer)
        return self._fused[key]

    def implementation(self) -> str:
        optimizer = self.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        return implementation_of(groups, self._own)

    def set(self, implementation: str | None) -> None:
        """Switch; None restores the job's own, and so does an unsupported implementation."""
        optimizer = self.optimizer
        if optimizer is None:
            return
        if implementation is None:
            if self._set_to is None:
                return
            self._give_back(optimizer)
        elif implementation in self.supported():
            if self._set_to is None:
                self._remember(optimizer)
            self._set_to = implementation
            self._write(optimizer)
        elif self._set_to == implementation == "fused":
            # Its first gradients do not suit it. DistributedDataParallel's may from the second step
            # on: until then views of its buckets lie as the parameters did when it was built.
            self._write_own(optimizer)
            self._looks, self._unused = 2, []
        elif self._set_to is not None:
            self._give_back(optimizer)
        self._move_step_counters(optimizer)

    def _remember(self, optimizer: Any) -> None:
        self._own = [_flags(g) for g in optimizer.param_groups]
        self._own_default = _flags(optimizer.defaults)
        self._own_amp_flag = getattr(optimizer, "_step_supports_amp_scaling", None)
        self._hooks = (
            optimizer.register_step_pre_hook(lambda *_: self._look_at_gradients()),
            optimizer.register_state_dict_post_hook(lambda _, saved: self._as_own(saved)),
            optimizer.register_load_state_dict_post_hook(self._on_load),
        )

    def _look_at_gradients(self) -> None:
        """Go back to the job's own implementation if a gradient does not suit fused kernels. Backward
        makes such gradients only for an embedding, perhaps used later for the first time; a job that
        puts gradients together itself does so from the start. Return to fused if :meth:`set` put
        it aside and the gradients suit it now.
        """
        optimizer = self.optimizer
        if optimizer is None or self._set_to != "fused" or not (self._looks or self._unused):
            return
        found = [p for ref in self._unused if (p := ref()) is not None]
        self._unused = [ref for ref in self._unused if (p := ref()) is not None and p.grad is None]
        if self._looks:
            self._looks -= 1
            found = parameters_of(optimizer)
        if not optimizer.param_groups[0].get("fused"):
            if "fused" in self.supported():
                self._write(optimizer)
                self._move_step_counters(optimizer)
        elif not all(map(_suits_fused, found)):
            log.write("optimizer_impl: fused kernels do not take a gradient of this layout")
            self._looks, self._unused = 0, []
            self._write_own(optimizer)  # keep the hooks: torch is iterating over them
            self._move_step_counters(optimizer)
        else:
            self._tell_grad_scaler(optimizer)

    def _write(self, optimizer: Any) -> None:
        fused = self._set_to == "fused"
        # the defaults too, for groups that the job adds later
        for settings in (optimizer.defaults, *optimizer.param_groups):
            settings.update(_written(settings, (self._set_to == "foreach", fused)))
        if fused:
            parameters = parameters_of(optimizer)
            self._looks = LOOKS
            self._unused = [weakref.ref(p) for p in parameters if p.grad is None and p.dim() == 2]
            lay_out_states(self._torch, optimizer)
        self._tell_grad_scaler(optimizer)

    def _tell_grad_scaler(self, optimizer: Any) -> None:
        """GradScaler recognizes fused optimizers by a flag, and leaves unscaling and skipping to their
        kernel: not while a gradient may still make us go back. SGD's leaves momenta unwritten if it
        skips the first step (torch 2.13): GradScaler skips it then. Lightning refuses to clip the
        gradients of optimizers that have the flag, with a GradScaler and without.
        """
        momenta = any(group.get("momentum") for group in optimizer.param_groups)
        settled = self._set_to == "fused" and not (self._looks or self._unused)
        clips = any(name in sys.modules for name in LIGHTNING)
        optimizer._step_supports_amp_scaling = settled and not (momenta or clips)

    def _give_back(self, optimizer: Any) -> None:
        self._write_own(optimizer)
        for hook in self._hooks:
            hook.remove()
        self._set_to, self._own, self._hooks = None, [], ()

    def _write_own(self, optimizer: Any) -> None:
        optimizer.defaults.update(_written(optimizer.defaults, self._own_default))
        for group, own in zip(
            optimizer.param_groups, self._own_of(optimizer.param_groups), strict=True
        ):
            group.update(_written(group, own))
        if self._own_amp_flag is None:
            vars(optimizer).pop("_step_supports_amp_scaling", None)
        else:
            optimizer._step_supports_amp_scaling = self._own_amp_flag

    def _own_of(self, groups: list[Any]) -> list[Flags]:
        """The job's own flags of each group; groups added since get the job's defaults."""
        return [*self._own, *[self._own_default] * (len(groups) - len(self._own))][: len(groups)]

    def _as_own(self, saved: dict[str, Any]) -> dict[str, Any]:
        """``saved``, a state dict, with the job's own implementation: it loads as if there were no
        agent.
        """
        groups = [
            {**g, **_written(g, own)}
            for g, own in zip(
                saved["param_groups"], self._own_of(saved["param_groups"]), strict=True
            )
        ]
        state = dict(saved["state"])
        for index in (
            index for group in groups if not _counts_on_device(group) for index in group["params"]
        ):
            step: Any = state.get(index, {}).get("step")
            if self._torch.is_tensor(step) and step.device.type != "cpu":
                state[index] = {**state[index], "step": step.cpu()}
        return {**saved, "state": state, "param_groups": groups}

    def _on_load(self, optimizer: Any) -> None:
        """Switch the groups again: a checkpoint has replaced them with its own."""
        self._own = [_flags(g) for g in optimizer.param_groups]
        if self._set_to in self.supported():
            self._write(optimizer)
        # keep the hooks: torch is iterating over them, and the job's own come after this one
        else:
            self._write_own(optimizer)
        self._move_step_counters(optimizer)

    def _move_step_counters(self, optimizer: Any) -> None:
        """Move step counters: fused kernels count on the parameter's device, the others on the
        host.
        """
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                step: Any = (
                    optimizer.state[parameter].get("step") if parameter in optimizer.state else None
                )
                if self._torch.is_tensor(step):
                    optimizer.state[parameter]["step"] = step.to(
                        parameter.device if _counts_on_device(group) else "cpu"
                    )


class OptimizerImplementation(Control):
    """Values: for-loop, foreach, fused; None is the job's own. Moves step counters to where each
    expects them.
    """

    name = "optimizer_impl"

    def set(self, value: Any) -> None:
        live = self.live
        controls = live.every_optimizer_control() if value is None else live.optimizer_controls
        for control in controls:
            control.set(value)


def lay_out_states(torch: Any, optimizer: Any) -> None:
    """Give momenta the layout of their parameters, which fused kernels rely on: those of a checkpoint
    may have another.
    """
    for parameter, state in optimizer.state.items():
        if not torch.is_tensor(parameter) or not isinstance(state, dict):
            continue
        for name, value in state.items():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                if value.layout == parameter.layout and not _alike(value, parameter):
                    empty = torch.empty_like(parameter, dtype=value.dtype)
                    state[name] = empty.detach().copy_(value)


def _alike(a: Any, b: Any) -> bool:
    """Whether two tensors of one shape lie in memory alike."""
    return a.stride() == b.stride() or all(
        n == 1 or one == other
        for n, one, other in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def _suits_fused(parameter: Any) -> bool:
    """Fused kernels refuse sparse gradients, and those for CPUs read ones of another layout as if
    they had the parameter's.
    """
    gradient = parameter.grad
    return gradient is None or (gradient.layout == parameter.layout and _alike(gradient, parameter))


def _flags(settings: Any) -> Flags:
    return settings.get("foreach"), settings.get("fused")


def implementation_of(groups: list[Any], own: Sequence[Flags] = ()) -> str:
    """The implementation by the flags of the first group, which is the one torch reads; ``own``:
    the flags that count instead of those in ``groups``.
    """
    foreach, fused = next(iter(own or map(_flags, groups)), (None, None))
    if fused:
        return "fused"
    if foreach:
        return "foreach"
    return "for-loop" if foreach is False else "default"


def _written(settings: Any, flags: Flags) -> dict[str, Any]:
    """The entries that set ``flags`` in ``settings`` (a group or the defaults): not all optimizers
    know fused.
    """
    return dict(
        zip(("foreach", "fused") if "fused" in settings else ("foreach",), flags, strict=False)
    )


def _counts_on_device(group: Any) -> Any:
    return group.get("fused") or group.get("capturable")


def step_is_torchs(cls: type) -> bool:
    """Whether optimizers of this class use torch's own ``step``."""
    for base in cls.__mro__:
        if "step" in vars(base):
            return base.__module__.startswith("torch.optim")
    return False
