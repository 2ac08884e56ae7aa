"""The same guarantees with the real agent in small torch jobs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from session_waits import wait_for
from tiers import slow

from autotune_trials.diagnosis import oom_kills
from autotune_trials.protocol.messages import Block, KnobChoice, SessionConfig
from autotune_trials.session.session import SessionFailed
from autotune_trials.supervisor import process_tags, procfs

TRAIN = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        {item}
        return torch.ones(4), torch.zeros(1)

def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    for epoch in range({epochs}):
        for x, y in DataLoader(Data(), batch_size=8, num_workers={workers}):
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            {step}
            step += 1

if __name__ == "__main__":
    main()
"""


def job(
    item: str = "pass", step: str = "optimizer.step()", epochs: int = 10_000, workers: int = 0
) -> str:
    return TRAIN.format(item=item, step=step, epochs=epochs, workers=workers)


def forked(source: str) -> str:
    """The same job, training in a forked child."""
    return source.replace(
        '"__main__":\n    main()',
        """"__main__":
    import multiprocessing
    child = multiprocessing.get_context("fork").Process(target=main)
    child.start()
    child.join()""",
    )


def start(make_session, source, **options):
    return make_session(source, env={"PYTHONPATH": ""}, startup_timeout_s=60.0, **options)


def failure_of(work, *args) -> SessionFailed:
    with pytest.raises(SessionFailed) as caught:
        work(*args)
    return caught.value


@pytest.mark.slow
def test_live_blocks_and_the_end_of_workers(make_session):
    session = start(make_session, job(workers=1), hang_timeout_s=30.0)
    assert session.wait_hello().job.loader.num_workers == 1
    plain, more = session.run_plan(
        [Block("b", (), 10), Block("c", (KnobChoice("num_workers", 2),), 10)]
    )
    assert len(plain.window.times_s) == len(more.window.times_s) == 10 and not more.error
    pids = procfs.descendants(session.command.pid)
    assert len(pids) >= 2
    session.close()
    assert not [pid for pid in pids if procfs.alive(pid)]
    assert not list(session.paths.root.glob("stacks-*.txt"))
    assert not [p for p in Path("/dev/shm").glob("torch_*") if int(p.name.split("_")[1]) in pids]


def test_a_fixed_window(make_session):
    session = start(
        make_session,
        job(),
        config=SessionConfig("fixed", "", steps=20, seed=0),
        hang_timeout_s=30.0,
    )
    session.wait_hello()
    record = session.wait_record()
    assert len(record.losses) >= 20 and record.samples_before[:3] == (0.0, 8.0, 16.0)


@pytest.mark.slow
def test_a_short_job_in_a_forked_child_is_recorded_to_its_end(make_session):
    config = SessionConfig("fixed", "", steps=100, seed=0)
    session = start(make_session, forked(job(epochs=5)), config=config)
    session.wait_hello()
    record = session.wait_record()
    assert record.ended_early and len(record.losses) == 5 * 8


@pytest.mark.slow
@pytest.mark.parametrize("how", ["1 / 0", "sys.exit(1)"])
def test_an_error_in_a_forked_child_that_nobody_asks_about_is_a_failure(make_session, how):
    """multiprocessing ends the child in a `finally`, and the parent exits with 0."""
    source = forked(job(step=f"optimizer.step(); step > 30 and {how}"))
    config = SessionConfig("fixed", "", steps=500, seed=0)
    session = start(make_session, "import sys\n" + source, config=config)
    session.wait_hello()
    assert failure_of(session.wait_record).kind == "ended", "and no record"


THINKING_S = 1.5


@pytest.mark.slow
def test_a_window_that_is_too_short_goes_on_in_the_same_process(make_session):
    session = start(
        make_session,
        job(),
        config=SessionConfig("fixed", "", steps=20, seed=0),
        hang_timeout_s=30.0,
    )
    session.wait_hello()
    seen = []

    def more(record):
        seen.append(record)
        time.sleep(THINKING_S)
        return 35 if len(seen) == 1 else 50

    whole = session.wait_record(more)
    first, *_ = seen
    assert [len(record.losses) for record in seen] == [20, 35, 50]
    assert (len(first.losses), len(whole.losses), len(whole.window.times_s)) == (20, 50, 50)
    assert whole.losses[:20] == first.losses and whole.window.times_s[:20] == first.window.times_s
    assert whole.samples_before == tuple(8.0 * i for i in range(50))
    assert max(whole.window.times_s[20:]) < 0.9 * THINKING_S, "the tuner's thinking is no iteration"
    assert not whole.ended_early


@pytest.mark.slow
def test_a_job_that_ends_while_its_window_goes_on_says_so(make_session):
    session = start(
        make_session,
        job(step="optimizer.step(); step == 29 and sys.exit()"),
        config=SessionConfig("fixed", "", steps=20, seed=0),
    )
    session.wait_hello()
    record = session.wait_record(lambda record: 50)
    assert record.ended_early and 20 < len(record.losses) <= 31


@pytest.mark.parametrize("where", [str, slow(forked)])
def test_a_loop_that_blocks_is_a_hang_at_its_line(make_session, where):
    source = where(job(step="optimizer.step(); step > 30 and time.sleep(99)"))
    session = start(make_session, source, hang_timeout_s=1.0)
    session.wait_hello()
    failure = failure_of(session.run_plan, [Block("b", (), 1000, max_seconds=1.0)])
    line = next(
        i
        for i, text in enumerate((session.workdir / "job0.py").read_text().splitlines(), 1)
        if "sleep(99)" in text
    )
    assert failure.kind == "hang" and failure.where == f"job0.py:{line}", failure


@pytest.mark.slow
def test_an_exception_in_a_worker_is_a_crash_with_the_users_traceback(make_session):
    session = start(
        make_session,
        job(item="if i == 40: raise KeyError('no such image')", workers=1),
        hang_timeout_s=30.0,
    )
    failure = failure_of(lambda: (session.wait_hello(), session.run_plan([Block("b", (), 50)])))
    assert failure.kind == "crash" and "no such image" in failure.detail
    assert failure.where == "job0.py:10"


@pytest.mark.slow
@pytest.mark.parametrize(("at", "done"), [(0, 0), (5, 5)])
def test_a_job_that_raises_says_how_far_it_got_with_the_settings(make_session, at, done):
    # wherever the epoch is
    in_worker = "self.__dict__.setdefault('read', []).append(i) or len(self.read)"
    raises = (
        f"torch.utils.data.get_worker_info() is not None and ({in_worker}) > {8 * at} and [][0]"
    )
    session = start(make_session, job(item=raises))
    session.wait_hello()
    session.run_plan([Block("own", (), 10)])
    failure = failure_of(session.run_plan, [Block("raises", (KnobChoice("num_workers", 1),), 50)])
    assert failure.kind == "crash" and "IndexError" in failure.detail, failure
    assert (failure.in_block == 0) == (done == 0) and failure.in_block is not None


@pytest.mark.slow
def test_a_job_that_ends_by_itself(make_session):
    session = start(make_session, job(step="optimizer.step(); step > 40 and sys.exit()"))
    session.wait_hello()
    failure = failure_of(session.run_plan, [Block("b", (), 500, max_seconds=5.0)])
    assert failure.kind == "ended" and "exit code 0" in failure.detail


@pytest.mark.slow
def test_a_job_with_fewer_steps_than_the_warm_up(make_session):
    session = start(make_session, job(step="optimizer.step(); sys.exit()"))
    assert failure_of(session.wait_hello).kind == "ended"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("print('no torch here')", "never imported torch"),
        ("import torch\ntorch.ones(1)", "neither backward() nor an optimizer"),
        slow(job(epochs=1, step="pass"), "no other parameter update was seen"),
    ],
)
def test_unhooked(make_session, source, cause):
    session = start(make_session, source)
    failure = failure_of(session.wait_hello)
    assert failure.kind == "unhooked" and cause in failure.detail


@pytest.mark.slow
def test_python_that_ignores_us(make_session, tmp_path):
    (tmp_path / "train.py").write_text(job(epochs=1))
    session = start(make_session, [sys.executable, "-I", "train.py"])
    failure = failure_of(session.wait_hello)
    assert failure.kind == "unhooked" and "Remove -I from the command" in failure.detail


@pytest.mark.slow
def test_a_killed_rank_ends_a_distributed_session(make_session, tmp_path):
    (tmp_path / "train.py").write_text(job())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    session = start(make_session, torchrun, hang_timeout_s=30.0)
    hello = session.wait_hello()
    assert hello.job.world_size == 2 and hello.rank == 0
    (report,) = session.run_plan([Block("b", (), 5)])
    assert report.window.samples == (16.0,) * 5
    procfs.send({hello.pid}, 9)
    begin = time.monotonic()
    failure = failure_of(session.run_plan, [Block("c", (), 5)])
    # we did not send SIGKILL
    assert failure.kind == ("oom" if oom_kills.on_machine() is None else "killed")
    assert time.monotonic() - begin < 20
    session.close()
    wait_for(lambda: not process_tags.marked(session.mark), 15.0)


ENDS_ITS_WORKER = """\
import os, signal
if step == 20:
    [worker] = torch.multiprocessing.active_children()
    {before}
    os.kill(worker.pid, {signal})
optimizer.step()
"""
# makes torch notice the worker's end only when it waits for a batch
UNSEEN = "signal.signal(signal.SIGCHLD, signal.SIG_DFL)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "number", "kind"),
    [("pass", 9, "killed"), (UNSEEN, 9, "killed"), (UNSEEN, 11, "crash")],
)
def test_a_worker_that_somebody_kills_is_no_crash_of_the_jobs(make_session, before, number, kind):
    """Whether torch names the signal or only says that the worker exited unexpectedly."""
    lines = ENDS_ITS_WORKER.format(before=before, signal=number).replace("\n", "\n            ")
    source = job(step=lines, item="time.sleep(0.001)", workers=1)
    session = start(
        make_session, source, config=SessionConfig("fixed", "", steps=10_000, max_steps=10_000)
    )
    failure = failure_of(session.wait_record)
    assert failure.kind == kind and "DataLoader worker" in failure.detail, failure
