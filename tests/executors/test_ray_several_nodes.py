"""A torchrun job over two nodes: one plan for all ranks on both nodes, and every fault is reported
as what it is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ray_runs import Heard, left_behind, meanwhile, pids_in, processes_of, wait_until

from autotune.executors.base import FixedRun, SessionFailed
from autotune.executors.cluster.executor import RayExecutor
from autotune.job.load import load_job
from autotune_trials.protocol.messages import Block, KnobChoice
from autotune_trials.supervisor import procfs

pytestmark = [pytest.mark.ray, pytest.mark.faults]

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, node = dist.get_rank(), os.environ["GROUP_RANK"]
print(f"rank {rank} of {dist.get_world_size()} on node {node}", flush=True)
open(f"/dev/shm/{os.environ['NAMED']}-{rank}", "w").write(str(os.getpid()))
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(rank))
loader, steps = DataLoader(TensorDataset(x), batch_size=4), 0
for epoch in range(100_000):
    for (batch,) in loader:
        loss = (model(batch) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)
        steps += 1
        if rank == 1 and steps == int(os.environ.get("RAISES", "-1")):
            raise RuntimeError("planted on the second node")
"""
# Every rank sleeps to read a batch, which a worker hides: twice as fast, even on a busy machine.
READS = """
import time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        time.sleep(0.004)
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return x, x.sum() * 0.5

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Slow(), batch_size=8, shuffle=True)
    for x, y in (batch for _ in range(1000) for batch in loader):
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.03)
"""
PROVEN = """\
name: spread
command: torchrun --nproc-per-node 1 reads.py
env: {{OMP_NUM_THREADS: 1}}
search_space: {{num_workers: [0, 2]}}
executor: {{ray: {{address: "{address}", nodes_per_slot: 2}}}}
budget: {{minutes: 10, trials: 1}}
convergence: {{steps: 60}}
traces: none
tracking: {{uri: null}}
"""
JOB = """\
name: spread
command: torchrun --nproc-per-node 1 train.py
env: {{OMP_NUM_THREADS: 1, NAMED: "{named}"{env}}}
search_space: {{num_workers: [0, 1], batch_size: {{values: [4, 8], lr_scaling: none}}}}
executor: {{ray: {{address: "{address}", nodes_per_slot: 2}}}}
traces: none
tracking: {{uri: null}}
"""


@contextmanager
def executor_on(folder: Path, address: str, env: str = "") -> Iterator[RayExecutor]:
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    named = f"spread-{os.getpid()}-{folder.parent.name}"
    (folder / "job.yaml").write_text(JOB.format(address=address, env=env, named=named))
    told = Heard()
    executor = RayExecutor(
        load_job(folder / "job.yaml"), folder / "run", say=told.note, warn=told.warning
    )
    try:
        yield executor
    finally:
        executor.close()
        for left in Path("/dev/shm").glob(f"{named}-*"):
            left.unlink(missing_ok=True)
    assert left_behind(processes_of(executor)) == []


def block(name: str, **knobs: object) -> Block:
    return Block(name, tuple(KnobChoice(key, value, {}) for key, value in knobs.items()), 8)


def rank_pid(executor: RayExecutor, rank: int) -> int:
    return int(Path(f"/dev/shm/{executor.spec.env['NAMED']}-{rank}").read_text())


def test_one_plan_for_the_ranks_of_both_nodes(nodes, tmp_path: Path) -> None:
    nodes.only(2)
    with executor_on(tmp_path / "job", nodes.address) as executor:
        (slot,) = executor.lanes()
        assert len(slot.facts.others) == 1 and slot.facts.others[0].pid != slot.facts.pid
        with slot.open_live() as live:
            assert live.hello.job.world_size == 2
            reports = live.measure(
                [block("a"), block("b", batch_size=8), block("c", num_workers=1)]
            )
            assert [r.error for r in reports] == ["", "", ""]
            assert [sum(r.window.samples) / len(r.window.samples) for r in reports] == [
                8.0,
                16.0,
                8.0,
            ], "samples of both nodes' ranks"
            assert not any(r.no_effect for r in reports)
        first, second = (live.directory / part / "stdout.log" for part in (".", "node1"))
        assert (
            "rank 0 of 2 on node 0" in first.read_text()
            and "rank 1 of 2 on node 1" in second.read_text()
        )
        executor.loader_key = live.hello.job.loader.key
        record = slot.run_fixed(
            FixedRun({"batch_size": 8}, seed=1, steps=12, min_seconds=0.0, max_seconds=20.0)
        )
        assert set(record.window.samples) == {16.0} and len(record.losses) >= 12
        assert record.notes["ranks"] == 2 and record.notes["node"] == slot.node


def test_a_rank_on_the_second_node_raises(nodes, tmp_path: Path) -> None:
    nodes.only(2)
    with executor_on(tmp_path / "job", nodes.address, env=', RAISES: "100"') as executor:
        (slot,) = executor.lanes()
        with pytest.raises(SessionFailed) as failed, slot.open_live() as live:
            live.measure([Block("long", (), 400)])
        assert (
            failed.value.kind == "crash" and "planted on the second node" in failed.value.detail
        ), failed.value
        assert not slot.gone


def test_a_rank_on_the_second_node_is_killed(nodes, tmp_path: Path) -> None:
    nodes.only(2)
    with executor_on(tmp_path / "job", nodes.address) as executor:
        (slot,) = executor.lanes()
        with slot.open_live() as live:
            pid = rank_pid(executor, 1)
            with pytest.raises(SessionFailed) as failed:
                meanwhile(
                    lambda: live.measure([Block("long", (), 3000)]),
                    lambda: procfs.alive(pid),
                    lambda: os.kill(pid, signal.SIGKILL),
                )
        assert failed.value.kind in ("crash", "killed", "ended") and not slot.gone, failed.value
        with slot.open_live() as again:
            assert again.measure([block("a")])[0].error == ""


def test_the_second_node_is_gone_and_another_one_takes_its_place(nodes, tmp_path: Path) -> None:
    nodes.only(2)
    with executor_on(tmp_path / "job", nodes.address) as executor:
        (slot,) = executor.lanes()
        of_second = next(n for n in nodes.nodes if n.node_id == slot.place.others[0])

        def switched_off() -> None:
            nodes.nodes.remove(of_second)
            nodes.cluster.remove_node(of_second, allow_graceful=False)

        with slot.open_live() as live:
            pid = rank_pid(executor, 1)
            with pytest.raises(SessionFailed) as failed:
                meanwhile(
                    lambda: live.measure([Block("long", (), 20_000)]),
                    lambda: procfs.alive(pid),
                    switched_off,
                )
        assert failed.value.kind == "lost" and slot.gone
        assert not executor.lanes(), "one node alone is no slot"
        nodes.add()
        wait_until(lambda: executor.lanes())
        with executor.lanes()[0].open_live() as live:
            assert live.hello.job.world_size == 2


def test_three_nodes_are_one_slot_of_two(nodes, tmp_path: Path) -> None:
    nodes.only(3)
    with executor_on(tmp_path / "job", nodes.address) as executor:
        assert len(executor.lanes()) == 1
        about = executor.about()["executor"]["slots"]
        assert len(about) == 1 and len(next(iter(about.values()))["pids"]) == 2
        assert json.dumps(about)


@pytest.mark.timeout(900)
def test_a_run_over_two_nodes_ends_with_the_planted_verdict(nodes, tmp_path: Path) -> None:
    """The whole run: observe, search, and proof in fresh runs over both nodes, including each
    rank's losses.
    """
    nodes.only(2)
    (tmp_path / "reads.py").write_text(READS)
    (tmp_path / "job.yaml").write_text(PROVEN.format(address=nodes.address))
    done = subprocess.run(
        ["autotune", "run", "job.yaml", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "autotune-runs" / "spread" / "result.json").read_text())
    assert result["verdict"] == "tuned" and result["knobs"] == {"num_workers": 2}, result["reason"]
    assert result["speedup"]["low"] > 1.2 and result["loss"]["verdict"] == "unchanged"
    ((slot, facts),) = result["environment"]["executor"]["slots"].items()
    assert "+" in slot and len(facts["pids"]) == 2, "one slot, of two nodes"
    runs = [
        json.loads(path.read_text())
        for path in (tmp_path / "autotune-runs" / "spread" / "records").glob("confirm*.json")
    ]
    assert runs and all(run["notes"]["ranks"] == 2 and run["notes"]["node"] == slot for run in runs)
    assert left_behind(pids_in(result["environment"])) == []
