"""Two real ranks under torchrun in one session: they switch together, are counted together, and
fail together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from ddp_job import built, log, steps_of, total_samples

from autotune_spaces.knobs import get
from autotune_trials.diagnosis import oom_kills
from autotune_trials.protocol.messages import Block, KnobChoice, SessionConfig
from autotune_trials.session.session import Session, SessionFailed

pytestmark = pytest.mark.usefixtures("nothing_is_left")

Start = Callable[..., Session]
QUICK_S = 20.0  # no timeout was needed: the hang timeout is 60 s


def block(name: str, iterations: int = 10, **knobs: Any) -> Block:
    return Block(name, tuple(KnobChoice(k, v) for k, v in knobs.items()), iterations, min_settle=3)


def failure_of(work: Callable[..., Any], *args: Any) -> tuple[SessionFailed, float]:
    began = time.monotonic()
    with pytest.raises(SessionFailed) as caught:
        work(*args)
    return caught.value, time.monotonic() - began


def line_of(session: Session, text: str) -> str:
    lines = (session.workdir / "train.py").read_text().splitlines()
    return f"train.py:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_all_ranks_switch_and_then_one_runs_out_of_memory(start: Start) -> None:
    """One session for everything that needs two healthy ranks, ended by the fault that is most
    likely in a search.
    """
    forward = "if len(x) >= 32 and rank == 1: raise MemoryError('32 samples do not fit')"
    session = start(job={"forward": forward})
    hello = session.wait_hello()
    assert (hello.job.world_size, hello.job.samples_per_step) == (2, 16.0)
    assert hello.job.local_world_size == 2
    assert hello.job.loader is not None and hello.job.loader.rank_samples == (128, 128)
    assert [d.site for d in hello.job.ddp] == [line_of(session, "DistributedDataParallel(Model()")]
    blocks = [
        block("own"),
        block("more", num_workers=1, amp_dtype="bfloat16", batch_size=16),
        block("again"),
    ]
    reports = session.run_plan(blocks)
    assert [r.window.samples for r in reports] == [(16.0,) * 10, (32.0,) * 10, (16.0,) * 10]
    assert all(not r.error and not r.no_effect and r.notes["ranks"] == 2 for r in reports)
    mine, theirs = ([s.samples for s in steps_of(log(session.paths.root), rank)] for rank in (0, 1))
    both = min(len(mine), len(theirs))
    assert mine[:both] == theirs[:both] and set(mine[:both]) == {8, 16}
    # the loss of a block is what the job itself would log: the mean over both ranks
    own = [s.mean_loss for s in steps_of(log(session.paths.root))]
    [alone] = session.run_plan([block("loss", iterations=4)])
    measured = [s.mean_loss for s in steps_of(log(session.paths.root))][len(own) :][-4:]
    assert alone.notes["loss"] == pytest.approx(sum(measured) / 4, rel=1e-5)

    failure, took_s = failure_of(session.run_plan, [block("large", batch_size=64)])
    assert (
        failure.kind == "oom"
        and "rank 1" in failure.detail
        and "32 samples do not fit" in failure.detail
    )
    assert failure.where == line_of(session, "do not fit")
    assert took_s < QUICK_S


@pytest.mark.slow
def test_a_rank_that_survives_its_own_out_of_memory_keeps_nobody_waiting(start: Start) -> None:
    """The job catches the error and goes on with its next batch, while the other rank waits for the
    gradients of the failed one.
    """
    program_fault = {
        "before": "\n            ".join(
            [
                "if len(x) >= 32 and rank == 1:",
                "    try: model(x * float('nan') if False else x)",
                "    except MemoryError: time.sleep(300)",
            ]
        ),
        "forward": "if len(x) >= 32 and rank == 1: raise MemoryError('no room')",
    }
    session = start(job=program_fault)
    session.wait_hello()
    failure, took_s = failure_of(session.run_plan, [block("large", batch_size=32)])
    assert failure.kind == "oom" and "rank 1" in failure.detail and took_s < QUICK_S


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_crash_is_told_with_the_traceback_of_the_rank_that_crashed(
    start: Start, rank: int
) -> None:
    session = start(job={"after": f"if n == 60 and rank == {rank}: raise KeyError('bad sample')"})
    session.wait_hello()
    failure, took_s = failure_of(session.run_plan, [block("b", iterations=1000)])
    assert failure.kind == "crash" and failure.detail == f"rank {rank}: KeyError: 'bad sample'"
    assert failure.where == line_of(session, "bad sample")
    assert (
        failure.log_tail.startswith("Traceback")
        and "bad sample" in failure.log_tail
        and "by peer" not in failure.log_tail
    )
    assert took_s < QUICK_S


@pytest.mark.slow
def test_a_rank_that_dies_without_a_word_is_named(start: Start) -> None:
    session = start(job={"after": "if n == 60 and rank == 1: os.kill(os.getpid(), 11)"})
    session.wait_hello()
    failure, took_s = failure_of(session.run_plan, [block("b", iterations=1000)])
    assert (
        failure.kind == "crash" and "rank 1 ended by SIGSEGV" in failure.detail and took_s < QUICK_S
    )


@pytest.mark.slow
def test_an_error_before_the_first_step_is_the_traceback_of_that_rank(start: Start) -> None:
    session = start(job={"before": "if rank == 1: raise ValueError('no such shard')"})
    failure, _ = failure_of(session.wait_hello)
    assert failure.kind == "crash" and failure.detail == "rank 1: ValueError: no such shard"


@pytest.mark.slow
def test_a_hang_is_told_with_the_stacks_of_all_ranks(start: Start) -> None:
    session = start(job={"after": "if n == 60 and rank == 1: time.sleep(300)"}, hang_timeout_s=3.0)
    session.wait_hello()
    failure, took_s = failure_of(session.run_plan, [Block("b", (), 1000, max_seconds=2.0)])
    assert (
        failure.kind == "hang"
        and "the other processes seem to be waiting for rank 1" in failure.detail
    )
    assert failure.where == line_of(session, "time.sleep(300)")
    assert "rank 1:" in failure.log_tail and "rank 0 (waits for others):" in failure.log_tail
    assert (
        len([p for p in session.paths.root.glob("stacks-*.txt") if "train.py" in p.read_text()])
        == 2
    )
    assert took_s < 40


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 60])
def test_torchruns_restarts_do_not_make_a_failed_trial_look_alive(start: Start, step: int) -> None:
    """Restarted ranks would keep training as if nothing had happened."""
    fault = (
        f"if n == {step} and rank == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': raise"
        " ValueError('only once')"
    )
    session = start(job={"before": fault}, options=("--max-restarts", "3"))
    failure, _ = failure_of(
        lambda: (session.wait_hello(), session.run_plan([block("b", iterations=1000)]))
    )
    assert (
        failure.kind == "crash"
        and "only once" in failure.detail
        and failure.where == line_of(session, "only once")
    )


@pytest.mark.slow
def test_a_restart_that_nobody_announced_ends_the_session_too(start: Start) -> None:
    fault = (
        "if n == 1 and rank == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':"
        " os.kill(os.getpid(), 9)"
    )
    session = start(job={"before": fault}, options=("--max-restarts", "3"))
    failure, _ = failure_of(session.wait_hello)
    # not killed by us
    assert failure.kind == ("oom" if oom_kills.on_machine() is None else "killed"), failure


@pytest.mark.slow
def test_accumulation_under_no_sync_is_counted_as_the_job_counts_it(start: Start) -> None:
    config = SessionConfig("fixed", "", steps=30)
    # 17 batches per rank: the last one, of 4 samples, goes into the next step
    session = start(job={"accumulate": 4, "samples": 264}, config=config)
    hello = session.wait_hello()
    record = session.wait_record()
    assert hello.job.backwards_per_step == pytest.approx(4, abs=0.5)
    text = log(session.paths.root)
    assert list(record.losses) == pytest.approx(
        [s.mean_loss for s in steps_of(text)][: len(record.losses)], rel=1e-5
    )
    assert list(record.window.samples)[:5] == [64.0] * 4 + [72.0]
    assert list(record.window.samples) == [float(n) for n in total_samples(text)][:30]


@pytest.mark.slow
def test_ranks_end_their_window_together_when_time_is_asked_for(start: Start) -> None:
    session = start(
        config=SessionConfig("fixed", "", steps=40, min_seconds=3.0, max_seconds=60.0, seed=0),
        job={"after": "time.sleep(0.01)"},
    )
    session.wait_hello()
    record = session.wait_record()
    assert len(record.losses) > 60 and sum(record.window.times_s) > 2.0
    text = log(session.paths.root)
    assert len(steps_of(text, 0)) == len(steps_of(text, 1)) == len(record.losses)
    assert list(record.losses) == pytest.approx([s.mean_loss for s in steps_of(text)], rel=1e-5)
    assert list(record.window.samples) == [float(n) for n in total_samples(text)]


@pytest.mark.slow
def test_uneven_last_batches_are_counted_as_they_are(start: Start) -> None:
    """101 samples: each rank gets 51 from the sampler, which is 6 batches of 8 and one of 3; with a
    batch size of 16, 3 batches and one of 3.
    """
    key = ""
    for size, last in ((8, 3), (16, 3)):
        config = SessionConfig(
            "fixed",
            "",
            steps=20,
            loader_key=key,
            knobs=(KnobChoice("batch_size", size),) if size != 8 else (),
        )
        session = start(job={"samples": 101}, config=config)
        loader = session.wait_hello().job.loader
        assert loader is not None and loader.rank_samples == (51, 51)
        key = loader.key
        record = session.wait_record()
        session.close()
        epoch = -(-51 // size)
        assert record.window.samples[:epoch] == (*(2.0 * size,) * (epoch - 1), 2.0 * last)
        assert record.window.epoch_iterations == epoch
        assert (
            list(record.window.samples)
            == [float(n) for n in total_samples(log(session.paths.root))][:20]
        )
        assert list(record.losses) == pytest.approx(
            [s.mean_loss for s in steps_of(log(session.paths.root))][:20], rel=1e-5
        )


@pytest.mark.slow
def test_a_knob_that_one_rank_alone_cannot_set_costs_its_block_and_no_other(start: Start) -> None:
    session = start(
        job={
            "before": (
                "if n == 1 and rank == 1: torch.set_num_threads = lambda count: 1 / (count - 2)"
            )
        }
    )
    session.wait_hello()
    failed, larger, smaller = session.run_plan(
        [
            block("c", iterations=30, intra_op_threads=2),
            block("d", iterations=30, batch_size=16),
            block("e", iterations=30, batch_size=4),
        ]
    )
    session.close()
    assert failed.window is None and failed.error.startswith("knob: rank 1: ZeroDivisionError")
    assert larger.window is not None and smaller.window is not None
    mine, theirs = ([s.samples for s in steps_of(log(session.paths.root), r)] for r in (0, 1))
    assert all(a == b for a, b in zip(mine, theirs, strict=False)), "the ranks at other settings"


ALWAYS_UNUSED = "return self.net[4](self.net[0](x).relu())"
SOMETIMES_UNUSED = (
    "self.n = getattr(self, 'n', 0) + 1; return self.net(x) if self.n % 2 else"
    " self.net[4](self.net[0](x).relu())"
)


@pytest.mark.slow
def test_a_graph_that_changes_is_told_from_one_that_does_not(start: Start) -> None:
    for forward, static in ((SOMETIMES_UNUSED, False), (ALWAYS_UNUSED, True)):
        session = start(job={"forward": forward, "ddp": "find_unused_parameters=True"})
        [facts] = session.wait_hello().job.ddp
        assert facts.find_unused_parameters and facts.seen_static is static
        session.close()


@pytest.mark.slow
def test_the_arguments_of_distributed_data_parallel_leave_the_losses_as_they_were(
    start: Start,
) -> None:
    losses = []
    for chosen in (
        {},
        {"ddp_bucket_cap_mb": 1, "gradient_as_bucket_view": True, "static_graph": True},
    ):
        overrides = {
            name: text
            for knob, value in chosen.items()
            for name, text in get(knob).environment(value).items()
        }
        config = SessionConfig(
            "fixed",
            "",
            steps=40,
            seed=0,
            process_knobs=tuple(KnobChoice(k, v) for k, v in chosen.items()),
        )
        session = start(
            job={"forward": ALWAYS_UNUSED, "ddp": "find_unused_parameters=True"},
            config=config,
            overrides=overrides,
        )
        [facts] = session.wait_hello().job.ddp
        # the job's own settings
        assert (facts.bucket_cap_mb, facts.gradient_as_bucket_view, facts.static_graph) == (
            None,
            False,
            False,
        )
        record = session.wait_record()
        assert record.no_effect == {} and record.notes["ranks"] == 2
        cap = 1 if chosen else 25
        assert built(log(session.paths.root)) == dict.fromkeys(
            (0, 1), f"{cap * 2**20} {bool(chosen)} {bool(chosen)}"
        )
        losses.append(record.losses)
        session.close()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


SPAWN = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank):
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=torch.utils.data.DistributedSampler(data))
    n = 0
    while True:
        for x, y in loader:
            if n == 60 and rank == 1:
                raise KeyError("spawned and lost")
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            n += 1
if __name__ == "__main__":
    context = mp.spawn(work, nprocs=2, join=False)
    for process in context.processes:
        process.join()  # as on a loaded machine: torch then raises the error of rank 0
    context.join()
"""


@pytest.mark.slow
def test_ranks_that_the_program_spawns_itself(start: Start) -> None:
    session = start(SPAWN, argv=[sys.executable, "train.py"])
    assert session.wait_hello().job.world_size == 2
    [report] = session.run_plan([block("own")])
    assert report.window.samples == (8.0,) * 10
    failure, took_s = failure_of(session.run_plan, [block("b", iterations=1000)])
    assert (
        failure.kind == "crash"
        and failure.detail == "rank 1: KeyError: 'spawned and lost'"
        and failure.where == line_of(session, "spawned and lost")
    )
    assert took_s < QUICK_S


@pytest.mark.slow
def test_spawned_ranks_that_leave_their_group_before_the_window_is_full(start: Start) -> None:
    program = SPAWN.replace("while True:", "for _ in range(4):").replace(
        "            n += 1\n", "            n += 1\n    dist.destroy_process_group()\n"
    )
    session = start(
        program, argv=[sys.executable, "train.py"], config=SessionConfig("fixed", "", steps=200)
    )
    session.wait_hello()
    record = session.wait_record()
    assert record.ended_early and record.notes["ranks"] == 2
    assert record.window.samples == (8.0,) * 32


DISPATCHED = """
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def batches():
    "Rank 0 reads for both, like accelerate with dispatch_batches."
    data = TensorDataset(torch.randn(512, 4))
    loader = DataLoader(data, batch_size=16) if dist.get_rank() == 0 else None
    while True:
        for batch in loader or range(10**9):
            read = [batch[0] if loader else None]
            dist.broadcast_object_list(read)
            yield read[0].chunk(2)[dist.get_rank()]

for x in batches():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_knobs_of_a_loader_that_one_rank_reads_for_all(start: Start) -> None:
    session = start(DISPATCHED)
    job = session.wait_hello().job
    assert (job.samples_per_step, job.sample_unit) == (16.0, "samples")
    names = [("own", {}), ("more", {"num_workers": 1, "batch_size": 32}), ("again", {})]
    reports = session.run_plan([block(name, **knobs) for name, knobs in names])
    assert [r.window.samples for r in reports] == [(16.0,) * 10, (32.0,) * 10, (16.0,) * 10]
    assert all(not r.error and not r.no_effect for r in reports)
    session.close()
    fixed = start(DISPATCHED, config=SessionConfig("fixed", "", steps=20))
    fixed.wait_hello()
    record = fixed.wait_record()
    assert record.window.samples == (16.0,) * 20
    assert record.samples_before == tuple(16.0 * i for i in range(20))


FSDP = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.manual_seed(0)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(256, 16), torch.randn(256, 1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
n = 0
while True:
    for x, y in loader:
        loss = (model(x).float() - y).square().mean()
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print("step 0", n, len(x), repr(mean.item() / 2), flush=True)
        n += 1
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_fully_sharded_parameters(start: Start) -> None:
    session = start(FSDP, config=SessionConfig("fixed", "", steps=20, seed=0))
    hello = session.wait_hello()
    assert hello.job.sharded and not hello.job.ddp and hello.job.world_size == 2
    record = session.wait_record()
    assert record.window.samples == (16.0,) * 20
    assert list(record.losses) == pytest.approx(
        [s.mean_loss for s in steps_of(log(session.paths.root))][:20], rel=1e-5
    )
    assert len(record.gradient_norms) == len(record.update_norms) == 8 and all(
        n > 0 for n in record.gradient_norms + record.update_norms
    )
    assert len(record.gradient_sketch) == 1024 and "probe" not in record.notes
    session.close()
    live = start(FSDP)
    live.wait_hello()
    reports = live.run_plan(
        [
            block("own"),
            block("c", amp_dtype="bfloat16", num_workers=1, batch_size=16),
            block("again"),
        ]
    )
    assert [r.window.samples[0] for r in reports] == [16.0, 32.0, 16.0]
    assert all(not r.error and not r.no_effect for r in reports)
