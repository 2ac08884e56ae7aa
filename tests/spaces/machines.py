"""Facts of machines and jobs for the knobs' decisions."""

from __future__ import annotations

import dataclasses
from typing import Any

from autotune_spaces.facts import (
    DdpFacts,
    JobFacts,
    LoaderFacts,
    Machine,
    ModelFacts,
    OptimizerFacts,
)

CPU = Machine(
    cores=6,
    memory_gib=32,
    shm_gib=8,
    device="cpu",
    device_name="a CPU",
    torch_version="2.13.0",
    python_version="3.11",
    cpu_flags=frozenset({"avx512f", "avx512_bf16"}),
    cxx_compiler="/usr/bin/g++",
    c_compiler="/usr/bin/gcc",
)
CUDA = dataclasses.replace(
    CPU,
    cores=16,
    device="cuda",
    device_name="a GPU",
    device_count=1,
    device_memory_gib=80.0,
    compute_capability=(9, 0),
)
OLD_CUDA = dataclasses.replace(
    CUDA, device_name="an old GPU", compute_capability=(7, 5), device_memory_gib=8.0
)

LOADER = LoaderFacts(
    dataset="Images",
    site="train.py:7",
    key="train.py:7#0",
    batch_size=32,
    num_workers=0,
    prefetch_factor=None,
    persistent_workers=False,
    pin_memory=False,
    drop_last=False,
    iterable=False,
    length=100,
    samples=3200,
    custom_batch_sampler=False,
)
ADAM = OptimizerFacts("AdamW", "default", ("for-loop", "foreach", "fused"), (1e-3,), 12)
CONV = ModelFacts("Net", 50_000, convolutions=3)
MLP = ModelFacts("Mlp", 50_000, convolutions=0)
JOB = JobFacts(
    pid=1, device="cpu", loader=LOADER, optimizers=(ADAM,), models=(CONV,), intra_op_threads=6
)
# Survey results: four cores with two threads each on two nodes, and one allocator.
SURVEYED = dataclasses.replace(
    JOB,
    own_settings={"cpus": "0-7"},
    surveys={
        "cpu_affinity": {"cores": ["0,4", "1,5", "2,6", "3,7"], "nodes": ["0-1,4-5", "2-3,6-7"]},
        "malloc": {"jemalloc": "/usr/lib/libjemalloc.so.2"},
    },
)
ATTENDING = dataclasses.replace(JOB, models=(MLP,), attention=("flash",))
CUDA_JOB = dataclasses.replace(JOB, device="cuda")
COPYING = dataclasses.replace(CUDA_JOB, copy_share=0.2)
FULL_JOB = dataclasses.replace(COPYING, device_memory_share=0.95)
DDP = DdpFacts("train.py:9", gradients_mib=30.0)
DDP_JOB = dataclasses.replace(JOB, world_size=2, ddp=(DDP,))
NCCL_JOB = dataclasses.replace(DDP_JOB, device="cuda", backend="cpu:gloo,cuda:nccl")
UNUSED_JOB = dataclasses.replace(
    JOB, world_size=2, ddp=(dataclasses.replace(DDP, find_unused_parameters=True),)
)


def job(base: JobFacts = JOB, **changes: Any) -> JobFacts:
    return dataclasses.replace(base, **changes)


def with_loader(base: JobFacts = JOB, **changes: Any) -> JobFacts:
    return dataclasses.replace(base, loader=dataclasses.replace(LOADER, **changes))


def machine(base: Machine = CPU, **changes: Any) -> Machine:
    return dataclasses.replace(base, **changes)
