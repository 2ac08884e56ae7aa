"""Gives a module's parameters, inputs and optimizer state the channels-last layout, and its own back."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.optimizers import lay_out_states
from autotune_trials.agent.facts.parameters import parameters_of

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

OWN_USERS = 2  # of a parameter's storage


class MemoryLayout:
    """The memory layout of one module the job calls in training."""

    def __init__(self, module: Callable[[], Any], live: LiveJobControl) -> None:
        """``module``: a weak reference to it."""
        self._module, self._live, self._torch = module, live, live.torch
        self.channels_last = False
        # parameters whose layout we changed, weakly, and the job's own strides
        self._own_strides: dict[int, tuple[Callable[[], Any], tuple[int, ...]]] = {}
        self._hooks: list[Any] = []  # on the optimizers' state dicts, meanwhile

    def set_channels_last(self, on: bool) -> None:
        if on == self.channels_last:
            return
        if on:
            # raises for a lazy layer without weights yet; the next attempt finds them
            movable = self._movable()
            self.channels_last = True
            for parameter in movable:
                wanted = self._format_of(parameter)
                if (
                    wanted is not None
                    and parameter.data.to(memory_format=wanted).stride() != parameter.stride()
                ):
                    own = weakref.ref(parameter), tuple(parameter.stride())
                    self._own_strides[id(parameter)] = own
                    self._relay(parameter, lambda t, f=wanted: t.to(memory_format=f))
            for optimizer in self._live.every_optimizer():
                self.optimizer_built(optimizer)
            return
        self.channels_last = False
        while self._hooks:
            self._hooks.pop().remove()
        for parameter, strides in self._relaid():
            self._relay(parameter, lambda t, s=strides: _with_strides(self._torch, t, s))
        self._own_strides.clear()

    def optimizer_built(self, optimizer: Any) -> None:
        if self.channels_last:
            self._hooks += [
                optimizer.register_state_dict_post_hook(self._state_in_own_layout),
                optimizer.register_load_state_dict_post_hook(partial(lay_out_states, self._torch)),
            ]

    def in_own_layout(self, result: Any) -> Any:
        """What the module returns in evaluation, in the job's own layout: code that runs only there
        (``view(-1)`` in a metric) may be out of reach of the trials.
        """
        if not self.channels_last:
            return result
        from torch.utils._pytree import tree_map_only

        return tree_map_only(
            self._torch.Tensor,
            lambda t: t if self._format_of(t) is None or t.is_sparse else t.contiguous(),
            result,
        )

    def _movable(self) -> list[Any]:
        """Parameters with memory of their own. One that shares it with another tensor (a tied
        weight, the flat tensor that the optimizer steps, a state dict that the job keeps, that of
        other processes) would lose that link if moved.
        """
        parameters = list(self._module().parameters())
        mine = {id(p) for p in parameters}
        stepped = [p for o in self._live.every_optimizer() for p in parameters_of(o)]
        taken = {memory_of(p)[0] for p in stepped if id(p) not in mine}
        places = Counter(memory_of(p) for p in parameters)
        return [
            p
            for p in parameters
            if places[memory_of(p)] == 1
            and memory_of(p)[0] not in taken
            and not self._shared(p)
            and (p.is_cuda or not p.is_shared())
        ]

    def _relaid(self) -> list[tuple[Any, tuple[int, ...]]]:
        """(parameter, the job's own strides) of those that still exist."""
        found = ((reference(), strides) for reference, strides in self._own_strides.values())
        return [(parameter, strides) for parameter, strides in found if parameter is not None]

    def _shared(self, parameter: Any) -> bool:
        """Whether another tensor, or a numpy array, uses its memory."""
        users = getattr(self._torch._C, "_storage_Use_Count", None)
        # the parameter's own, and that of the Python object that is asked
        return users is not None and users(parameter.untyped_storage()._cdata) > OWN_USERS

    def _relay(self, parameter: Any, convert: Any) -> None:
        """Convert the layout of ``parameter``, its gradient and its optimizer state (momenta); the
        Parameter object stays.
        """
        with self._torch.no_grad():
            parameter.data = convert(parameter.data)
            if parameter.grad is not None and parameter.grad.layout == self._torch.strided:
                parameter.grad.data = convert(parameter.grad.data)
            for optimizer in self._live.every_optimizer():
                state: dict[str, Any] = optimizer.state.get(parameter, {})
                for key, value in list(state.items()):
                    if isinstance(value, self._torch.Tensor) and value.shape == parameter.shape:
                        state[key] = convert(value)

    def _state_in_own_layout(self, optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
        """``saved``, a state dict, with momenta in the job's own layout. torch's fused kernels take
        them to be laid out like the parameter, and whoever loads it may have no agent.
        """
        state = dict(saved["state"])
        for index, parameter in enumerate(parameters_of(optimizer)):
            own = self._own_strides.get(id(parameter))
            if own is not None and index in state:
                state[index] = {
                    key: _with_strides(self._torch, value, own[1])
                    if isinstance(value, self._torch.Tensor) and value.shape == parameter.shape
                    else value
                    for key, value in state[index].items()
                }
        return {**saved, "state": state}

    def laid_out(self, value: Any) -> Any:
        """``value`` in its channels-last format, by ``to(memory_format=…)`` as users write it: with
        one channel ``contiguous`` would leave the strides alone.
        """
        if isinstance(value, self._torch.Tensor) and value.layout == self._torch.strided:
            wanted = self._format_of(value)
            if wanted is not None:
                return value.to(memory_format=wanted)
        return value

    def _format_of(self, tensor: Any) -> Any:
        dimensions = tensor.dim()
        if dimensions == 4:
            return self._torch.channels_last
        return self._torch.channels_last_3d if dimensions == 5 else None


def memory_of(tensor: Any) -> tuple[int, int]:
    """(storage, offset in it): equal for tensors over the same memory. No address: a DTensor has
    none.
    """
    return int(tensor.untyped_storage()._cdata), int(tensor.storage_offset())


def _with_strides(torch: Any, tensor: Any, strides: tuple[int, ...]) -> Any:
    return torch.empty_strided(
        tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
