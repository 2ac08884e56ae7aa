"""One entry per knob: the values that the generic tests set. A knob without an entry fails them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from machines import (
    ATTENDING,
    COPYING,
    CPU,
    CUDA,
    CUDA_JOB,
    DDP_JOB,
    FULL_JOB,
    JOB,
    NCCL_JOB,
    SURVEYED,
    UNUSED_JOB,
)

from autotune_spaces.base import Value
from autotune_spaces.facts import JobFacts, Machine


@dataclass(frozen=True)
class Settings:
    own: Value  # of the small job
    other: Value  # a value that makes a difference there
    wrong: tuple[Any, ...]  # values that check_value must reject
    machine: Machine = CPU  # a machine where the knob applies
    job: JobFacts = JOB
    # how a program sees it, unless SmallJob.state() includes it
    shows: Callable[[], Any] | None = None


def shown() -> dict[str, Any]:
    """The results of every knob's ``shows``."""
    return {name: settings.shows() for name, settings in SETTINGS.items() if settings.shows}


SETTINGS: dict[str, Settings] = {
    "num_workers": Settings(0, 1, (-1, 1.5, "two", True)),
    "prefetch_factor": Settings(2, 4, (0, "2", None)),
    "persistent_workers": Settings(False, True, (1, "yes")),
    "in_order": Settings(True, False, (0, "no")),
    "pin_memory": Settings(False, True, (1, "true"), CUDA, CUDA_JOB),
    "non_blocking": Settings(False, True, (1, None), CUDA, CUDA_JOB),
    "cuda_prefetch": Settings(False, True, (1, "yes"), CUDA, COPYING),
    "batch_size": Settings(8, 16, (0, -4, 8.0, "8")),
    "amp_dtype": Settings("off", "bfloat16", ("bf16", True, "float32")),
    "matmul_precision": Settings("highest", "medium", ("low", "hihg", 1)),
    "cudnn_benchmark": Settings(False, True, (1, "on"), CUDA, CUDA_JOB),
    "cudnn_benchmark_limit": Settings(10, 0, (-1, "all", True), CUDA, CUDA_JOB),
    "cudnn_workspace_mib": Settings("unset", 1024, (0, "big", 1.5, True), CUDA, FULL_JOB),
    "sdpa_backend": Settings("default", "math", ("xformers", True, "Flash"), job=ATTENDING),
    "compile_mode": Settings("off", "default", ("on", True, "max")),
    "channels_last": Settings(False, True, (1, "NHWC")),
    "optimizer_impl": Settings("default", "foreach", ("loop", True)),
    "intra_op_threads": Settings(2, 1, (0, 1.0, "all")),
    "cpu_affinity": Settings("all", "physical", ("some", "3-1", "node", True, 1.5), job=SURVEYED),
    "malloc": Settings("default", "jemalloc", ("je", True, "libjemalloc.so"), job=SURVEYED),
    "cuda_alloc_conf": Settings(
        "unset", "expandable_segments:True", ("expandable", True, "a:b c", ":"), CUDA, CUDA_JOB
    ),
    "gc": Settings("default", "freeze", ("off", "threshold-0", "threshold-x", 50_000, True)),
    "ddp_bucket_cap_mb": Settings("unset", 50, (0, "big", 1.5, True), CPU, DDP_JOB),
    "gradient_as_bucket_view": Settings(False, True, (1, "yes"), CPU, DDP_JOB),
    "static_graph": Settings(False, True, (1, "on"), CPU, UNUSED_JOB),
    "nccl": Settings("default", "ring", ("Ring", True, 1), CUDA, NCCL_JOB),
}
