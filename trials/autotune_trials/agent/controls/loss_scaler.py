"""Loss scaling for float16 as torch.amp.GradScaler does it, from outside the job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.optimizers import step_is_torchs
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.facts.parameters import parameters_of

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.iteration import Iteration

INITIAL_SCALE = 2.0**16  # scale, growth and backoff as in torch.amp.GradScaler
GROWTH_INTERVAL = 2000


class LossScaling(Listener):
    """Applies the scaler at the loop's events while the job is set to train in float16.

    Not to a backward without a training call since the last step: an evaluation takes gradients of
    its inputs, which no optimizer would unscale.
    """

    def __init__(self, live: LiveJobControl, scaler: LossScaler) -> None:
        self.live, self.scaler = live, scaler
        self._scaled = False  # the latest backward

    def backward_arguments(self, tensors: Any, gradients: Any) -> tuple[Any, Any]:
        self._scaled = self.live.state.training_called or not self.live.entries
        if not self._scaled:
            return tensors, gradients
        self.scaler.before_backward(self.live.every_optimizer())
        return self.scaler.scaled(tensors, gradients)

    def backward_ended(self) -> None:
        if self._scaled:
            self.scaler.after_backward(self.live.every_optimizer())

    def backward_failed(self) -> None:
        self.backward_ended()  # the job may go on with the gradients there are

    def step_started(self, optimizer: Any) -> None:
        self.scaler.before_step(optimizer)

    def closure_called(self, optimizer: Any) -> None:
        self.scaler.before_step(optimizer)  # backward ran inside the step: check again

    def step_ended(self, optimizer: Any, ends_iteration: bool) -> None:
        self.scaler.after_step(optimizer)

    def step_failed(self, optimizer: Any) -> None:
        self.scaler.after_step(optimizer)

    def iteration_ending(self, iteration: Iteration, samples: float | None) -> None:
        iteration.skipped = self.scaler.update()


class LossScaler:
    """Does what torch.amp.GradScaler does, from outside the job.

    The loss is scaled going into backward, and gradients are unscaled as soon as it returns, so
    that everything the job does with them (clipping, logging) sees true gradients. An overflow
    skips the optimizer's step: a fused kernel checks for itself; for any other optimizer the
    gradients are removed for the duration of ``step``, which takes one synchronization. Usual
    scales are powers of two, so scaling itself is exact.
    """

    def __init__(self, torch: Any, scale: float | None = None) -> None:
        """``scale``: the initial scale, a power of two, so that scaling changes no digit; None:
        2**16.
        """
        self._torch = torch
        self._first_scale = INITIAL_SCALE if scale is None else float(scale)
        self._scale: Any = None  # on the device of the first loss, where it is also updated
        self._good_steps: Any = None
        # (id of optimizer, device) -> found_inf: 0 or 1
        self._overflow: dict[tuple[int, Any], Any] = {}
        self._stepped: list[Any] = []  # found_inf of this iteration's steps
        self._withheld: dict[int, list[tuple[Any, Any]]] = {}

    @property
    def scale(self) -> float:
        """The current scale. Waits for the device."""
        return self._first_scale if self._scale is None else float(self._scale)

    def before_backward(self, optimizers: Iterable[Any]) -> None:
        """Scale the gradients accumulated so far, to match those about to be added."""
        for (_, device, _), grads in self._by_kind(optimizers):
            self._torch._foreach_mul_(grads, self._scale_on(device))

    def scaled(self, tensors: Any, gradients: Any) -> tuple[Any, Any]:
        """The arguments of backward with the scale applied."""
        if isinstance(tensors, (list, tuple)):
            given = (
                gradients if isinstance(gradients, (list, tuple)) else [gradients] * len(tensors)
            )
            pairs = [self.scaled(t, g) for t, g in zip(tensors, given, strict=True)]
            return [p[0] for p in pairs], [p[1] for p in pairs]
        scale = self._scale_on(tensors.device)
        if gradients is not None:
            return tensors, gradients * scale
        return tensors * scale, None

    def after_backward(self, optimizers: Iterable[Any]) -> None:
        """Unscale in place, and record which optimizers have non-finite gradients."""
        torch = self._torch
        # an earlier overflow is still in the gradient, or the gradient was dropped
        self._overflow = {}
        for (owners, device, checked), grads in self._by_kind(optimizers):
            found = torch.zeros((), dtype=torch.float32, device=device)
            inverse = self._scale_on(device).double().reciprocal().float()
            if checked:
                torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
            else:
                torch._foreach_mul_(grads, inverse)
                for grad in grads:
                    found.masked_fill_(~torch.isfinite(grad).all(), 1.0)
            for owner in owners:  # once per dtype
                before = self._overflow.get((owner, device))
                self._overflow[owner, device] = (
                    found if before is None else torch.maximum(before, found)
                )

    def before_step(self, optimizer: Any) -> None:
        """Skip the step if its gradients overflowed. Waits for the device unless the optimizer is
        fused.
        """
        keys = [k for k in self._overflow if k[0] == id(optimizer)]
        if not keys:
            return
        first, *others = [self._overflow.pop(k) for k in keys]
        found = first
        for other in others:
            found = self._torch.maximum(found, _on(found.device, other))
        self._stepped.append(found)
        if _skips_by_itself(optimizer):
            optimizer.grad_scale, optimizer.found_inf = None, found  # as GradScaler does
        elif found and id(optimizer) not in self._withheld:
            parameters = [p for p in parameters_of(optimizer) if p.grad is not None]
            self._withheld[id(optimizer)] = [(p, p.grad) for p in parameters]
            for p in parameters:
                p.grad = None

    def after_step(self, optimizer: Any) -> None:
        """Restore withheld gradients, for whatever the job does next with them."""
        for name in ("grad_scale", "found_inf"):
            vars(optimizer).pop(name, None)
        for parameter, grad in self._withheld.pop(id(optimizer), ()):
            parameter.grad = grad

    def update(self) -> Any:
        """End the iteration: halve the scale after an overflow, double it after 2000 clean
        iterations.

        Returns:
            Whether a step was skipped: False, or a tensor that is true if so; reading it waits for
                the device.
        """
        if not self._stepped:
            return False
        torch, scale = self._torch, self._scale
        found = torch.stack([_on(scale.device, f) for f in self._stepped]).amax()
        self._stepped = []
        torch._amp_update_scale_(scale, self._good_steps, found, 2.0, 0.5, GROWTH_INTERVAL)
        return found

    def _scale_on(self, device: Any) -> Any:
        torch = self._torch
        if self._scale is None:
            # whatever the job's default: torch takes no other
            self._scale = torch.full((), self._first_scale, dtype=torch.float32, device=device)
            self._good_steps = torch.zeros((), dtype=torch.int32, device=device)
        return _on(device, self._scale)

    def _by_kind(
        self, optimizers: Iterable[Any]
    ) -> list[tuple[tuple[tuple[int, ...], Any, bool], list[Any]]]:
        """Gradients grouped by (their optimizers, device, can the fused check take them), each
        once.
        """
        torch = self._torch
        kinds: dict[tuple[tuple[int, ...], Any, Any], list[Any]] = {}
        owned: dict[int, tuple[Any, tuple[int, ...]]] = {}  # by parameter id
        for optimizer in optimizers:
            for parameter in parameters_of(optimizer):
                if parameter.grad is not None:
                    _, owners = owned.get(id(parameter), (None, ()))
                    owned[id(parameter)] = parameter.grad, (*owners, id(optimizer))
        for grad, owners in owned.values():
            if grad.is_sparse:
                grad = grad._values()
            kinds.setdefault((owners, grad.device, grad.dtype), []).append(grad)
        fused = (torch.float32, torch.float16)
        return [
            ((owners, device, dtype in fused), grads)
            for (owners, device, dtype), grads in kinds.items()
        ]


def _on(device: Any, tensor: Any) -> Any:
    """``tensor`` on ``device``; waits only if that is the host, which reads it at once."""
    return tensor.to(device, non_blocking=device.type != "cpu")


def _skips_by_itself(optimizer: Any) -> bool:
    """Whether the optimizer's kernel takes ``found_inf``.

    Not for SGD's first step with momentum: skipping it leaves momenta that were never written
    (torch 2.13).
    """
    groups = optimizer.param_groups
    if not all(g.get("fused") for g in groups) or not step_is_torchs(type(optimizer)):
        return False
    return all(
        optimizer.state.get(p)
        for g in groups
        if g.get("momentum")
        for p in g["params"]
        if p.grad is not None
    )
