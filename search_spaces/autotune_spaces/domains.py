"""Small helpers shared by the domains of several knobs."""

from __future__ import annotations

from autotune_spaces.base import NotApplicable, Value, not_whole
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine

NO_LOADER = "no DataLoader was iterated"  # why a knob of the loader had no effect
DEFAULT_PREFETCH = 2  # torch's prefetch_factor, of a DataLoader with workers
# instructions without which a CPU emulates bfloat16, which is slower
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")


def doubling(limit: int) -> list[int]:
    """Powers of two up to ``limit``, and ``limit`` itself."""
    values = [1 << i for i in range(max(1, limit).bit_length()) if 1 << i <= limit]
    return values if limit in values or limit < 1 else [*values, limit]


def ranks_here(machine: Machine, job: JobFacts) -> int:
    """Ranks that share this machine, at least 1. Where the launcher does not tell: at most one per
    device on CUDA, since world_size may span machines.
    """
    most = job.local_world_size
    if not most:
        most = machine.device_count or 1 if job.device == "cuda" else job.world_size
    return max(1, min(job.world_size, most))


def cores_per_rank(machine: Machine, job: JobFacts) -> int:
    """Cores per rank if the ranks on this machine share them evenly; at least 1."""
    return max(1, machine.cores // ranks_here(machine, job))


def loader_of(job: JobFacts) -> LoaderFacts:
    """The job's training DataLoader.

    Raises:
        NotApplicable: it has none, or none that can be switched.
    """
    if job.loader is None and job.unseen_loader:
        raise NotApplicable(
            f"the job's DataLoader ({job.unseen_loader}) makes its iterators itself, so"
            " autotune can neither count nor change its batches; if the job has a flag"
            " for this setting, it can be a knob (via:)"
        )
    if job.loader is None:
        raise NotApplicable("the job reads its training data without a torch DataLoader")
    return job.loader


def repeated_loader_of(job: JobFacts) -> LoaderFacts:
    """The job's training DataLoader.

    Raises:
        NotApplicable: as :func:`loader_of`, or the job reads it for one epoch only.
    """
    loader = loader_of(job)
    if loader.cycled:
        raise NotApplicable(
            "the job reads its DataLoader only once and repeats the stored batches"
            " (itertools.cycle); with `while True: for batch in loader: ...` it can be tuned"
        )
    return loader


def host_loader_of(job: JobFacts) -> LoaderFacts:
    """The job's training DataLoader.

    Raises:
        NotApplicable: as :func:`repeated_loader_of`, or its batches are on the GPU: workers cannot
            make them, and there is nothing to pin or copy.
    """
    loader = repeated_loader_of(job)
    if loader.on_gpu:
        raise NotApplicable("the DataLoader delivers batches that are already on the GPU")
    return loader


def need_cuda(job: JobFacts) -> None:
    """Raises NotApplicable unless the job trains on a CUDA device."""
    if job.device != "cuda":
        raise NotApplicable(f"only for CUDA, and the job trains on {job.device}")


def need_convolutions(job: JobFacts, flat: bool = False) -> None:
    """Raises NotApplicable if the job's modules are known and none holds a convolution. ``flat``:
    one-dimensional ones count, too.
    """
    if job.models and not any(m.convolutions or (flat and m.convolutions_1d) for m in job.models):
        kinds = "Conv1d, Conv2d or Conv3d" if flat else "Conv2d or Conv3d"
        raise NotApplicable(f"the model has no convolutions (no {kinds})")


def refuse_deterministic(job: JobFacts) -> None:
    """Raises NotApplicable if the job asks torch for the same results in every run."""
    if own := job.own_settings.get("deterministic"):
        raise NotApplicable(
            f"the job requests reproducible results ({own}), but timing may pick different"
            " algorithms in every run"
        )


def neither_unset_nor_mib(value: Value) -> str | None:
    """Why ``value`` is neither "unset" nor a number of MiB, or None if it is one of them."""
    if value == "unset" or not_whole(value, 1) is None:
        return None
    return f"{value!r} is neither 'unset' nor a whole number of MiB ≥ 1"
