"""The agent's loss scaler takes the same steps as torch.amp.GradScaler; tested on the CPU, which
runs the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune_trials.agent.controls.loss_scaler import INITIAL_SCALE, LossScaler, LossScaling
from autotune_trials.agent.core.events import Events
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.core.training_loop import TrainingLoop

STEPS, OVERFLOWS = 6, 3


def sgd(parameters: Iterator[torch.nn.Parameter], fused: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=fused)


def adam(parameters: Iterator[torch.nn.Parameter], fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, fused=fused)


def losses(
    half: bool,
    built: Callable[..., torch.optim.Optimizer] = sgd,
    fused: bool = False,
    overflows: int = OVERFLOWS,
) -> tuple[torch.nn.Linear, torch.optim.Optimizer, list[torch.Tensor]]:
    """A model, its optimizer, and the loss's factor at each step; at step ``overflows`` gradients
    overflow.

    ``half``: the loss itself is float16, in which 65536 times any value from 1 up is infinite, and
    so is its gradient.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    factors = [
        torch.tensor(1e38 if step == overflows and not half else 1.5) for step in range(STEPS)
    ]
    return model, built(model.parameters(), fused), factors


def loss_of(model: torch.nn.Linear, factor: torch.Tensor, half: bool) -> torch.Tensor:
    out = model(torch.ones(4, 8))
    return (out.half().abs().mean() * factor.half()) if half else out.pow(2).mean() * factor


def values(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Parameters and optimizer state."""
    state = [v for s in optimizer.state.values() for v in s.values()]
    return torch.cat([v.detach().flatten().clone() for v in (*model.parameters(), *state)])


def step(
    scaler: LossScaler,
    model: torch.nn.Linear,
    optimizer: torch.optim.Optimizer,
    factor: torch.Tensor,
    half: bool,
) -> Any:
    """One iteration as the agent sees it. Returns whether its step was skipped."""
    optimizer.zero_grad()
    scaler.before_backward([optimizer])
    scaled, gradients = scaler.scaled(loss_of(model, factor, half), None)
    scaled.backward(gradients)
    scaler.after_backward([optimizer])
    scaler.before_step(optimizer)
    optimizer.step()
    scaler.after_step(optimizer)
    return scaler.update()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("built", "fused"), [(sgd, False), (sgd, True), (adam, False), (adam, True)]
)
def test_it_takes_the_steps_of_grad_scaler(
    half: bool, built: Callable[..., torch.optim.Optimizer], fused: bool
) -> None:
    # torch's own scaler would continue with momenta that a fused SGD has not written (see below)
    theirs_fused = fused and not (half and built is sgd)
    model, optimizer, factors = losses(half, built, theirs_fused)
    theirs, scales = [], []
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE)
    for factor in factors:
        optimizer.zero_grad()
        scaler.scale(loss_of(model, factor, half)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        theirs.append(values(model, optimizer))
        scales.append(scaler.get_scale())

    model, optimizer, factors = losses(half, built, fused)
    ours = LossScaler(torch)
    skipped = []
    for number, factor in enumerate(factors):
        if step(ours, model, optimizer, factor, half):
            skipped.append(number)
        assert ours.scale == scales[number]
        if theirs_fused == fused:
            assert torch.equal(values(model, optimizer), theirs[number])
    assert skipped == ([0] if half else [OVERFLOWS])
    assert not {"found_inf", "grad_scale"} & vars(optimizer).keys()


@pytest.mark.parametrize(("built", "fused"), [(sgd, True), (adam, True), (adam, False)])
def test_only_a_step_that_is_not_fused_waits_for_the_device(
    built: Callable[..., torch.optim.Optimizer], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, factors = losses(False, built, fused)
    scaler, waits = LossScaler(torch), []
    step(scaler, model, optimizer, factors[0], half=False)
    for name in ("item", "__bool__", "__float__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, original=original: waits.append(1) or original(self)
        )
    left_out = [step(scaler, model, optimizer, factor, half=False) for factor in factors[1:]]
    assert bool(waits) is not fused
    assert [number for number, out in enumerate(left_out, start=1) if out] == [OVERFLOWS]


def test_the_momenta_of_a_fused_first_step_that_overflows_are_not_used_unwritten() -> None:
    model, optimizer, factors = losses(False, sgd, fused=True, overflows=0)
    scaler = LossScaler(torch)
    assert step(scaler, model, optimizer, factors[0], half=False) and not optimizer.state
    after = [step(scaler, model, optimizer, factor, half=False) for factor in factors[1:]]
    assert not any(after)
    plain, other, _ = losses(False, sgd, fused=True)
    for factor in factors[1:]:
        other.zero_grad()
        loss_of(plain, factor, half=False).backward()
        other.step()
    assert torch.equal(values(model, optimizer), values(plain, other))


def test_gradients_of_other_types_are_scaled_too() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        parameter = torch.nn.Parameter(torch.ones(4, dtype=dtype))
        optimizer, scaler = torch.optim.SGD([parameter], lr=0.5), LossScaler(torch)
        for factor in (1.0, float("inf")):
            scaled, gradients = scaler.scaled((parameter * factor).sum(), None)
            scaled.backward(gradients)
            scaler.after_backward([optimizer])
            assert (parameter.grad == factor).all()
            scaler.before_step(optimizer)
            optimizer.step()
            scaler.after_step(optimizer)
            assert bool(scaler.update()) is (factor != 1.0)
            optimizer.zero_grad()
        assert (parameter == 0.5).all() and scaler.scale == INITIAL_SCALE / 2


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_jobs_default_dtype_is_not_that_of_the_scale(default: torch.dtype) -> None:
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.float32))
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.5, fused=True), LossScaler(torch)
    torch.set_default_dtype(default)
    try:
        for factor in (1.0, float("inf")):
            scaler.before_backward([optimizer])
            scaled, gradients = scaler.scaled((parameter * factor).sum(), None)
            scaled.backward(gradients)
            scaler.after_backward([optimizer])
            scaler.before_step(optimizer)
            optimizer.step()
            scaler.after_step(optimizer)
            assert bool(scaler.update()) is (factor != 1.0)
            optimizer.zero_grad()
    finally:
        torch.set_default_dtype(torch.float32)
    assert (parameter == 0.5).all() and scaler.scale == INITIAL_SCALE / 2


def test_each_of_two_optimizers_over_the_same_parameters_leaves_its_step_out() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizers = [torch.optim.SGD([parameter], lr=0.5) for _ in range(2)]
    scaler = LossScaler(torch)
    for factor, left_out in ((float("inf"), True), (1.0, False)):
        scaler.before_backward(optimizers)
        scaled, gradients = scaler.scaled((parameter * factor).sum(), None)
        scaled.backward(gradients)
        scaler.after_backward(optimizers)
        assert (parameter.grad == factor).all()
        for optimizer in optimizers:
            scaler.before_step(optimizer)
            optimizer.step()
            scaler.after_step(optimizer)
        assert bool(scaler.update()) is left_out
        assert (parameter == (1.0 if left_out else 0.0)).all()
        parameter.grad = None


def test_an_overflow_whose_gradients_are_dropped_leaves_out_no_step() -> None:
    model, optimizer, _ = losses(half=False)
    scaler = LossScaler(torch)
    for factor in (1e38, 1.5):
        optimizer.zero_grad()
        scaler.before_backward([optimizer])
        scaled, gradients = scaler.scaled(loss_of(model, torch.tensor(factor), False), None)
        scaled.backward(gradients)
        scaler.after_backward([optimizer])
    scaler.before_step(optimizer)
    optimizer.step()
    scaler.after_step(optimizer)
    assert not scaler.update() and scaler.scale == INITIAL_SCALE


def test_gradients_stay_true_where_backward_raises_and_the_job_goes_on() -> None:
    """As after an OOM, with gradients accumulated before it."""

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("out of memory")

    parameter = torch.nn.Parameter(torch.ones(3))
    events, state = Events(), LoopState()
    live = job(parameter, state)
    loop = TrainingLoop(events, state, pytest.fail, lambda *_: None)
    events.listen(LossScaling(live, LossScaler(torch)))  # type: ignore[arg-type]
    parameter.sum().backward()
    broken = Breaks.apply(parameter).sum()
    state.training_called = True
    scaled, _ = loop.start_backward(broken, None)
    assert parameter.grad is not None and float(parameter.grad[0]) == INITIAL_SCALE
    with pytest.raises(RuntimeError, match="out of memory") as raised:
        scaled.backward()
    loop.fail_backward(raised.value)
    assert parameter.grad.tolist() == [1.0, 1.0, 1.0]


def job(parameter: torch.nn.Parameter, state: LoopState) -> SimpleNamespace:
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    return SimpleNamespace(every_optimizer=lambda: [optimizer], entries=[object()], state=state)


def test_gradients_that_an_evaluation_takes_of_its_inputs_are_true() -> None:
    """No optimizer has them: nothing would unscale them."""
    parameter, x = torch.nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)
    events, state = Events(), LoopState()
    loop = TrainingLoop(events, state, pytest.fail, lambda *_: None)
    events.listen(LossScaling(job(parameter, state), LossScaler(torch)))  # type: ignore[arg-type]
    for training in (True, False):
        state.training_called = training
        x.grad = parameter.grad = None
        scaled, _ = loop.start_backward((parameter * x).sum(), None)
        scaled.backward()
        loop.end_backward()
        assert parameter.grad.tolist() == [1.0] * 3
        assert x.grad.tolist() == [INITIAL_SCALE if training else 1.0] * 3
