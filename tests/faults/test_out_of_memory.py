"""Memory really runs out: at an rlimit, at a cgroup's limit, on the GPU. The trial is infeasible,
and no larger size is tried after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_runs import SEARCHED, faulty_job, trials_of

from autotune_trials.diagnosis import oom_kills
from autotune_trials.diagnosis.oom_kills import OomKills

SIZES = SEARCHED.replace("num_workers: [0, 1]", "batch_size: [8, 16, 32, 64, 128]").replace(
    "trials: 1", "trials: 6"
)
# 8 MiB per sample: 64 MiB at the job's own batch size, 1 GiB at the largest. The limit leaves room
# for some sizes above the job's memory at its start. Larger batches are slower, so that none is
# worth proving.
TAKES = "taken = torch.ones(len(x), 1 << 21, device=DEVICE).sum()\ntime.sleep(1e-4 * len(x) ** 2)"
# the second is address space, of which each thread reserves 128 MiB without using it
ROOM_MIB, ADDRESSES_MIB = 300, 700
RLIMIT = f"""
import resource
DEVICE = "cpu"
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + ({ADDRESSES_MIB} << 20), resource.RLIM_INFINITY))
""".strip()


def larger_sizes_are_not_tried_again(trials: list[dict]) -> None:
    ended = [t for t in trials if t["state"] == "infeasible"]
    assert ended, [(t["config"], t["state"], t["reason"]) for t in trials]
    smallest = None
    for trial in trials:
        size = trial["config"]["batch_size"]
        assert smallest is None or size < smallest, (
            "a size was tried although memory had ended below it"
        )
        if trial["state"] == "infeasible":
            smallest = size
            assert "memory" in trial["reason"]
    assert all(t["state"] != "infeasible" for t in trials if t["config"]["batch_size"] <= 16)


@pytest.mark.faults
def test_at_an_rlimit(tmp_path: Path) -> None:
    job = faulty_job(tmp_path / "job", RLIMIT, TAKES, SIZES)
    done = job.run()
    assert done.returncode == 0, done.stderr
    larger_sizes_are_not_tried_again(trials_of(job))


@pytest.fixture
def cgroup(tmp_path: Path) -> Iterator[Path]:
    """A memory cgroup for this test, without a limit; its ``procs`` takes processes."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        made = root / f"autotune-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            made.mkdir()
            if (made / limit).exists():
                (tmp_path / "limit").symlink_to(made / limit)
                break
            made.rmdir()
    else:
        pytest.skip("no memory cgroup can be made here")
    yield made
    deadline = time.monotonic() + 10
    while made.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            made.rmdir()
        time.sleep(0.05)
    assert not made.exists(), "somebody is still in it"


def test_the_kernel_says_what_it_killed_for_want_of_memory(cgroup: Path, tmp_path: Path) -> None:
    """It does not count other kills."""
    (tmp_path / "limit").write_text(str(40 << 20))
    kills = OomKills()
    if oom_kills.on_machine() is None:
        pytest.skip("this kernel does not count")
    assert greedy_one(cgroup) == -signal.SIGKILL
    counted = kills.since()
    assert counted is not None and counted > 0
    assert (
        subprocess.run(
            [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], timeout=60
        ).returncode
        == -signal.SIGKILL
    )
    assert kills.since() == counted


def greedy_one(cgroup: Path) -> int:
    """The exit code of a process of ``cgroup`` that takes more memory than allowed."""
    code = (
        f"import os\nopen({str(cgroup / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "bytearray(400 << 20)"
    )
    return subprocess.run([sys.executable, "-c", code], timeout=60).returncode


@pytest.mark.faults
def test_at_the_limit_of_a_cgroup(cgroup: Path, tmp_path: Path) -> None:
    """The kernel kills the job without a trace in its log."""
    enter = f"DEVICE = 'cpu'\nopen({str(cgroup / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    # memory that the job had before it entered does not count
    (tmp_path / "limit").write_text(str(ROOM_MIB << 20))
    job = faulty_job(tmp_path / "job", enter, TAKES, SIZES)
    done = job.run()
    assert done.returncode == 0, done.stderr
    larger_sizes_are_not_tried_again(trials_of(job))


@pytest.mark.gpu
@pytest.mark.faults
def test_on_the_gpu(tmp_path: Path) -> None:
    """The limit is a share of the device's memory, enforced by torch's own allocator."""
    limit = (
        f"DEVICE = 'cuda'\ntorch.cuda.set_per_process_memory_fraction(({ROOM_MIB} << 20) /"
        " torch.cuda.get_device_properties(0).total_memory)"
    )
    job = faulty_job(tmp_path / "job", limit, TAKES, SIZES)
    script = (
        (job.folder / "mine.py")
        .read_text()
        .replace("torch.nn.Linear(32, 1))", "torch.nn.Linear(32, 1)).to(DEVICE)")
    )
    (job.folder / "mine.py").write_text(
        script.replace(
            "loss = (model(x)", "x, y = x.to(DEVICE), y.to(DEVICE)\n        loss = (model(x)"
        )
    )
    done = job.run()
    assert done.returncode == 0, done.stderr
    larger_sizes_are_not_tried_again(trials_of(job))
