"""Training loops of many styles, each run twice in this process: as it is, and with the agent's
micro-batch. Prints JSON.

Run by test_agent_microbatch.py in a process of its own, because the agent patches torch. Names of
styles after the directory: only these.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from balanced_loss import Balanced
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from autotune_trials.agent.core.agent import Agent
from autotune_trials.protocol.messages import SessionConfig

torch.set_num_threads(1)
agent = Agent(torch, SessionConfig(mode="live", directory=sys.argv[1], warmup_steps=10**9))
agent.install()
agent.loaders.set_stretch = lambda on: None  # epochs end here, in both runs
passes: list[int] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        passes.append(len(x))
        return self.last(torch.relu(self.norm(self.first(x))))


class Job:
    """Model, data and optimizer; ``switch`` is called when some steps are done."""

    def __init__(self, switch: Callable[[], None]) -> None:
        torch.manual_seed(0)
        self.net, self.losses, self.steps, self._switch = Net(), [], 0, switch  # type: ignore[var-annotated]
        data = TensorDataset(torch.randn(100, 8), torch.randint(0, 4, (100,)))
        self.loader = DataLoader(data, batch_size=8, shuffle=True)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.average = [p.detach().clone() for p in self.net.parameters()]

    def batches(self, epochs: int = 4) -> Iterator[tuple[int, Any, Any]]:
        for _ in range(epochs):
            for i, (x, y) in enumerate(self.loader):
                yield i, x, y

    def backward(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())
        loss.backward(retain_graph=True)

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.3)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        with torch.no_grad():
            for mean, p in zip(self.average, self.net.parameters(), strict=True):
                mean.lerp_(p, 0.1)
        if self.steps == 3:
            self._switch()


def plain(job: Job) -> None:
    for _, x, y in job.batches():
        job.backward(cross_entropy(job.net(x), y))
        job.step()


def accumulating(job: Job) -> None:
    for i, x, y in job.batches():
        job.backward(cross_entropy(job.net(x), y) / 4)
        if (i + 1) % 4 == 0:
            job.step()


def contrastive(job: Job) -> None:
    for _, x, _y in job.batches():
        z = nn.functional.normalize(job.net(x), dim=1)
        job.backward(cross_entropy(z @ z.T / 0.1, torch.arange(len(x))))
        job.step()


def closure(job: Job) -> None:
    """LBFGS calls the model several times a step, on the same batch."""
    optimizer = torch.optim.LBFGS(job.net.parameters(), lr=0.1, max_iter=3)
    for _, x, y in job.batches(2):

        def once(x: Any = x, y: Any = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(job.net(x), y)
            job.backward(loss)
            return loss

        optimizer.step(once)
        job.steps += 1
        if job.steps == 3:
            job._switch()


def own_gradients(job: Job) -> None:
    weights = list(job.net.parameters())
    for i, x, y in job.batches():
        loss = cross_entropy(job.net(x), y)
        norm = sum(g.norm() for g in torch.autograd.grad(loss, weights, retain_graph=True)).item()
        job.backward(loss / (4 + norm))
        if (i + 1) % 4 == 0:
            job.step()


def wrapped(job: Job) -> None:
    """DistributedDataParallel of one process; the gradients are exchanged once a step."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{sys.argv[1]}/rendezvous", rank=0, world_size=1
        )
    net = nn.parallel.DistributedDataParallel(job.net)
    for i, x, y in job.batches():
        last = (i + 1) % 4 == 0
        with contextlib.nullcontext() if last else net.no_sync():
            job.backward(cross_entropy(net(x), y) / 4)
        if last:
            job.step()


def balanced(job: Job) -> None:
    class Experts(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return Balanced.apply(y, y.mean(0).square().sum())

    job.net.__class__ = Experts
    plain(job)


def checkpointed(job: Job) -> None:
    """The whole model is computed again in backward."""
    for _, x, y in job.batches():
        job.backward(cross_entropy(checkpoint(job.net, x, use_reentrant=False), y))
        job.step()


STYLES: dict[str, tuple[Callable[[Job], None], int]] = {  # name -> (loop, micro-batch)
    "plain": (plain, 4),
    "uneven": (plain, 3),
    "accumulating": (accumulating, 4),
    "contrastive": (contrastive, 4),
    "closure": (closure, 4),
    "wrapped": (wrapped, 4),
    "own gradients": (own_gradients, 4),
    "checkpointed": (checkpointed, 4),
    "balanced": (balanced, 4),
    "larger than the batch": (accumulating, 32),
}


def run(name: str, size: int | None) -> dict[str, Any]:
    loop, _ = STYLES[name]
    passes.clear()
    agent.knobs.take_failures()
    job = Job(lambda: agent.live.control("micro_batch").set(size))
    loop(job)
    found = {
        "losses": job.losses,
        "steps": job.steps,
        "passes": list(passes),
        "failure": "; ".join(agent.knobs.failures),
        "parameters": [p.detach().flatten().tolist() for p in job.net.parameters()],
        "average": [p.flatten().tolist() for p in job.average],
        "effect": agent.live.control("micro_batch").effect(),
    }
    agent.live.control("micro_batch").set(None)
    return found


report = {
    name: {"alone": run(name, None), "micro": run(name, STYLES[name][1])}
    for name in sys.argv[2:] or STYLES
}
print(json.dumps({"stopped": agent.state.stopped, **report}))
