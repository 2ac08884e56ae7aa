"""Outputs of the model that the job keeps: replayed CUDA graphs would overwrite them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.knobs import create
from autotune_trials.agent.core.agent import Agent
from autotune_trials.agent.facts.job_facts import job_facts
from autotune_trials.protocol.messages import SessionConfig


@pytest.mark.parametrize(
    ("kept", "expected"), [("outputs", True), ("losses", False), ("clones", False), ("", False)]
)
def test_they_are_seen_in_warm_up(tmp_path: Path, kept: str, expected: bool) -> None:
    agent = Agent(torch, SessionConfig("live", str(tmp_path), "", warmup_steps=10))
    agent.install()
    try:
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        collected: list[Any] = []
        for _ in range(6):
            out = model(torch.ones(2, 8))
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found = {"outputs": out.detach(), "losses": loss.detach(), "clones": out.clone()}
            collected += [found[kept]] if kept else []
        assert job_facts(agent).keeps_outputs is expected
    finally:
        agent.stop()


def test_outputs_that_cannot_be_followed_count_as_kept(tmp_path: Path) -> None:
    agent = Agent(torch, SessionConfig("live", str(tmp_path), "", warmup_steps=10))
    agent.install()
    try:
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        assert not job_facts(agent).keeps_outputs
        torch.func.grad(lambda p: torch.func.functional_call(model, p, (torch.ones(2, 8),)).sum())(
            parameters
        )
        assert job_facts(agent).keeps_outputs
    finally:
        agent.stop()


def test_then_no_mode_with_cuda_graphs_is_offered() -> None:
    machine = Machine(8, 64.0, 8.0, "cuda", "H100", "2.13", "3.11", compute_capability=(9, 0))
    knob = create("compile_mode")
    for keeps, words in ((False, None), (True, "overwrite the model's outputs")):
        job = JobFacts(1, "cuda", None, (), (), keeps_outputs=keeps)
        why = knob.unusable("reduce-overhead", machine, job)
        assert why is None if words is None else words in (why or "")
