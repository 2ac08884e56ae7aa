"""Two ranks of a distributed job execute one plan in lockstep."""

from __future__ import annotations

import os
import socket
from typing import Any, BinaryIO

import pytest
from tiny_tuner import JobProcess, Tuner, block

from autotune_trials.agent.facts import ranks
from autotune_trials.protocol.messages import Fault, Plan, Progress, dump, load

DDP = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.set_num_threads(1); torch.manual_seed(0)
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x, y in loader:
        out = model(x)
        loss = (out.float() - y).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read(rank: BinaryIO) -> Any:
    """The next message that is not a heartbeat."""
    message = load(rank.readline())
    return read(rank) if isinstance(message, Progress) else message


def test_a_rank_is_known_after_the_job_has_left_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that a program spawns itself have no RANK in their environment."""
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ranks, "_last_known", (0, 1))
    assert (ranks.rank(torch), ranks.world_size(torch)) == (0, 1)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        assert ranks.world_size(torch) == 2
    finally:
        torch.distributed.destroy_process_group()
    assert (ranks.rank(torch), ranks.world_size(torch)) == (1, 2)


@pytest.mark.slow
def test_two_ranks_switch_at_the_same_iteration(tuner: Tuner) -> None:
    port = str(free_port())
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    tuner.start(DDP, env={**env, "RANK": "0"})
    variables = {**os.environ, **tuner.environment, **env, "RANK": "1"}
    second = JobProcess(tuner.directory, variables)
    try:
        ranks = [tuner.accept(60).makefile("rwb") for _ in range(2)]
        hellos = [load(r.readline()) for r in ranks]
        assert sorted(h.rank for h in hellos) == [0, 1] and all(
            h.job.world_size == 2 for h in hellos
        )
        assert all("gloo" in h.job.backend for h in hellos)
        plan = Plan(
            1,
            (
                block("b", 5, _min_settle=3),
                block("c", 5, _min_settle=4, amp_dtype="bfloat16"),
                block("b2", 5),
            ),
        )
        for rank in ranks:
            rank.write(dump(plan))
            rank.flush()
        reports = [[read(rank) for _ in range(4)] for rank in ranks]
    finally:
        second.kill()
        second.communicate()
    for mine in reports:
        assert [r.id for r in mine[:3]] == ["b", "c", "b2"] and type(mine[3]).__name__ == "PlanDone"
        assert [r.settle_iterations for r in mine[:3]] == [3 + 8, 4 + 8, 2 + 8]
        assert all(len(r.window.times_s) == 5 and r.error == "" for r in mine[:3])


WITH_WORKERS = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
class Numbers(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i): return torch.tensor([float(i)])
torch.set_num_threads(1); torch.manual_seed(0)
dist.init_process_group("gloo")
data = Numbers()
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False), num_workers=1, prefetch_factor=3)
model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
with open(f"seen{os.environ['RANK']}", "w") as file:
    for x in loader:
        print(int(x[0]) // 4, file=file, flush=True)  # the same number on both ranks
        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
"""


@pytest.mark.slow
def test_ranks_throw_the_same_batches_away(tuner: Tuner) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    tuner.start(WITH_WORKERS, env={**env, "RANK": "0"})
    variables = {**os.environ, **tuner.environment, **env, "RANK": "1"}
    second = JobProcess(tuner.directory, variables)
    try:
        ranks = [tuner.accept(60).makefile("rwb") for _ in range(2)]
        assert all(type(read(r)).__name__ == "Hello" for r in ranks)
        for rank in ranks:
            rank.write(dump(Plan(1, (block("b", 5), block("c", 5)))))
            rank.flush()
        reports = [[read(rank) for _ in range(3)] for rank in ranks]
    finally:
        second.kill()
        second.communicate()
    assert all(r.error == "" and len(r.window.times_s) == 5 for mine in reports for r in mine[:2])
    mine, theirs = (
        [int(n) for n in (tuner.directory / f"seen{rank}").read_text().split()] for rank in (0, 1)
    )
    assert mine == theirs
    # once per block
    assert [b - a for a, b in zip(mine, mine[1:], strict=False) if b - a > 1] == [1 + 3] * 2


def test_a_context_for_uneven_inputs_is_refused_and_the_job_goes_on(tuner: Tuner) -> None:
    """There the ranks take different numbers of steps, and would wait for each other for ever."""
    source = """
import torch, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
from autotune_trials.agent.facts import ranks
ranks._place = lambda torch: (0, 2)  # it has one
with model.join():
    for _ in range(8):
        optimizer.zero_grad(); model(torch.randn(4, 8)).mean().backward(); optimizer.step()
print("trained")
"""
    tuner.start(source, "fixed", {})
    fault = tuner.receive()
    assert isinstance(fault, Fault) and fault.unhooked and "uneven inputs" in fault.text
    tuner.close_connection()
    assert tuner.finish()[:2] == (0, "trained\n")
