"""Probes the first steps: gradient norm, update norm, and a sketch of the very first gradients.

    backward ──▶ gradient norm, sketch │ clipping │ parameters copied ─ step ─▶ how far they moved

Whatever cannot be measured (parameters of a kind torch's functions refuse) ends the probe, not the
agent.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap.log import reason
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.facts import off_heap
from autotune_trials.agent.facts.parameters import own_shard, parameters_of
from autotune_trials.agent.loop.loss_meter import Scalar, read_scalars

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.iteration import Iteration

BUCKETS = 1024
SKETCHED = 2**22  # gradient elements used: a fixed subset for larger models
_SEED = 0x5EED


def _ends_probe(method: Any) -> Any:
    """Make a failure inside ``method`` end the probe."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception:
            self.left, self.failure = 0, reason("probe")
            self._before = self._changes = []

    return guarded


class Probe(Listener):
    """Listens during the first steps only."""

    def __init__(self, live: LiveJobControl, steps: int) -> None:
        """``steps``: number of steps to probe; 0: none."""
        self._live = live
        self.norms = NormProbe(live.torch, steps)
        self.sketch = GradientSketch(live.torch, wanted=steps > 0)

    @property
    def wanted(self) -> bool:
        return self.norms.left > 0 or self.sketch.wanted

    @property
    def failure(self) -> str:
        return self.norms.failure or self.sketch.failure

    def backward_ended(self) -> None:
        if self.norms.left:
            if self._live.state.in_step and self.norms.taken_in_step:
                self.norms.end_with_this_step()
            else:
                self.norms.taken_in_step = self._live.state.in_step
                self.norms.after_backward(self._live.parameters())
        # of the gradients a closure computes, the first
        if self.sketch.wanted and not (self._live.state.in_step and self.sketch.taken):
            self.sketch.take(self._live.parameters())

    def step_started(self, optimizer: Any) -> None:
        if self.norms.left:
            self.norms.before_step(optimizer)

    def step_ended(self, optimizer: Any, ends_iteration: bool) -> None:
        if self.norms.left:
            self.norms.after_step()

    def iteration_ended(self, iteration: Iteration) -> None:
        if self.norms.left:
            self.norms.end_step()
        if self.sketch.wanted:
            self.sketch.end_step(iteration.skipped)
        if not self.wanted:
            self._live.events.forget(self)


class NormProbe:
    """Gradient norm before clipping and norm of the parameter change, for the first steps of a run.

    Above 2**22 parameters the change is estimated from every k-th row of each tensor: a full copy
    of the parameters might not fit beside the model, and would count in its peak memory.
    """

    def __init__(self, torch: Any, steps: int) -> None:
        self._torch, self.left = torch, steps  # steps still to probe
        self._gradient: Scalar | None = None
        self._before: list[tuple[Any, Any]] = []  # (parameter, its rows before the step)
        self._stride = 1  # every _stride-th row is used
        self._changes: list[Any] = []
        self._gradients: list[Scalar] = []
        self._updates: list[Scalar] = []
        self.taken_in_step = False  # by a closure that the optimizer calls
        self.failure = ""

    def end_with_this_step(self) -> None:
        """A closure is called several times in a step (LBFGS): what it makes of the first gradient
        differs by more than any knob may, so only that gradient is recorded."""
        self.left, self._before, self._changes = 1, [], []

    @_ends_probe
    def after_backward(self, parameters: list[Any]) -> None:
        """Take the norm of all gradients; the last backward before the step counts."""
        grads = [own_shard(p.grad) for p in parameters if p.grad is not None]
        with self._torch.no_grad():
            self._gradient = self._norm(
                [g.coalesce()._values() if g.is_sparse else g for g in grads]
            )

    @_ends_probe
    def before_step(self, optimizer: Any) -> None:
        parameters = parameters_of(optimizer)
        self._stride = max(1, -(-sum(own_shard(p).numel() for p in parameters) // SKETCHED))
        self._before = [(p, off_heap.copy(self._torch, self._rows(p))) for p in parameters]

    def _rows(self, parameter: Any) -> Any:
        """The rows that are compared; the same ones in any memory format."""
        shard = own_shard(parameter).detach()
        return shard[:: self._stride] if self._stride > 1 and shard.dim() else shard

    @_ends_probe
    def after_step(self) -> None:
        """Compute how far the parameters moved."""
        with self._torch.no_grad():
            for p, before in self._before:
                share = before.numel() / max(1, own_shard(p).numel())
                self._changes.append(before.sub_(self._rows(p)).div_(share**0.5))
        self._before = []

    @_ends_probe
    def end_step(self) -> None:
        """End the iteration: record its norms."""
        if self.left <= 0:
            return
        self.left -= 1
        self._gradients.append(self._gradient)
        with self._torch.no_grad():
            self._updates.append(self._norm(self._changes))
        self._gradient, self._changes, self.taken_in_step = None, [], False

    def norms(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(gradient norms, update norms), one per probed step; 0.0 where there was none; empty if
        the probe failed.
        """
        if self.failure:
            return (), ()
        return tuple(_numbers(self._torch, self._gradients)), tuple(
            _numbers(self._torch, self._updates)
        )

    def _norm(self, tensors: list[Any]) -> Scalar | None:
        if not tensors:
            return None
        device = tensors[0].device
        parts = [self._torch.linalg.vector_norm(self._float32(t)).to(device) for t in tensors]
        return self._torch.linalg.vector_norm(self._torch.stack(parts))

    def _float32(self, tensor: Any) -> Any:
        float32 = self._torch.float32
        return tensor if tensor.dtype == float32 else off_heap.copy(self._torch, tensor, float32)


class GradientSketch:
    """A count sketch of all gradients at the first step (Charikar, Chen & Farach-Colton 2002).

    Each element is added with a random sign to one of 1024 buckets, always the same one: the sketch
    is linear, and its norm is the gradient's within about 1 / sqrt(2 * 1024) = 2%. It gives the
    distance between two runs' gradients without storing either. Above 2**22 elements every k-th of
    each tensor is used. 8 KiB, about 30 ms on a CPU.
    """

    def __init__(self, torch: Any, wanted: bool) -> None:
        self._torch = torch
        self.wanted = wanted  # until the first step has ended
        self.taken = False
        self.failure = ""
        self._sums: dict[Any, Any] = {}  # device -> sums in 1024 buckets for each sign

    def take(self, parameters: list[Any]) -> None:
        """Sketch the current gradients; the last call before the step counts. Never raises."""
        self._sums, self.taken, self.failure = {}, True, ""
        try:
            with self._torch.no_grad(), self._torch._C.DisableTorchFunctionSubclass():
                self._take(parameters)
        except Exception:
            self._sums, self.failure = {}, reason("gradient sketch")

    def end_step(self, skipped: bool) -> None:
        """End the first step; a skipped one leaves no sketch."""
        self.wanted = False
        if skipped:
            self._sums = {}

    def values(self) -> tuple[float, ...]:
        """The sketch, 1024 numbers; () if there was no gradient or it was not finite. Waits for the
        device.
        """
        if not self._sums:
            return ()
        sums = sum(s.cpu() for s in self._sums.values())
        sketch = (sums[:BUCKETS] - sums[BUCKETS:]).tolist()
        return tuple(sketch) if all(math.isfinite(v) for v in sketch) else ()

    def _take(self, parameters: list[Any]) -> None:
        torch = self._torch
        plain = (torch.Tensor, torch.nn.Parameter)
        total = sum(p.numel() for p in parameters if p.requires_grad)
        # odd, so that no whole column of a matrix is left out
        stride = 1 if total <= SKETCHED else -(-total // SKETCHED) | 1
        generator = torch.Generator()  # a generator of our own: the job's streams are not touched
        for number, parameter in enumerate(parameters):
            grad = own_shard(parameter.grad)
            if grad is None or type(grad) not in plain or grad.layout != torch.strided:
                continue  # sparse, quantised …: left out of every run alike
            if grad.is_floating_point():
                generator.manual_seed(_SEED + number)
                self._add(grad, stride, generator)

    def _add(self, grad: Any, stride: int, generator: Any) -> None:
        torch, device = self._torch, grad.device
        if device not in self._sums:
            self._sums[device] = torch.zeros(2 * BUCKETS, dtype=torch.float64, device=device)
        flat = (grad if grad.is_contiguous() else off_heap.copy(torch, grad)).view(-1)
        for piece in off_heap.pieces(flat[::stride]):
            buckets = torch.empty(len(piece), dtype=torch.int32, device="cpu")
            buckets.random_(0, 2 * BUCKETS, generator=generator)
            self._sums[device].index_add_(0, buckets.to(device), piece.to(torch.float64))


def _numbers(torch: Any, scalars: list[Scalar | None]) -> list[float]:
    read = iter(read_scalars(torch, [s for s in scalars if s is not None]))
    return [0.0 if s is None else next(read) for s in scalars]
