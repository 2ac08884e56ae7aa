"""The knobs on a real GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from machines import CUDA_JOB
from small_job import SmallJob

from autotune_spaces import gpus
from autotune_spaces.knobs import create, get
from autotune_spaces.machine import probe

pytestmark = pytest.mark.gpu


@pytest.fixture
def job() -> SmallJob:
    return SmallJob(device="cuda")


def test_the_machine_is_seen() -> None:
    machine = probe()
    assert machine.device == "cuda"
    assert machine.device_memory_gib > 1
    assert machine.compute_capability >= (5, 0)
    assert machine.device_count >= 1


@pytest.mark.parametrize(
    ("name", "value", "own"),
    [
        ("pin_memory", True, False),
        ("non_blocking", True, False),
        ("amp_dtype", "bfloat16", "off"),
        ("matmul_precision", "high", "highest"),
        ("channels_last", True, False),
        ("optimizer_impl", "fused", "default"),
        ("compile_mode", "default", "off"),
    ],
)
def test_trains_takes_hold_and_restores(job: SmallJob, name: str, value, own) -> None:  # type: ignore[no-untyped-def]
    knob, before = create(name), job.state()
    knob.apply(job, value)
    assert all(torch.isfinite(torch.tensor(job.step())) for _ in range(3))
    assert knob.effect(job, value) is None
    knob.apply(job, own)
    after = job.state()
    assert after == before


def test_tf32_changes_products() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no TF32 units")
    left = torch.randn(512, 512, device="cuda")
    try:
        torch.set_float32_matmul_precision("highest")
        exact = left @ left
        get("matmul_precision").apply(SmallJob(device="cuda"), "high")
        high = left @ left
        assert not torch.equal(high, exact)
        get("matmul_precision").apply(SmallJob(device="cuda"), "medium")
        assert torch.equal(left @ left, high), "which is why medium is not offered"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_cudnn_plan_once_chosen_is_kept() -> None:
    """The reason that cudnn_benchmark is a process knob: switched on late, it times nothing for a
    known shape.

    cuDNN's search allocates workspaces and launches many kernels; the profiler counts them.
    """
    code = """
import sys, torch
from torch.profiler import ProfilerActivity, profile
early = sys.argv[1] == "early"
torch.backends.cudnn.benchmark = early
conv, x = torch.nn.Conv2d(16, 32, 3, padding=1).cuda(), torch.randn(8, 16, 64, 64, device="cuda")
torch.nn.Conv2d(4, 4, 1).cuda()(torch.randn(1, 4, 4, 4, device="cuda"))
def kernels():
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        conv(x); torch.cuda.synchronize()
    return sum(e.count for e in p.key_averages() if "Memcpy" not in e.key and "Memset" not in e.key)
if early:
    print(kernels())
else:
    conv(x); torch.backends.cudnn.benchmark = True; print(kernels())
"""

    def count(when: str) -> int:
        return int(
            subprocess.run(
                [sys.executable, "-c", code, when],
                capture_output=True,
                text=True,
                timeout=300,
                check=True,
            ).stdout
        )

    assert count("early") > 2 * count("late")


@pytest.mark.parametrize(
    "value", ["expandable_segments:True", "backend:cudaMallocAsync", "expandable_segments:False"]
)
def test_the_allocator_is_set_up_from_the_start(value: str) -> None:
    code = """
import os, sys, torch
sys.path[:0] = os.environ["HERE"].split(os.pathsep)
from small_job import SmallJob
from autotune_spaces.knobs import get
job = SmallJob(device="cuda")
assert all(torch.isfinite(torch.tensor(job.step())) for _ in range(3))
print([get("cuda_alloc_conf").effect(job, v) for v in ("unset", sys.argv[1], "backend:cudaMallocAsync", "expandable_segments:True")])
"""
    here = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    env = {**os.environ, "HERE": here, **get("cuda_alloc_conf").environment(value)}
    done = subprocess.run(
        [sys.executable, "-c", code, value], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    unset, own, pool, growing = eval(done.stdout)
    assert unset is None and own is None, "it took hold"
    assert (pool is None) == (value == "backend:cudaMallocAsync"), "and only what was asked for"
    if value == "expandable_segments:False":
        assert growing, "no segment grows where none is to"


def test_a_cap_on_scratch_memory_is_kept() -> None:
    """Skipped only where the fastest algorithm needs no more scratch memory than the cap."""
    code = """
import torch
conv, x = torch.nn.Conv3d(64, 64, 3, padding=1).cuda(), torch.randn(4, 64, 64, 64, 64, device="cuda", requires_grad=True)
def scratch():  # what was taken for a while only, since the last call
    most, kept = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return (most - kept) // 2**20
y = conv(x)
forward, ones = scratch(), torch.ones_like(y)
y.backward(ones)
backward = scratch()
assert y.isfinite().all()
print(max(forward, backward))
"""

    def scratch_mib(value: str | int) -> int:
        env = {**os.environ, **get("cudnn_workspace_mib").environment(value)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    cap = 64
    free = scratch_mib("unset")
    if free <= cap:
        pytest.skip(f"cuDNN {torch.backends.cudnn.version()} needs only {free} MiB without a cap")
    capped = scratch_mib(cap)
    assert capped < free, f"cuDNN {torch.backends.cudnn.version()} does not heed the cap"


def test_the_gpus_are_those_that_torch_sees_in_its_order() -> None:
    """cpu_affinity needs them before torch is imported."""
    if not gpus.DRIVER.is_dir():
        pytest.skip(f"no {gpus.DRIVER}: gpu-node is withdrawn here")
    slots = [
        gpus.slot_of(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())
    ]
    assert gpus.visible(os.environ) == slots


SUMS = """
import os, torch, torch.distributed as dist
from autotune_spaces.knobs import get
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.full((1 << 20,), rank + 1.0, device="cuda")
dist.all_reduce(x)
assert (x == 3.0).all()
dist.broadcast(x, 0)
parts = [torch.empty_like(x) for _ in range(2)]
dist.all_gather(parts, x)
torch.cuda.synchronize()
assert get("nccl").effect(None, os.environ["VALUE"]) is None
dist.destroy_process_group()
"""


@pytest.mark.parametrize("value", ["default", "ring", "ring-simple", "no-nvls", "tree"])
def test_every_collective_works_with_the_sums_asked_for(value: str, tmp_path: Path) -> None:
    knob, machine = get("nccl"), probe()
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    if why := knob.unusable(value, machine, CUDA_JOB):
        pytest.skip(why)
    (tmp_path / "sums.py").write_text(SUMS)
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(tmp_path / "sums.py"),
    ]
    env = {
        **os.environ,
        **knob.environment(value),
        "VALUE": value,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
