"""Merging the ranks' messages: pure functions of messages and text."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from autotune_spaces.domains import NO_LOADER
from autotune_spaces.facts import DdpFacts, JobFacts, LoaderFacts, Machine, ProcessFacts
from autotune_trials.diagnosis import classify, hang_stacks
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import (
    BlockReport,
    Hello,
    JobError,
    Pace,
    Record,
    SessionConfig,
    Window,
)
from autotune_trials.protocol.rank_merge import (
    mean_losses,
    merge_hellos,
    merge_records,
    merge_reports,
    merge_windows,
)
from autotune_trials.session import ranks
from autotune_trials.supervisor.process_tags import MARK_VARIABLE, new_mark

LOADER = LoaderFacts(
    "Data",
    "t.py:1",
    "t.py:1#0",
    8,
    0,
    None,
    False,
    False,
    False,
    False,
    13,
    100,
    False,
    rank_samples=(50,),
)
MACHINE = Machine(2, 8.0, 1.0, "cuda", "gpu", "2.13.0", "3.11", device_memory_gib=80.0)


def job(**changes: object) -> JobFacts:
    facts = JobFacts(
        1, "cpu", LOADER, (), (), world_size=2, samples_per_step=8.0, ddp=(DdpFacts("t.py:2", 1.0),)
    )
    return dataclasses.replace(facts, **changes)


JOBS = {0: job(), 1: job()}
# rank 0 reads for both (accelerate's dispatch_batches)
DISPATCHED = {0: job(), 1: job(loader=None, sample_unit="iterations", samples_per_step=1.0)}


def window(samples: tuple[float, ...]) -> Window:
    return Window((0.01,) * len(samples), samples, {})


def record(rank: int, losses: tuple[float | None, ...], **more: object) -> Record:
    return Record(
        rank,
        window((4.0,) * len(losses)),
        losses,
        tuple(4.0 * i for i in range(len(losses))),
        **more,
    )


def test_the_loss_is_the_mean_over_ranks() -> None:
    merged = merge_records(
        {1: record(1, (3.0, 5.0, math.nan)), 0: record(0, (1.0, 2.0, 1.0))}, JOBS
    )
    assert merged.losses[:2] == (2.0, 3.5) and math.isnan(merged.losses[2])
    assert (
        merged.window.samples == (8.0,) * 3
        and merged.samples_before == (0.0, 8.0, 16.0)
        and merged.notes["ranks"] == 2
    )
    # only the last rank of a pipeline has a loss
    assert mean_losses([(None, None), (2.0, None)]) == (2.0, None)
    assert mean_losses([(1.0, 2.0, 3.0), (3.0, 4.0)]) == (2.0, 3.0)


def test_a_device_that_slows_down_on_any_rank_slows_all() -> None:
    hot = dataclasses.replace(window((4.0,)), throttled="thermal slowdown", power_capped=True)
    merged = merge_records(
        {0: record(0, (1.0,)), 1: dataclasses.replace(record(1, (1.0,)), window=hot)}, JOBS
    )
    assert merged.window.throttled == "thermal slowdown" and merged.window.power_capped


@pytest.mark.parametrize(("device", "joules"), [("cuda", 12.0), ("cpu", 5.0)])
def test_the_energy_of_several_gpus_is_added(device: str, joules: float) -> None:
    """Ranks on CPUs read the same counters."""
    windows = [
        dataclasses.replace(window((4.0,)), joules=(j,), energy_counters=(name, "GPU"))
        for j, name in ((5.0, "package-0"), (7.0, "package-1"))
    ]
    merged = merge_windows(dict(enumerate(windows)), dict.fromkeys((0, 1), job(device=device)))
    assert merged.joules == (joules,)
    both = ("package-0", "GPU", "package-1")
    assert merged.energy_counters == (both if device == "cuda" else both[:2])


def test_every_machine_of_a_job_counts() -> None:
    """Ranks 0 and 1 are on one machine, where rank 1 takes its neighbor for a foreign process."""
    jobs = {rank: job(process=ProcessFacts(host=host)) for rank, host in enumerate(("a", "a", "b"))}
    windows = {
        rank: dataclasses.replace(window((4.0,)), foreign_load=load, joules=(5.0,))
        for rank, load in enumerate((0.1, 1.0, 0.7))
    }
    merged = merge_windows(windows, jobs)
    assert (merged.foreign_load, merged.joules) == (0.7, (10.0,))
    windows[2] = dataclasses.replace(windows[2], joules=())
    assert merge_windows(windows, jobs).joules == (), "the other machine's cannot be read"


def test_an_error_names_its_rank_unless_it_is_everyones() -> None:
    def error(*errors: str) -> str:
        reports = {r: BlockReport("b", r, None, error=e) for r, e in enumerate(errors)}
        return merge_reports(reports, JOBS).error

    assert error("", "knob: ValueError: no") == "knob: rank 1: ValueError: no"
    assert error("oom: 3 GiB", "oom: 2 GiB") == "oom: 3 GiB" and error("", "") == ""


def test_one_process_is_left_as_it_is() -> None:
    alone = record(0, (1.0, None), no_effect={"amp_dtype": "why"})
    assert merge_records({0: alone}, JOBS) is alone


def test_a_knob_without_effect_on_any_rank_has_none() -> None:
    merged = merge_records(
        {0: record(0, (1.0,)), 1: record(1, (1.0,), no_effect={"pin_memory": "no"})}, JOBS
    )
    assert merged.no_effect == {"pin_memory": "on rank 1: no"} and merged.idle == ()
    told = {"no_effect": {"pin_memory": "no", "gc": "no"}}
    both = {0: record(0, (1.0,), **told, idle=("gc", "pin_memory"))}
    both[1] = record(1, (1.0,), **told, idle=("pin_memory",))
    assert merge_records(both, JOBS).idle == ("pin_memory",)
    reports = {
        r: BlockReport(
            "b", r, window((1.0,)), no_effect={"pin_memory": "no"}, notes={"loss": float(r)}
        )
        for r in (0, 1)
    }
    assert merge_reports(reports, JOBS).no_effect == {"pin_memory": "no"}
    assert merge_reports(reports, JOBS).notes == {"loss": 0.5, "ranks": 2}


def test_what_is_counted_is_counted_on_all_ranks() -> None:
    other = job(
        loader=dataclasses.replace(LOADER, rank_samples=(49,)),
        ddp=(DdpFacts("t.py:2", 1.0, seen_static=False),),
    )
    small = dataclasses.replace(MACHINE, device_memory_gib=40.0)
    merged = merge_hellos(
        {0: Hello(7, 0, MACHINE, job(), 0.1, {}), 1: Hello(8, 1, small, other, 0.1, {})}
    )
    assert (
        merged.pid == 7
        and merged.job.samples_per_step == 16.0
        and merged.machine.device_memory_gib == 40.0
    )
    assert merged.job.loader is not None and merged.job.loader.rank_samples == (50, 49)
    assert not merged.job.ddp[0].seen_static
    unread = merge_hellos(
        {
            0: Hello(7, 0, MACHINE, job(), 0.1, {}),
            1: Hello(8, 1, MACHINE, job(loader=None), 0.1, {}),
        }
    )
    assert unread.job.loader is not None and unread.job.loader.rank_samples == ()


def test_where_one_rank_reads_for_all_it_counts_the_samples() -> None:
    hellos = {r: Hello(7, r, MACHINE, DISPATCHED[r], 0.1, {}) for r in (0, 1)}
    assert merge_hellos(hellos).job.samples_per_step == 8.0
    mine = record(0, (1.0, 2.0))
    other = dataclasses.replace(
        record(1, (1.0, 2.0)), window=window((1.0, 1.0)), samples_before=(0.0, 1.0)
    )
    merged = merge_records({0: mine, 1: other}, DISPATCHED)
    assert (merged.window.samples, merged.samples_before) == ((4.0, 4.0), (0.0, 4.0))
    # whichever rank it is, and whatever step it ends at
    swapped = {0: DISPATCHED[1], 1: DISPATCHED[0]}
    hello = merge_hellos({r: Hello(7, r, MACHINE, swapped[r], 0.1, {}) for r in (0, 1)})
    assert (hello.job.samples_per_step, hello.job.sample_unit) == (8.0, "samples")
    merged = merge_records({0: other, 1: record(1, (1.0, 2.0, 3.0))}, swapped)
    assert merged.window.samples == (4.0, 4.0)
    # no rank counts samples
    neither = dict.fromkeys((0, 1), DISPATCHED[1])
    assert merge_records({0: other, 1: other}, neither).window.samples == (2.0, 2.0)


def test_a_rank_that_reads_nothing_says_nothing_of_the_loaders_knobs() -> None:
    def no_effect(mine: dict[str, str], other: dict[str, str]) -> dict[str, str]:
        reports = {
            r: BlockReport("b", r, window((1.0,)), no_effect=said)
            for r, said in enumerate((mine, other))
        }
        return dict(merge_reports(reports, DISPATCHED).no_effect)

    unread = dict.fromkeys(("num_workers", "batch_size"), NO_LOADER)
    assert no_effect({}, unread) == {} and no_effect(unread, unread) == unread
    assert no_effect({}, {"cuda_prefetch": "the job never moves a batch tensor"}) == {}
    # of others, and of a learning rate that could not be set, it does
    for name in ("amp_dtype", "batch_size"):
        assert no_effect({}, {name: "failed"}) == {name: "on rank 1: failed"}


# ------------------------------------------------------------------------------------------- errors

GONE = (
    "Traceback (most recent call last):\nRuntimeError: [../gloo/transport/tcp/pair.cc:547]"
    " Connection closed by peer [127.0.0.1]:2"
)
NCCL_GONE = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 5, in <module>
    loss.backward()
torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:3699, remote process \
exited or there was a network error, NCCL version 2.28.9
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:

"""
BAD = "Traceback (most recent call last):\nValueError: bad batch"


def error(rank: int, text: str, at_s: float, kind: str = "crash") -> JobError:
    return JobError(rank, kind, text, at_s)


def test_the_cause_is_the_first_error_that_is_no_echo_of_another() -> None:
    assert ranks.first_cause([error(0, GONE, 1.0), error(1, BAD, 2.0)]).rank == 1
    assert ranks.first_cause([error(0, BAD, 2.0), error(1, BAD, 1.0)]).rank == 1
    assert ranks.first_cause([error(0, GONE, 1.0)]) is None
    assert ranks.first_cause([error(0, NCCL_GONE, 1.0)]) is None
    assert ranks.first_cause([error(0, BAD, 1.0), error(1, BAD, 2.0, "oom")]).kind == "oom"


def test_all_ranks_end_where_the_slowest_fills_the_time() -> None:
    def steps(*iteration_s: float, away_s: float = 0.0, **config: float) -> int:
        return ranks.common_extent(
            [Pace(r, 24, s, away_s) for r, s in enumerate(iteration_s)],
            SessionConfig("fixed", "", **config),
        ).steps

    assert steps(0.01, 0.02, steps=100, min_seconds=4.0) == 200
    assert steps(0.01, 0.01, steps=240, min_seconds=1.0) == 240
    assert steps(1.0, 2.0, steps=240, max_seconds=100.0) == 50
    assert steps(9.0, 9.0, steps=240, max_seconds=100.0) == 24  # already recorded
    # two seconds of evaluation every ten iterations count as well
    assert steps(0.01, 0.01, away_s=0.19, steps=60, min_seconds=4.0) == 60
    assert steps(0.01, 0.01, away_s=0.19, steps=240, max_seconds=20.0) == 100
    whole = SessionConfig("fixed", "", steps=240)
    assert ranks.common_extent([Pace(0, 24, 0.01), Pace(1, 24, 0.01)], whole).slice_end == 96
    assert ranks.common_extent([Pace(0, 96, 0.01), Pace(1, 96, 0.01)], whole).slice_end == 0
    assert steps(1e-4, 1e-4, steps=240, min_seconds=60.0, max_steps=2000) == 2000


# ------------------------------------------------------------------------------------------- logs

INTERLEAVED = """\
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 7, in main
[rank0]:   File "/home/u/train.py", line 9, in main
[rank1]:     step()
[rank1]: ValueError: bad batch
[rank0]:     loss.backward()
[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3
E1120 torch.distributed.elastic failed (exitcode: 1) local_rank: 1 (pid: 7)
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 900, in main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED
"""
LOST = """\
[default0]:[rank0]: Traceback (most recent call last):
[default0]:[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection reset by peer
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 12)
"""


def test_interleaved_tracebacks_are_told_apart_and_the_cause_is_shown() -> None:
    lines = classify.ending(INTERLEAVED).traceback
    assert (
        lines[-1] == "ValueError: bad batch"
        and classify.user_line(lines, Path("/home/u")) == "train.py:7"
    )
    assert not any("loss.backward" in line for line in lines)


def test_a_program_that_cannot_be_read_is_not_hidden_by_its_launcher() -> None:
    broken = (
        "  File \"/home/u/train.py\", line 3\n    x = (\n        ^\nSyntaxError: '(' was never"
        " closed\n"
    )
    dump = (
        'Current thread 0x1 (most recent call first):\n  File "/v/lib.py", line 5 in'
        " wait\n\nExtension modules: numpy\n"
    )
    lines = classify.ending(dump + broken + INTERLEAVED[INTERLEAVED.index("E1120") :]).traceback
    assert (
        lines[-1] == "SyntaxError: '(' was never closed"
        and classify.user_line(lines, Path("/home/u")) == "train.py:3"
    )


def test_a_rank_lost_without_a_word_is_named(tmp_path: Path) -> None:
    paths = SessionPaths(tmp_path)
    paths.stderr.write_text(LOST)
    found = classify.of_logs(tmp_path, paths, "exit code 1")
    assert found.kind == "crash" and found.detail == "exit code 1: rank 1 ended by SIGSEGV"
    # rank 0, which only lost its peer, may be the first that torchrun sees
    second = LOST.partition("Root Cause")[2].replace("first observed failure", "")
    first = second.replace("rank      : 1", "rank      : 0").replace(": -11", ": 1")
    paths.stderr.write_text(f"Failures:{second}Root Cause (first observed failure):{first}")
    found = classify.of_logs(tmp_path, paths, "exit code 1")
    assert found.detail == "exit code 1: rank 1 ended by SIGSEGV"


def test_a_launcher_that_says_only_that_a_rank_failed_is_quoted_in_one_line(tmp_path: Path) -> None:
    paths = SessionPaths(tmp_path)
    launcher = INTERLEAVED[INTERLEAVED.index("E1120") :]
    paths.stderr.write_text(f"{launcher}============\n  exitcode  : 1 (pid: 12)\n")
    found = classify.of_logs(tmp_path, paths, "exit code 1")
    assert found.detail.endswith("ChildFailedError: train.py FAILED")
    assert found.log_tail.endswith(found.detail.partition(": ")[2])
    native = "terminate called after throwing an instance of 'std::bad_alloc'\n"
    paths.stderr.write_text(f"{native}{launcher}")
    assert classify.of_logs(tmp_path, paths, "exit code 1").kind == "oom"


# ------------------------------------------------------------------------------------------- stacks

WAITS = [
    "Thread 0x1 (most recent call first):",
    '  File "/v/site-packages/torch/autograd/graph.py", line 8 in _engine_run_backward',
    '  File "/home/u/train.py", line 9 in main',
]
SLEEPS = [
    "Thread 0x1 (most recent call first):",
    '  File "/home/u/train.py", line 5 in fetch',
    '  File "/home/u/train.py", line 9 in main',
]


def test_of_ranks_that_stand_still_the_one_is_named_that_the_others_wait_for() -> None:
    assert hang_stacks.busy({"rank 0": WAITS, "rank 1": SLEEPS}) == ["rank 1"]
    assert hang_stacks.busy({"rank 0": WAITS, "rank 1": WAITS, "rank 2": []}) == []
    shown = hang_stacks.stacks_in_words({"rank 0": WAITS, "rank 1": SLEEPS}, 30).splitlines()
    assert shown[0] == "rank 1:" and "rank 0 (waits for others):" in shown
    assert hang_stacks.stacks_in_words({"rank 0": SLEEPS}, 2).splitlines() == SLEEPS[:2]


def test_ranks_that_stand_in_lines_of_the_job_count_as_busy() -> None:
    """With NCCL the others wait in ``loss.item()``, which no frame of torch shows."""
    reads = [SLEEPS[0], '  File "/home/u/train.py", line 8 in main']
    assert hang_stacks.busy({"rank 0": reads, "rank 1": SLEEPS}) == ["rank 0", "rank 1"]
    synchronizes = [
        SLEEPS[0],
        '  File "/v/site-packages/torch/cuda/__init__.py", line 1108 in synchronize',
        *SLEEPS[2:],
    ]
    assert hang_stacks.busy({"rank 0": synchronizes, "rank 1": SLEEPS}) == ["rank 1"]


RANK = """
import sys
from autotune_trials.measure.machine_load import resident_gib
held = bytearray(b"x") * (100 << 20)
print("up", flush=True)
sys.stdin.readline()
print(resident_gib(own=True), flush=True)
sys.stdin.readline()
"""


def test_the_memory_of_several_ranks_is_counted_once() -> None:
    """Each counts its own processes, not those of the launcher that started them all."""
    told = []
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RANK],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, MARK_VARIABLE: new_mark()},
                )
            )
            for _ in range(2)
        ]
        assert [each.stdout.readline() for each in ranks if each.stdout] == ["up\n"] * 2
        for each in ranks:
            assert each.stdin and each.stdout
            each.stdin.write("\n")
            each.stdin.flush()
            told.append(float(each.stdout.readline()))
    assert all(0.1 < gib < 0.16 for gib in told)
