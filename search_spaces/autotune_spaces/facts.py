"""What is known about the machine and about the job, as plain data.

A knob decides from these facts alone what it may be set to. They are gathered inside the user's
process (only there can the job's own torch be asked) and travel to the tuner as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune_spaces.sites import JobSites


@dataclass(frozen=True)
class Machine:
    """The hardware and software a trial runs on."""

    cores: int  # cores this process may use (affinity and cgroup quota), not the cores of the board
    memory_gib: float
    shm_gib: float  # free space in /dev/shm, where DataLoader workers hand over batches
    device: str  # "cpu" or "cuda"
    device_name: str
    torch_version: str
    python_version: str
    cpu_model: str = ""
    # of the flags knobs ask for, e.g. "avx512_bf16", "amx_bf16"
    cpu_flags: frozenset[str] = frozenset()
    device_count: int = 0
    device_memory_gib: float = 0.0
    compute_capability: tuple[int, ...] = ()
    cuda_version: str = ""
    cudnn_version: int = 0
    nccl_version: tuple[int, ...] = ()
    cxx_compiler: str = ""  # what torch.compile would use on a CPU; "" if there is none
    platform: str = ""
    # memory not in use, what only caches files counted as such; 0: not known
    available_gib: float = 0.0


@dataclass(frozen=True)
class LoaderFacts:
    """The training DataLoader as the job built it."""

    dataset: str  # class name
    site: str  # "file.py:12", where it was constructed
    key: str  # identifies this DataLoader among all the job builds, the same in every run
    batch_size: int | None  # None: batch_size=None, or a batch sampler of the job's own
    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool
    drop_last: bool
    iterable: bool  # IterableDataset
    length: int | None  # batches an epoch
    samples: int | None  # len(dataset)
    custom_batch_sampler: bool
    in_order: bool = True
    # an IterableDataset that asks get_worker_info(); True for map-style
    worker_sharding: bool = True
    # workers would run the job's script again from its top, and why; "": they would not
    starts_anew: str = ""
    batch_sampler: str = ""  # class of a batch sampler of the job's own
    # samples an epoch of each rank's sampler, in the order of ranks; (): not known
    rank_samples: tuple[int, ...] = ()
    batch_mib: float = 0.0  # tensors of one batch; 0: not known
    batch_tensors: int = 0


@dataclass(frozen=True)
class ReaderFacts:
    """How fetching the training DataLoader's batches spends its time, measured in the unchanged
    job.

    Fetching is what one process does for one batch: ``__getitem__`` for each sample, and the
    collate function.
    """

    fetch_s: float  # wall time of one batch, without what the process waited for a CPU
    cpu_s: float  # CPU time of it
    # of the model, for one batch, if batches were always ready; 0: not known
    compute_s: float = 0.0

    @property
    def cpu_share(self) -> float:
        """0: it waits (for storage, a server); 1: it computes."""
        return min(1.0, self.cpu_s / self.fetch_s) if self.fetch_s > 0 else 1.0

    @property
    def workers_needed(self) -> float | None:
        """Workers that fetch as fast as the model computes, if nothing else limits them; None if
        that is not known.
        """
        return self.fetch_s / self.compute_s if self.compute_s > 0 else None


@dataclass(frozen=True)
class ProcessFacts:
    """The training process, and what the system grants it. Zeros: not known."""

    memory_gib: float = 0.0  # of its own, what it only maps from files not counted
    open_files: int = 0
    most_files: int = 0  # RLIMIT_NOFILE


@dataclass(frozen=True)
class OptimizerFacts:
    """One optimizer of the job."""

    name: str  # class name
    implementation: str  # "default", "for-loop", "foreach" or "fused": what the job asked for
    supported: tuple[str, ...]  # implementations this optimizer can be switched to here
    lr: tuple[float, ...]  # one a param group
    parameters: int


@dataclass(frozen=True)
class ModelFacts:
    """One top-level module that the job calls while training."""

    name: str
    parameters: int
    convolutions: int  # Conv2d/Conv3d layers, what channels_last is for
    dropouts: int = 0  # layers that drop something at random in training
    # such as the layers of a transformer, which can be compiled one by one
    repeated_blocks: int = 0
    input_shapes: int = 1  # different ones that it was called with in warm-up


@dataclass(frozen=True)
class DdpFacts:
    """One DistributedDataParallel, as the job asked for it."""

    site: str  # "file.py:12", where it was constructed
    gradients_mib: float  # of all parameters it synchronises
    bucket_cap_mb: float | None = None  # None: left to torch
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    # by its own count the same parameters took part in every iteration so far
    seen_static: bool = True
    own_buckets: bool = False  # the job gives every bucket a size of its own (bucket_cap_mb_list)


@dataclass(frozen=True)
class JobFacts:
    """What the agent saw of the job before any knob was touched."""

    pid: int
    device: str  # where the model's parameters live: "cpu" or "cuda"
    loader: LoaderFacts | None
    optimizers: tuple[OptimizerFacts, ...]
    models: tuple[ModelFacts, ...]
    own_autocast: str = ""  # dtype of the job's own autocast, "" if it uses none
    own_scaler: bool = False
    own_compile: bool = False
    double_backward: bool = False  # backward(create_graph=True) was seen
    double_precision: bool = False  # all that is trained is float64
    # from one step to the next: zero_grad(set_to_none=False)
    keeps_gradients: bool = False
    matmul_precision: str = "highest"
    cudnn_benchmark: bool = False
    cudnn_benchmark_limit: int = 10
    intra_op_threads: int = 1
    backwards_per_step: float = 1.0
    manual: bool = False  # iterations are marked by autotune.step()
    world_size: int = 1
    # what its ranks talk through: "nccl", "cpu:gloo,cuda:nccl"; "" for one process
    backend: str = ""
    samples_per_step: float = 1.0
    sample_unit: str = "samples"  # "samples", or "iterations" where no batch could be counted
    ddp: tuple[DdpFacts, ...] = ()  # in the order they were built
    sharded: bool = False  # its parameters are sharded over the ranks (FSDP)
    # further calls the job makes itself, e.g. {"set_num_threads": "train.py:9"}
    own_settings: dict[str, str] = field(default_factory=dict)
    # how the loss compares the samples of a batch with each other (contrastive losses), "" if it is
    # not seen to
    compares_samples: str = ""
    # fused kernels that scaled_dot_product_attention ran: "flash", "efficient", "cudnn"
    attention: tuple[str, ...] = ()
    # "batches of several DataLoaders together" (or "in turn"), where it trains on such
    mixture: str = ""
    # class of a DataLoader of the job's that makes its iterators itself, where no other is seen
    unseen_loader: str = ""
    # knob -> what its survey() found; filled in by the tuner
    surveys: Mapping[str, Any] = field(default_factory=dict)
    sites: JobSites = JobSites()  # where in the source all this stands
    process: ProcessFacts = ProcessFacts()
    # of an iteration that copies to the device take; filled in by the tuner
    copy_share: float = 0.0
    # most that it reserves of the device's memory, 0..1; filled in by the tuner
    device_memory_share: float = 0.0
    # filled in by the tuner once it has measured; None: nothing is known of it
    reader: ReaderFacts | None = None
