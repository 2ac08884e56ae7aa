"""Training loops of many styles, each run twice in this process: as it is, and with the agent's micro-batch. Prints JSON.

Run by test_agent_microbatch.py in a process of its own, because the agent patches torch. Names of styles after the directory: only these.
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
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autotune_trials.agent.controls.autocast import LossScaler
from autotune_trials.agent.core.agent import Agent
from autotune_trials.protocol.messages import SessionConfig

torch.set_num_threads(1)
agent = Agent(torch, SessionConfig(mode="live", directory=sys.argv[1], warmup_steps=10**9))
agent.install()
agent.loader_hooks.set_stretch = lambda on: None  # epochs end here, in both runs
passes: list[int] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        passes.append(len(x))
        return self.last(torch.relu(self.norm(self.first(x)))) * scale


class Growing(Dataset):
    """Sequences that are longer from batch to batch."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(i)
        return torch.randn(1 + i // 8, 8, generator=generator), i % 4


class Job:
    """Model, data and optimizer; ``switch`` is called when some steps are done."""

    def __init__(self, switch: Callable[[], None], data: Any = None, samples: int = 100, **loader: Any) -> None:
        torch.manual_seed(0)
        self.net, self.losses, self.steps, self._switch = Net(), [], 0, switch  # type: ignore[var-annotated]
        data = data or TensorDataset(torch.randn(samples, 8), torch.randint(0, 4, (samples,)))
        self.loader = DataLoader(data, **{"batch_size": 8, "shuffle": data.__class__ is TensorDataset, **loader})
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
        self.step_unclipped()

    def step_unclipped(self) -> None:
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


def accumulating(job: Job, call: Callable[[Job, Any], Any] = lambda job, x: job.net(x), every: int = 4) -> None:
    for i, x, y in job.batches():
        job.backward(cross_entropy(call(job, x), y) / every)
        if (i + 1) % every == 0:
            job.step()


def in_place_on_outputs(job: Job) -> None:
    accumulating(job, lambda job, x: job.net(x).mul_(0.5))


def by_name(job: Job) -> None:
    accumulating(job, lambda job, x: job.net(x=x, scale=0.7))


def penalty(job: Job) -> None:
    """A loss that reaches the parameters beside the model, and adds up what it is given."""
    for i, x, y in job.batches():
        job.backward(cross_entropy(job.net(x), y, reduction="sum") + sum(p.square().sum() for p in job.net.parameters()))
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


def evaluating(job: Job) -> None:
    for i, x, y in job.batches():
        job.backward(cross_entropy(job.net(x), y) / 4)
        if i % 3 == 1:
            job.net.eval()
            with torch.no_grad():
                job.losses += [cross_entropy(job.net(a), b).item() for a, b in job.loader]
            job.net.train()
        if (i + 1) % 4 == 0:
            job.step()


def one_ahead(job: Job) -> None:
    """As accelerate's loader does: the next batch is fetched before this one is used."""
    for _ in range(4):
        iterator = iter(job.loader)
        here, i = next(iterator, None), 0
        while here is not None:
            there, (x, y), i = next(iterator, None), here, i + 1
            job.backward(cross_entropy(job.net(x), y) / 4)
            if i % 4 == 0:
                job.step()
            here = there


def views(job: Job) -> None:
    accumulating(job, lambda job, x: job.net(x.view(len(x), 2, 4).flatten(1)[:, :8].to("cpu")))


def converted(job: Job) -> None:
    accumulating(job, lambda job, x: job.net(x * 1.0))


def in_place_on_inputs(job: Job) -> None:
    accumulating(job, lambda job, x: job.net(x.mul_(2.0)))


def behind_the_counter(job: Job) -> None:
    """Changes its batches where no version counter sees it."""
    def call(job: Job, x: torch.Tensor) -> Any:
        x.numpy()[:] *= 2.0
        return job.net(x)

    accumulating(job, call)


def twice_a_batch(job: Job) -> None:
    accumulating(job, lambda job, x: job.net(x) + job.net(x))


def two_backwards(job: Job) -> None:
    for i, x, y in job.batches():
        out = job.net(x)
        job.losses.append(cross_entropy(out, y).item())
        (cross_entropy(out, y) / 8).backward(retain_graph=True)
        (out.square().mean() / 8).backward()
        if (i + 1) % 4 == 0:
            job.step()


def clipping_always(job: Job) -> None:
    """Clips what has been accumulated so far after each batch: other weights than with one clip a step."""
    for i, x, y in job.batches():
        job.backward(cross_entropy(job.net(x), y) / 4)
        nn.utils.clip_grad_norm_(job.net.parameters(), 0.1)
        if (i + 1) % 4 == 0:
            job.step()


def hooked_gradients(job: Job) -> None:
    for p in job.net.parameters():
        p.register_hook(lambda g: g.clamp(-0.01, 0.01))
    accumulating(job)


def own_gradients(job: Job) -> None:
    weights = list(job.net.parameters())
    for i, x, y in job.batches():
        loss = cross_entropy(job.net(x), y)
        norm = sum(g.norm() for g in torch.autograd.grad(loss, weights, retain_graph=True)).item()
        job.backward(loss / (4 + norm))
        if (i + 1) % 4 == 0:
            job.step()
    agent.own_gradients = False  # so that the next style is not taken for this one


def stepping_early(job: Job) -> None:
    """Four batches a step, then two: nobody can know."""
    seen = 0
    for _, x, y in job.batches():
        job.backward(cross_entropy(job.net(x), y) / 4)
        seen += 1
        if seen == (4 if job.steps < 8 else 2):
            job.step()
            seen = 0


def wrapped(job: Job) -> None:
    """DistributedDataParallel of one process; the gradients are exchanged once a step."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/rendezvous", rank=0, world_size=1)
    net = nn.parallel.DistributedDataParallel(job.net)
    for i, x, y in job.batches():
        last = (i + 1) % 4 == 0
        with contextlib.nullcontext() if last else net.no_sync():
            job.backward(cross_entropy(net(x), y) / 4)
        if last:
            job.step()


def wrapped_plainly(job: Job) -> None:
    """The same with an exchange after every batch."""
    net = nn.parallel.DistributedDataParallel(job.net)
    accumulating(job, lambda job, x: net(x))


def stepping_early_unclipped(job: Job) -> None:
    job.step = job.step_unclipped  # type: ignore[method-assign]
    stepping_early(job)


def clipping_always_scaled(job: Job) -> None:
    """Under the agent's own scaler for float16, whose scale no gradient of the job's must be left with."""
    agent.live.scaler = LossScaler(torch, 1024.0)
    clipping_always(job)
    agent.live.scaler = None


def stepping_early_scaled(job: Job) -> None:
    agent.live.scaler = LossScaler(torch, 1024.0)
    stepping_early_unclipped(job)
    agent.live.scaler = None


def stepping_early_own_scaler(job: Job) -> None:
    """The job's GradScaler unscales before the optimizer steps."""
    scaler, seen = torch.amp.GradScaler("cpu", init_scale=1024.0), 0
    for _, x, y in job.batches():
        loss = cross_entropy(job.net(x), y) / 4
        job.losses.append(loss.item())
        scaler.scale(loss).backward()
        seen += 1
        if seen == (4 if job.steps < 8 else 2):
            scaler.step(job.optimizer)
            scaler.update()
            job.optimizer.zero_grad()
            job.steps += 1
            seen = 0
            if job.steps == 3:
                job._switch()


def dropping(job: Job) -> None:
    """Some batches of a step are thrown away again, with what came before them."""
    for i, x, y in job.batches():
        if i % 4 == 0:
            job.optimizer.zero_grad()
        job.backward(cross_entropy(job.net(x), y) / 4)
        if job.steps >= 8 and i % 4 == 1:
            job.net.zero_grad()
        if (i + 1) % 4 == 0:
            job.step()


def emptied_late(job: Job) -> None:
    """Gradients are emptied after forward and before backward, once a step."""
    for i, x, y in job.batches():
        loss = cross_entropy(job.net(x), y) / 4
        if i % 4 == 0:
            job.optimizer.zero_grad()
        job.backward(loss)
        if (i + 1) % 4 == 0:
            job.step()


def balanced(job: Job, loop: Callable[[Job], None] = plain) -> None:
    class Experts(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return Balanced.apply(y, y.mean(0).square().sum())

    job.net.__class__ = Experts
    loop(job)


def checkpointed(job: Job) -> None:
    """The whole model is computed again in backward."""
    for _, x, y in job.batches():
        job.backward(cross_entropy(checkpoint(job.net, x, use_reentrant=False), y))
        job.step()


def two_backwards_later(job: Job) -> None:
    """One backward call a batch, then two, of which the second finds the merged pass gone."""
    for i, x, y in job.batches():
        out = job.net(x)
        job.backward(cross_entropy(out, y) / 8)
        if job.steps >= 8:
            (out.square().mean() / 8).backward()
        if (i + 1) % 4 == 0:
            job.step()


def left_early(job: Job) -> None:
    """The agent steps aside in the middle of a group, between forward and backward."""
    def call(job: Job, x: Any) -> Any:
        out = job.net(x)
        if job.steps == 8:
            agent.live.set_micro_batch(None)
        return out

    accumulating(job, call)


STYLES: dict[str, tuple[Callable[[Job], None], int, dict[str, Any]]] = {  # name -> (loop, micro-batch, the job's own)
    "plain split": (plain, 4, {}),
    "uneven split": (plain, 3, {}),
    "accumulating split": (accumulating, 4, {}),
    "accumulating": (accumulating, 32, {}),
    "accumulating, half": (accumulating, 16, {}),
    "accumulating, uneven": (accumulating, 24, {"samples": 96}),
    "accumulating in workers": (accumulating, 32, {"num_workers": 1}),
    "outputs changed in place": (in_place_on_outputs, 32, {}),
    "by name": (by_name, 32, {}),
    "views": (views, 32, {}),
    "wrapped": (wrapped, 32, {}),
    "wrapped split": (wrapped, 4, {}),
    "wrapped, exchanging": (wrapped_plainly, 32, {}),
    "penalty": (penalty, 32, {}),
    "contrastive": (contrastive, 4, {}),
    "closure": (closure, 4, {}),
    "closure, larger": (closure, 32, {}),
    "evaluating": (evaluating, 32, {}),
    "one ahead": (one_ahead, 32, {}),
    "growing": (lambda job: accumulating(job, lambda job, x: job.net(x).mean(1)), 32, {"data": Growing()}),
    "converted": (converted, 32, {}),
    "inputs changed in place": (in_place_on_inputs, 32, {}),
    "inputs changed unseen": (behind_the_counter, 32, {}),
    "twice a batch": (twice_a_batch, 32, {}),
    "two backwards": (two_backwards, 32, {}),
    "clipping always": (clipping_always, 32, {}),
    "hooked gradients": (hooked_gradients, 32, {}),
    "own gradients": (own_gradients, 32, {}),
    "own gradients split": (own_gradients, 4, {}),
    "stepping early": (stepping_early, 32, {}),
    "stepping early, unclipped": (stepping_early_unclipped, 32, {}),
    "clipping always, scaled": (clipping_always_scaled, 32, {}),
    "stepping early, scaled": (stepping_early_scaled, 32, {}),
    "stepping early, own scaler": (stepping_early_own_scaler, 32, {}),
    "dropping": (dropping, 32, {}),
    "emptied late": (emptied_late, 32, {}),
    "balanced": (lambda job: balanced(job, accumulating), 32, {}),
    "balanced split": (balanced, 4, {}),
    "checkpointed split": (checkpointed, 4, {}),
    "two backwards later": (two_backwards_later, 32, {}),
    "left early": (left_early, 32, {}),
}


def run(name: str, size: int | None) -> dict[str, Any]:
    loop, _, own = STYLES[name]
    passes.clear()
    agent.knobs.failure = ""
    job = Job(lambda: agent.live.set_micro_batch(size), **own)
    loop(job)
    found = {
        "losses": job.losses, "steps": job.steps, "passes": list(passes), "failure": agent.knobs.failure,
        "parameters": [p.detach().flatten().tolist() for p in job.net.parameters()],
        "average": [p.flatten().tolist() for p in job.average], "effect": agent.live.micro_batch_effect(),
    }  # fmt: skip
    agent.live.set_micro_batch(None)
    return found


report = {name: {"alone": run(name, None), "micro": run(name, STYLES[name][1])} for name in sys.argv[2:] or STYLES}
print(json.dumps({"stopped": agent.stopped, **report}))
