"""Which implementations an optimizer can be switched between."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune_trials.agent.controls.lr_factor import LrFactor
from autotune_trials.agent.controls.optimizer_copy import fused_works
from autotune_trials.agent.controls.optimizers import LIGHTNING, LOOKS, OptimizerControl
from autotune_trials.agent.core.events import Events
from autotune_trials.agent.facts.gradient_probe import Probe
from autotune_trials.agent.facts.job_facts import _settings


def built(cls: type, dtype: torch.dtype) -> torch.optim.Optimizer:
    return cls([torch.nn.Parameter(torch.ones(67, dtype=dtype))], lr=0.1)


@pytest.mark.parametrize(
    ("cls", "dtype", "fused"),
    [
        (torch.optim.SGD, torch.float32, True),
        # fused silently leaves the parameters unchanged (torch 2.13)
        (torch.optim.SGD, torch.bfloat16, False),
        (torch.optim.SGD, torch.float16, False),
        (torch.optim.AdamW, torch.float32, True),
        (torch.optim.AdamW, torch.bfloat16, True),
        (torch.optim.Adagrad, torch.float16, True),
    ],
)
def test_whatever_is_offered_updates_the_parameters(
    cls: type, dtype: torch.dtype, fused: bool
) -> None:
    optimizer = built(cls, dtype)
    offered = OptimizerControl(torch, optimizer).supported()
    assert offered == ("for-loop", "foreach", "fused")[: 2 + fused]
    for implementation in offered:
        optimizer = built(cls, dtype)
        OptimizerControl(torch, optimizer).set(implementation)
        [parameter] = optimizer.param_groups[0]["params"]
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert (parameter < 1).all(), implementation


def test_fused_is_not_offered_where_its_step_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*args: object, **kwargs: object) -> None:
        raise NotImplementedError(
            "Could not run 'aten::_fused_adagrad_' with arguments from the 'CUDA' backend"
        )

    monkeypatch.setattr(torch, "_fused_adagrad_", lacking)
    assert OptimizerControl(torch, built(torch.optim.Adagrad, torch.float32)).supported() == (
        "for-loop",
        "foreach",
    )


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("cls", "fused"), [(torch.optim.SGD, False), (torch.optim.AdamW, True)])
def test_fused_is_offered_for_sharded_parameters_where_torch_has_it(cls: type, fused: bool) -> None:
    from torch.distributed.fsdp import fully_shard  # slow to import

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    sharded = fully_shard(torch.nn.Linear(3, 2), mesh=mesh).parameters()
    for optimizer, has_it in ((built(cls, torch.float32), True), (cls(sharded, lr=0.1), fused)):
        offered = OptimizerControl(torch, optimizer).supported()
        assert offered == ("for-loop", "foreach", "fused")[: 2 + has_it]


def test_the_trial_of_fused_is_not_noticed() -> None:
    optimizer, called = built(torch.optim.SGD, torch.float32), []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    [parameter] = optimizer.param_groups[0]["params"]
    stream = torch.get_rng_state()
    assert "fused" in OptimizerControl(torch, optimizer).supported()
    assert not called and not optimizer.state and (parameter == 1).all() and parameter.grad is None
    assert (
        optimizer.param_groups[0]["lr"] == 0.1
        and not optimizer.param_groups[0]["fused"]
        and stream.equal(torch.get_rng_state())
    )


def test_an_optimizer_that_closes_something_at_its_end_is_copied_without() -> None:
    class Closing(torch.optim.AdamW):
        def __del__(self) -> None:
            closed.append(type(self).__name__)

    closed: list[str] = []
    optimizer = built(Closing, torch.float32)
    assert fused_works(torch, optimizer)
    gc.collect()
    assert closed == []


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adagrad])
def test_fused_is_not_used_for_sparse_gradients(cls: type) -> None:
    """Which only the first backward shows."""
    table = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = cls(table.parameters(), lr=0.1)
    control = OptimizerControl(torch, optimizer)
    control.set("fused")
    table(torch.tensor([1, 2])).sum().backward()
    assert "fused" not in control.supported()
    control.set("fused")
    optimizer.step()
    assert control.implementation() == "default"


def test_a_gradient_that_is_sparse_only_later_ends_fused() -> None:
    """An embedding that the first batches do not use."""
    table, line = torch.nn.Embedding(20, 4, sparse=True), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*table.parameters(), *line.parameters()], lr=0.1)
    control = OptimizerControl(torch, optimizer)
    control.set("fused")
    for ids in (None, None, torch.arange(4)):
        inputs = torch.randn(4, 4) if ids is None else table(ids)
        optimizer.zero_grad()
        line(inputs).sum().backward()
        optimizer.step()
        assert bool(optimizer.param_groups[0]["fused"]) == (ids is None)
    control.set(None)
    assert not optimizer._optimizer_step_pre_hooks


def fused_adam() -> tuple[torch.nn.Parameter, torch.optim.Adam, OptimizerControl]:
    parameter = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    control = OptimizerControl(torch, optimizer)
    control.set("fused")
    assert optimizer.param_groups[0]["fused"]
    return parameter, optimizer, control


def test_a_gradient_of_another_layout_is_not_given_to_fused_kernels() -> None:
    """They read it as if it lay like the parameter: the job put it together itself."""
    parameter, optimizer, _ = fused_adam()
    plain = torch.nn.Parameter(parameter.detach().clone())
    expected = torch.optim.Adam([plain], lr=0.1)
    gradient = torch.arange(12.0).reshape(4, 3) - 5
    parameter.grad, plain.grad = (
        gradient.t(),
        gradient.t().clone(memory_format=torch.contiguous_format),
    )
    optimizer.step()
    expected.step()
    assert torch.equal(parameter, plain)
    assert not optimizer.param_groups[0]["fused"]


@pytest.mark.usefixtures("group")
def test_bucket_views_suit_fused_kernels_from_the_second_step_on() -> None:
    """The first lie as the parameters did when DistributedDataParallel was built."""
    trained = []
    for implementation in (None, "fused"):
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Conv2d(4, 3, 3), gradient_as_bucket_view=True
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        control, used = OptimizerControl(torch, optimizer), []
        control.set(implementation)
        model.module.to(memory_format=torch.channels_last)
        for step in range(4):
            model(torch.ones(2, 4, 5, 5)).square().sum().backward()
            if step == 0:
                control.set(implementation)
            optimizer.step()
            used.append(optimizer.param_groups[0]["fused"])
            optimizer.zero_grad()
        trained.append(model.module.weight)
    assert used == [None, True, True, True]
    torch.testing.assert_close(*trained)


def test_loaded_momenta_lie_like_their_parameters_for_fused_kernels() -> None:
    parameter, optimizer, control = fused_adam()
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg"] = torch.arange(12.0).reshape(4, 3).t()
    optimizer.load_state_dict(saved)
    loaded = optimizer.state[parameter]["exp_avg"]
    assert loaded.stride() == parameter.stride()
    assert torch.equal(loaded, torch.arange(12.0).reshape(4, 3).t())


def test_groups_that_two_optimizers_share_are_scaled_once() -> None:
    """An optimizer that wraps another, as for SAM."""
    inner = built(torch.optim.SGD, torch.float32)
    outer = SimpleNamespace(param_groups=inner.param_groups)
    loaders = SimpleNamespace(control=SimpleNamespace(fits_batch_size=lambda: True))
    live: Any = SimpleNamespace(torch=torch, loaders=loaders, events=Events())
    rates = LrFactor(live)
    rates.set(2.0)
    seen = []
    for change, optimizer in (
        (rates.step_started, outer),
        (rates.step_started, inner),
        (lambda o: rates.step_ended(o, False), inner),
        (lambda o: rates.step_ended(o, True), outer),
    ):
        change(optimizer)
        seen.append(inner.param_groups[0]["lr"])
    assert seen == [0.2, 0.2, 0.2, 0.1]


def test_a_late_sparse_gradient_under_the_jobs_own_scaler_is_no_error() -> None:
    """GradScaler prepares a step for fused kernels before we see its gradients."""
    table, line = torch.nn.Embedding(20, 4, sparse=True), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*table.parameters(), *line.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    OptimizerControl(torch, optimizer).set("fused")
    for ids in (None, torch.arange(4), torch.arange(4)):
        inputs = torch.randn(4, 4) if ids is None else table(ids)
        optimizer.zero_grad()
        scaler.scale(line(inputs).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert not optimizer.param_groups[0]["fused"]


@pytest.mark.parametrize("beside", ["", *LIGHTNING])
def test_a_fused_kernel_skips_steps_itself_except_in_lightning(
    beside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would refuse gradient_clip_val with any mixed precision."""
    for name in LIGHTNING:
        monkeypatch.delitem(sys.modules, name, raising=False)
    if beside:
        monkeypatch.setitem(sys.modules, beside, SimpleNamespace())  # type: ignore[misc]
    parameter, optimizer, _ = fused_adam()
    parameter.grad = torch.ones_like(parameter)
    for _ in range(LOOKS + 1):
        optimizer.step()
    assert vars(optimizer)["_step_supports_amp_scaling"] is not bool(beside)


def test_figures_that_an_optimizer_keeps_in_its_groups_are_no_settings() -> None:
    """Prodigy's and D-Adaptation's estimates differ in the last digits under every rounding."""
    defaults = {"lr": 1.0, "betas": (0.9, 0.999), "d0": 1e-6, "d": 1e-6, "growth": 2.0}
    measured = {"d": 7.577e-7, "d_hat": 7.571e-7, "k": 3}
    group = {**defaults, "lr": 0.5, **measured, "params": [torch.ones(3)]}
    optimizer = SimpleNamespace(defaults=defaults, param_groups=[group])
    (kept,) = _settings(optimizer)["groups"]
    expected = {"lr": 0.5, "betas": [0.9, 0.999], "d0": 1e-6, "growth": 2.0, "parameters": 3}
    assert kept == expected


def test_a_wrapper_without_defaults_has_settings() -> None:
    wrapper = SimpleNamespace(param_groups=[{"lr": 0.1, "trust": 2.0, "params": [torch.ones(3)]}])
    assert _settings(wrapper)["groups"] == [{"lr": 0.1, "parameters": 3}]


def test_of_a_closure_that_is_called_again_only_the_first_gradient_is_probed() -> None:
    model = torch.nn.Linear(4, 1)
    state = SimpleNamespace(in_step=False)
    live: Any = SimpleNamespace(torch=torch, state=state, parameters=lambda: [*model.parameters()])
    probe = Probe(live, steps=8)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    norms = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        norms.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
        probe.backward_ended()
        return loss

    for _ in range(3):
        probe.step_started(optimizer)
        state.in_step = True
        optimizer.step(closure)
        state.in_step = False
        probe.step_ended(optimizer, True)
        probe.norms.end_step()
    assert len(norms) > 3
    gradients, updates = probe.norms.norms()
    assert gradients == pytest.approx([norms[0]]) and updates == (0.0,)
