"""Jobs that do something unusual with their model or optimizer while a knob is held.

An agent that only expects the usual loop would make each of them fail or train something else.
"""

from __future__ import annotations

import copy
import gc
import pickle
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch._dynamo.config
from bare_runs import run_bare
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, Dataset

from autotune_spaces.knobs import create
from autotune_trials.agent.controls.autocast import AutocastControl
from autotune_trials.agent.core.agent import Agent
from autotune_trials.agent.facts.job_facts import fingerprint
from autotune_trials.protocol.messages import KnobChoice, SessionConfig

Launch = Callable[..., Agent]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """``launch(knob=value)``: the agent of ``autotune launch`` in this process."""
    agents = []

    def launch(**knobs: Any) -> Agent:
        agent = Agent(
            torch,
            SessionConfig(
                "launch", str(tmp_path), "", knobs=tuple(KnobChoice(k, v) for k, v in knobs.items())
            ),
        )
        agents.append(agent)
        agent.install()
        return agent

    torch.manual_seed(0)
    yield launch
    for agent in agents:
        agent.stop()


class Layer(nn.Linear):
    """Records the dtype it computed in, in the forward pass and when backward calls it again."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        self.seen.append(out.dtype)
        return out


# ------------------------------------------------------------------ autocast


class FrozenNorm(nn.Module):
    """As torchvision's detection models have it: no momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(8))
        self.eps = 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.running_mean


def test_settings_of_normalization_are_told_where_there_are_any(launch: Launch) -> None:
    agent = launch()
    model = nn.Sequential(nn.Linear(8, 8), FrozenNorm(), nn.BatchNorm1d(8, momentum=0.2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    assert fingerprint(agent)["normalization"] == [[None, 1e-5], [0.2, 1e-5]]


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.linear(torch.cat([x, h], -1))
        return h, h


@pytest.mark.parametrize("kind", ["cell", "lstm"])
def test_a_recurrent_state_does_not_outlive_autocast(launch: Launch, kind: str) -> None:
    agent = launch(amp_dtype="bfloat16")
    model: Any = Cell() if kind == "cell" else nn.LSTM(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state: Any = torch.zeros(4, 8)
    if kind == "lstm":
        state = (torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))
    dtypes = []
    for step in range(8):
        if step == 4:
            agent.live.get(AutocastControl).set(None)
        optimizer.zero_grad()
        x = torch.randn(4, 8) if kind == "cell" else torch.randn(5, 4, 8)
        out, state = model(x, state)
        out.square().mean().backward()
        optimizer.step()
        state = state.detach() if kind == "cell" else tuple(s.detach() for s in state)
        dtypes.append(out.dtype)
    assert dtypes == [torch.bfloat16] * 4 + [torch.float32] * 4


def test_parts_under_reentrant_checkpoints_are_autocast_as_the_rest(launch: Launch) -> None:
    launch(amp_dtype="bfloat16")
    first, second, third = parts = [Layer(), Layer(), Layer()]
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)
    for _ in range(4):
        hidden = checkpoint(
            third,
            checkpoint(second, first(torch.randn(4, 8)), use_reentrant=True),
            use_reentrant=False,
        )
        optimizer.zero_grad()
        hidden.float().square().mean().backward()
        assert all(p.grad is not None for part in parts for p in part.parameters())
        optimizer.step()
    assert {dtype for part in parts for dtype in part.seen} == {torch.bfloat16}


@pytest.mark.parametrize("reentrant", [True, False])
def test_backward_computes_checkpointed_parts_in_the_type_of_their_forward(
    launch: Launch, reentrant: bool
) -> None:
    launch(amp_dtype="bfloat16")
    parts = [Layer() for _ in range(4)]
    model = nn.Sequential(*parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = (
            checkpoint_sequential(
                model, 2, torch.randn(4, 8, requires_grad=True), use_reentrant=reentrant
            )
            .float()
            .square()
            .mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if reentrant:  # the other kind stops as soon as it has all that backward needs
        for part in parts[:2]:  # the last segment is not checkpointed
            assert len(part.seen) == 8 and part.seen[0::2] == part.seen[1::2]
    assert {dtype for part in parts for dtype in part.seen[-2:]} == {torch.bfloat16}


def test_what_another_thread_computes_in_backward_leaves_the_next_forward_autocast(
    launch: Launch,
) -> None:
    """On CUDA, a hook that calls the model runs on a thread of the autograd engine."""
    launch(amp_dtype="bfloat16")
    model, x = Layer(), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def call_again(gradient: torch.Tensor) -> None:
        thread = threading.Thread(target=model, args=[x])
        thread.start()
        thread.join()

    for _ in range(4):
        loss = model(x).float().square().mean()
        loss.register_hook(call_again)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert not torch.is_autocast_enabled("cpu")
    assert model.seen == [torch.bfloat16] * 8


def test_a_discriminator_in_evaluation_judges_what_autocast_made(launch: Launch) -> None:
    launch(amp_dtype="bfloat16")
    generator, discriminator = Layer(), Layer()
    steps = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, discriminator)]
    for _ in range(4):
        for trained, optimizer in zip((generator, discriminator), steps, strict=True):
            discriminator.train(trained is discriminator)
            made = generator(torch.randn(4, 8))
            loss = (
                discriminator(made.detach() if trained is discriminator else made)
                .float()
                .square()
                .mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert not torch.is_autocast_enabled("cpu")
    assert set(generator.seen[1:]) == set(discriminator.seen[2:]) == {torch.bfloat16}


def test_an_evaluation_of_plain_tensors_is_not_autocast(launch: Launch) -> None:
    launch(amp_dtype="bfloat16")
    model = Layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(4, 8)).float().square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            assert model.eval()(torch.randn(4, 8)).dtype == torch.float32
        model.train()


def test_a_loss_after_a_call_without_gradients_is_autocast_too(launch: Launch) -> None:
    """Virtual adversarial training; a reference model made of the same weights."""
    launch(amp_dtype="bfloat16")
    model = Layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        out = model(torch.randn(4, 8))
        with torch.no_grad():
            assert model(torch.randn(4, 8)).dtype == torch.float32
        loss = nn.functional.cross_entropy(out, torch.zeros(4, dtype=torch.long))
        assert out.dtype == torch.bfloat16 and loss.dtype == torch.float32
        loss.backward()
        optimizer.step()
        assert not torch.is_autocast_enabled("cpu")


def test_a_job_that_stays_in_evaluation_mode_is_seen_training(launch: Launch) -> None:
    """It calls ``model.eval()`` for its first evaluation, and ``model.train()`` never again."""
    agent = launch()
    model = Layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    knob, switch = create("amp_dtype", {}), agent.live.control("autocast")

    def train(steps: int) -> list[torch.dtype]:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).float().square().mean().backward()
            optimizer.step()
        return model.seen[-steps:]

    train(2)
    model.eval()
    switch.set("bfloat16")
    assert train(2) == [torch.float32] * 2
    assert "never switched on" in str(knob.effect(agent.live, "bfloat16"))
    train(1)
    assert train(2) == [torch.bfloat16] * 2
    assert knob.effect(agent.live, "bfloat16") is None
    with torch.no_grad():
        assert model(torch.randn(4, 8)).dtype == torch.float32
    assert train(1) == [torch.bfloat16]


def test_what_is_only_evaluated_beside_training_is_no_training(launch: Launch) -> None:
    agent = launch()
    model, judge = Layer(), Layer()
    optimizer = torch.optim.SGD([*model.parameters(), *judge.parameters()], lr=0.1)
    for step in range(6):
        judge.train(not step)
        optimizer.zero_grad()
        judge(model(torch.randn(4, 8))).square().mean().backward()
        optimizer.step()
    assert len(agent.live.entries) == 2
    assert not any(entry.trains_in_evaluation for entry in agent.live.entries)


def test_blocks_that_the_job_compiles_one_by_one_are_all_autocast(launch: Launch) -> None:
    """As torchtitan and accelerate do."""
    agent = launch(amp_dtype="bfloat16")
    model = nn.Sequential(Layer(), Layer(), Layer(), nn.Linear(8, 2))
    for i in range(3):
        model[i] = torch.compile(model[i], backend="eager")
    assert [entry.module for entry in agent.live.entries] == list(model[:3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        out = model(torch.randn(4, 8))
        optimizer.zero_grad()
        out.float().square().mean().backward()
        optimizer.step()
    assert out.dtype == torch.bfloat16
    assert [model[i]._orig_mod.seen[-1] for i in range(3)] == [torch.bfloat16] * 3
    whole = torch.compile(model, backend="eager")  # what it calls is seen as a whole then
    assert [entry.module for entry in agent.live.entries] == [whole]
    torch._dynamo.reset()


# ------------------------------------------------------------------ optimizers


def scaled_steps(
    optimizer: torch.optim.Optimizer, model: nn.Module, scaler: torch.amp.GradScaler, count: int = 2
) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 8)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


def flags(groups: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(g["foreach"], g["fused"]) for g in groups]


def test_parameters_added_later_are_stepped_as_the_others(launch: Launch) -> None:
    agent = launch(optimizer_impl="fused")
    model, scaler = (
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        torch.amp.GradScaler("cpu", init_scale=8.0),
    )
    optimizer = torch.optim.Adam(model[0].parameters())
    scaled_steps(optimizer, model, scaler)
    optimizer.add_param_group({"params": list(model[1].parameters())})  # gradual unfreezing
    scaled_steps(optimizer, model, scaler)
    assert flags(optimizer.param_groups) == [(False, True)] * 2
    agent.stop()
    assert flags(optimizer.param_groups) == [(None, None)] * 2 and (
        optimizer.defaults["foreach"],
        optimizer.defaults["fused"],
    ) == (None, None)
    scaled_steps(optimizer, model, scaler)


def test_a_learning_rate_is_the_jobs_own_after_a_closure_that_raised(launch: Launch) -> None:
    agent = launch()
    agent.live.control("lr_factor").set(2.0)
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def closure() -> float:
        assert optimizer.param_groups[0]["lr"] == 0.2
        raise ValueError

    with pytest.raises(ValueError):
        optimizer.step(closure)
    assert optimizer.param_groups[0]["lr"] == 0.1 and not agent.state.in_step


def test_checkpoints_hold_the_jobs_own_implementation(launch: Launch) -> None:
    plain = torch.optim.Adam(nn.Linear(8, 8).parameters(), foreach=False)
    launch(optimizer_impl="fused")
    model, scaler = nn.Linear(8, 8), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    scaled_steps(optimizer, model, scaler)
    saved = copy.deepcopy(optimizer.state_dict())
    assert flags(saved["param_groups"]) == [(False, None)] and int(saved["state"][0]["step"]) == 2
    plain.load_state_dict(saved)
    assert flags(plain.param_groups) == [(False, None)]


def test_a_checkpoint_that_is_loaded_does_not_end_the_knob(launch: Launch) -> None:
    model = nn.Linear(8, 8)
    before = copy.deepcopy(torch.optim.Adam(model.parameters(), foreach=True).state_dict())
    agent = launch(optimizer_impl="fused")
    optimizer, scaler = (
        torch.optim.Adam(model.parameters()),
        torch.amp.GradScaler("cpu", init_scale=8.0),
    )
    scaled_steps(optimizer, model, scaler)
    optimizer.load_state_dict(before)
    assert flags(optimizer.param_groups) == [(False, True)]
    scaled_steps(optimizer, model, scaler)
    agent.stop()
    assert flags(optimizer.param_groups) == [(True, None)]  # as in the checkpoint
    optimizer.load_state_dict(before)
    assert flags(optimizer.param_groups) == [(True, None)] and flags(
        optimizer.state_dict()["param_groups"]
    ) == [(True, None)]


def test_a_checkpoint_that_cannot_be_fused_is_loaded_and_the_jobs_own_hook_hears_of_it(
    launch: Launch,
) -> None:
    model, heard = nn.Linear(8, 8), []
    before = copy.deepcopy(torch.optim.Adam(model.parameters(), differentiable=True).state_dict())
    agent = launch(optimizer_impl="fused")
    optimizer = torch.optim.Adam(model.parameters())
    scaled_steps(optimizer, model, torch.amp.GradScaler("cpu", init_scale=8.0))
    assert flags(optimizer.param_groups) == [(False, True)]
    optimizer.register_load_state_dict_post_hook(lambda _: heard.append(True))
    optimizer.load_state_dict(before)
    assert (
        heard
        and flags(optimizer.param_groups) == [(None, None)]
        and optimizer.param_groups[0]["differentiable"]
    )
    agent.stop()
    assert flags(optimizer.param_groups) == [(None, None)]


# ------------------------------------------------------------------ memory format


def flat_weights(model: nn.Module) -> torch.Tensor:
    """The optimizer steps one long tensor; the weights are views of it."""
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    begins = 0
    for p in model.parameters():
        p.data, begins = flat[begins : begins + p.numel()].view(p.shape), begins + p.numel()
    return flat


def test_weights_that_share_their_memory_are_not_moved(launch: Launch) -> None:
    launch(channels_last=True)
    flat_model, tied = nn.Conv2d(3, 8, 3), nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    shared, alone = nn.Conv2d(3, 8, 3).share_memory(), nn.Conv2d(3, 8, 3)
    tied[1].weight.data = tied[0].weight.data
    flat = flat_weights(flat_model)
    optimizer = torch.optim.SGD(
        [flat, *tied.parameters(), *shared.parameters(), *alone.parameters()], lr=0.1
    )
    for _ in range(3):
        loss = sum(
            m(torch.randn(2, 3, 8, 8)).square().mean() for m in (flat_model, tied, shared, alone)
        )
        optimizer.zero_grad()
        loss.backward()
        flat.grad = torch.cat([p.grad.reshape(-1) for p in flat_model.parameters()])
        optimizer.step()
    assert flat_model.weight.data_ptr() == flat.data_ptr()
    assert tied[0].weight.data_ptr() == tied[1].weight.data_ptr()
    assert shared.weight.is_shared()
    assert not alone.weight.is_contiguous()


def test_lazy_layers_are_laid_out_once_they_have_weights(launch: Launch) -> None:
    launch(channels_last=True)
    model = nn.Sequential(nn.LazyConv2d(8, 3))
    model(torch.randn(2, 3, 8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(2, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    assert not model[0].weight.is_contiguous()


# ------------------------------------------------------------------ compilers


def compiled_by(monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., Any]) -> None:
    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx", lambda graph, inputs, **_: compiler(graph)
    )


def test_a_compiler_that_fails_at_a_later_shape_ends_the_knob_and_not_the_job(
    launch: Launch, monkeypatch: Any, capsys: Any
) -> None:
    compiled_by(monkeypatch, lambda graph: graph.forward)
    launch(compile_mode="default")
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def no_kernel(_: Any) -> Any:
        raise RuntimeError("no kernel for this shape")

    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        for size in (4, 4, 4, 3, 4, 3):
            if size == 3:
                assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
                compiled_by(monkeypatch, no_kernel)
            model(torch.randn(size, 8)).square().mean().backward()
            optimizer.step()
    told = capsys.readouterr().err
    assert (
        told.count("autotune: a setting could not be applied") == 1
        and "no kernel for this shape" in told
    )


def test_a_failing_compiler_leaves_other_models_in_their_cuda_graphs(
    launch: Launch, monkeypatch: Any, capsys: Any
) -> None:
    """A CPU has no graphs: a gradient's new address shows that it was copied out of them."""
    compiled_by(monkeypatch, lambda graph: graph.forward)
    agent = launch(compile_mode="reduce-overhead")
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)

    def no_kernel(_: Any) -> Any:
        raise RuntimeError("no kernel for this shape")

    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(1))
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        for _ in range(3):
            (first(torch.randn(4, 8)).sum() + second(torch.randn(4, 8)).sum()).backward()
            optimizer.step()
        loss = first(torch.randn(4, 8)).sum()
        held = [(p.grad, p.grad.data_ptr()) for p in first.parameters()]
        compiled_by(monkeypatch, no_kernel)
        out = second(torch.randn(3, 8))
        assert all(
            p.grad is g and g.data_ptr() != at for p, (g, at) in zip(first.parameters(), held)
        )
        assert not resets, "the first's backward is still to come"
        (loss + out.sum()).backward()
    assert [entry.forward.uses_graphs for entry in agent.live.entries] == [True, False]
    assert "no kernel for this shape" in capsys.readouterr().err


def test_what_the_job_raises_in_a_compiled_model_is_what_it_gets(
    launch: Launch, monkeypatch: Any, capsys: Any
) -> None:
    compiled_by(monkeypatch, lambda graph: graph.forward)
    launch(compile_mode="default")

    class Picky(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) == 3:
                raise KeyError("three")
            return super().forward(x)

    model = Picky(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for size in (4, 4, 3, 4):
        try:
            model(torch.randn(size, 8)).square().mean().backward()
            optimizer.step()
        except KeyError as error:
            assert size == 3 and error.args == ("three",)
    assert capsys.readouterr().err == ""


def test_hooks_on_all_modules_hear_of_a_compiled_one(launch: Launch, monkeypatch: Any) -> None:
    compiled_by(monkeypatch, lambda graph: graph.forward)
    launch(compile_mode="default")
    called = []
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, *_: called.append(type(module).__name__)
    )
    try:
        for _ in range(3):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
    finally:
        hook.remove()
    assert called == ["Linear", "Sequential"] * 3


def test_hooks_and_a_forward_set_on_a_compiled_model_act(launch: Launch, monkeypatch: Any) -> None:
    compiled_by(monkeypatch, lambda graph: graph.forward)
    launch(compile_mode="default")
    called = []
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def called_in(steps: int) -> list[str]:
        called.clear()
        for _ in range(steps):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        return called

    assert called_in(2) == []
    first = model.register_forward_hook(lambda *_: called.append("first"))
    assert called_in(2) == ["first"] * 2
    model.register_forward_hook(lambda *_: called.append("second"))
    assert called_in(1) == ["first", "second"]
    first.remove()
    own = model.forward
    model.forward = lambda x: (called.append("forward"), own(x))[1]  # type: ignore[method-assign]
    assert called_in(2) == ["forward", "second"] * 2


def test_a_compiled_model_that_the_job_drops_is_gone(launch: Launch, monkeypatch: Any) -> None:
    compiled_by(monkeypatch, lambda graph: graph.forward)
    launch(compile_mode="default")

    def fold() -> Any:
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        return weakref.ref(model)

    folds = [fold() for _ in range(3)]
    gc.collect()
    assert [model() for model in folds] == [None] * 3


def test_gradients_outlive_the_cuda_graphs_that_made_them(launch: Launch, monkeypatch: Any) -> None:
    """A CPU frees nothing: check that ``.grad`` has moved once the graphs are reset."""
    compiled_by(monkeypatch, lambda graph: graph.forward)
    agent = launch(compile_mode="reduce-overhead")
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    held = [(p.grad, p.grad.data_ptr(), p.grad.clone()) for p in model.parameters()]
    agent.live.entries[0].set_compiled(None)
    for parameter, (gradient, at, value) in zip(model.parameters(), held, strict=True):
        assert (
            parameter.grad is gradient
            and gradient.data_ptr() != at
            and torch.equal(gradient, value)
        )


def test_a_function_of_the_jobs_own_that_clips_is_still_one_graph(launch: Launch) -> None:
    launch()
    model = nn.Linear(8, 8)
    model(torch.ones(4, 8)).square().mean().backward()

    @torch.compile(fullgraph=True, backend="eager")
    def clip_and_drop() -> torch.Tensor:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        model.zero_grad()
        return norm

    assert clip_and_drop() > 0 and model.weight.grad is None


# ------------------------------------------------------------ functions of torch that the job keeps


@pytest.mark.slow
def test_dynamo_imported_under_the_agent_knows_torchs_own_call(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, torch\n"
        "from autotune_trials.agent.core.agent import Agent\n"
        "from autotune_trials.protocol.messages import SessionConfig\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "own = torch.nn.Module.__call__\n"
        "agent = Agent(torch, SessionConfig('live', '.', warmup_steps=10**9))\n"
        "agent.install()\n"
        "assert torch.nn.Module.__call__ is not own\n"
        "import torch._dynamo\n"
        "assert torch._dynamo.utils.unpatched_nn_module_call is own\n"
        "assert torch._dynamo.variables.nn_module.unpatched_nn_module_call is own\n"
    )
    run_bare(tmp_path)


def test_functions_that_are_wrapped_travel_to_other_processes(tmp_path: Path) -> None:
    agent = Agent(torch, SessionConfig("launch", str(tmp_path), "", seed=1))
    agent.install()
    try:
        clips = (
            torch.nn.utils.clip_grad_norm_,
            torch.nn.utils.clip_grad_value_,
            torch.nn.utils.get_total_norm,
        )
        kept = pickle.dumps(
            [
                random.seed,
                numpy.random.seed,
                torch.random.manual_seed,
                torch.cuda.manual_seed_all,
                torch.compile,
                *clips,
            ]
        )
        assert pickle.loads(kept)[-3:] == list(clips)
    finally:
        agent.stop()
    # in a process without an agent
    assert pickle.loads(kept)[-3] is torch.nn.utils.clip_grad.clip_grad_norm_


# ------------------------------------------------------------------ copies of the model


def cloned(module: nn.Module) -> Any:
    """A module with new tensors, made from the dictionary like those of learn2learn and
    DataParallel.
    """
    clone = module.__new__(type(module))
    clone.__dict__ = module.__dict__.copy()
    clone._parameters = {name: p.clone() for name, p in module._parameters.items() if p is not None}
    clone._modules = {name: cloned(m) for name, m in module._modules.items() if m is not None}
    return clone


def test_a_clone_made_of_the_models_dictionary_computes_with_its_own_weights(
    launch: Launch,
) -> None:
    launch()
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(4, 8)
        loss = model(x).square().mean()
        clone = cloned(model)
        clone[0]._parameters["weight"].data.zero_()
        assert torch.equal(clone(x), clone[0].bias.expand(4, 8)) and torch.equal(
            clone.eval()(x), clone[0].bias.expand(4, 8)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 8) -> list[float]:
    """Losses of a classifier of 8x8 images."""
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        images, labels = torch.randn(16, 3, 8, 8), torch.randint(0, 4, (16,))
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.Flatten(),
        nn.Linear(288, 4),
    )


def adam(model: nn.Module, fused: bool | None = None) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 1e-2, fused=fused)


def test_momenta_from_a_checkpoint_are_laid_out_as_their_weights(launch: Launch) -> None:
    """torch's fused kernels take that for granted."""
    early = convolutions()
    before = adam(early)
    trained(early, before)
    saved = early.state_dict(), before.state_dict()

    def run() -> list[float]:
        model = convolutions()
        optimizer = adam(model)
        first = trained(model, optimizer, 3)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))  # it keeps the tensors
        return first + trained(model, optimizer)

    expected = run()
    launch(channels_last=True, optimizer_impl="fused")
    assert run() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("again", [True, False])
def test_so_are_those_of_an_optimizer_built_after_the_first_call(
    launch: Launch, again: bool
) -> None:
    """A second one that continues from the first, or the first after a call to check shapes."""
    early = convolutions()
    before = adam(early)
    trained(early, before)

    def run() -> list[float]:
        model = convolutions()
        first = trained(model, adam(model)) if again else [model(torch.randn(2, 3, 8, 8)).sum()]
        optimizer = adam(model)
        optimizer.load_state_dict(copy.deepcopy(before.state_dict()))
        assert all(state["exp_avg"].stride() == p.stride() for p, state in optimizer.state.items())
        losses = trained(model, optimizer)
        saved = optimizer.state_dict()["state"]
        assert all(state["exp_avg"].is_contiguous() for state in saved.values())
        return [*map(float, first), *losses]

    torch.manual_seed(1)
    expected = run()
    launch(channels_last=True, optimizer_impl="fused")
    torch.manual_seed(1)
    assert run() == pytest.approx(expected, rel=1e-4)


def test_a_checkpoint_of_a_tuned_job_continues_in_the_bare_one(launch: Launch) -> None:
    """Which asks for a fused optimizer itself."""

    def saved() -> tuple[Any, Any]:
        model = convolutions()
        optimizer = adam(model, fused=True)
        trained(model, optimizer)
        return copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    def continued(checkpoint: tuple[Any, Any]) -> list[float]:
        model = convolutions()
        optimizer = adam(model, fused=True)
        model.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(checkpoint[1])
        return trained(model, optimizer)

    expected = continued(saved())
    agent = launch(channels_last=True)
    of_tuned = saved()
    agent.stop()
    assert continued(of_tuned) == pytest.approx(expected, rel=1e-4)


def test_a_momentum_is_sound_after_a_first_step_that_the_jobs_scaler_skips(launch: Launch) -> None:
    """torch's fused SGD leaves it unwritten then."""

    def run() -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu")
        for step in range(4):
            loss = model(torch.randn(4, 8)).square().sum() * (1e37 if not step else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if not step:  # what a kernel leaves unwritten shows
                assert not optimizer.state or all(
                    s.get("momentum_buffer") is None for s in optimizer.state.values()
                )
        return [p.detach().double().sum().item() for p in model.parameters()]

    expected = run()
    launch(optimizer_impl="fused")
    assert run() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_the_dataset_computes_is_not_autocast(launch: Launch, workers: int) -> None:
    class Embedded(Dataset):
        def __init__(self) -> None:
            self.table = nn.Embedding.from_pretrained(torch.randn(50, 8))
            self.projection = torch.randn(8, 8)

        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.table(torch.tensor([index, index + 1])).mean(0) @ self.projection

    launch(amp_dtype="bfloat16")
    model = Layer()
    optimizer, kinds = torch.optim.SGD(model.parameters(), lr=0.1), set()
    for batch in DataLoader(Embedded(), batch_size=8, num_workers=workers):
        kinds.add(batch.dtype)
        optimizer.zero_grad()
        model(batch).float().square().mean().backward()
        optimizer.step()
    assert kinds == {torch.float32} and set(model.seen) == {torch.bfloat16}
