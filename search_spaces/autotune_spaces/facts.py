"""Facts about the machine and the job, as plain data.

Knobs choose their values from these facts alone. The facts are collected inside the user's process
(the only place with the job's own torch) and sent to the tuner as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune_spaces.sites import JobSites


@dataclass(frozen=True)
class Machine:
    """The hardware and software a trial runs on."""

    cores: int  # cores this process may use (affinity and cgroup quota), not the machine's total
    memory_gib: float
    shm_gib: float  # free space in /dev/shm, where DataLoader workers hand over batches
    device: str  # "cpu" or "cuda"
    device_name: str
    torch_version: str
    python_version: str
    cpu_model: str = ""
    # those that knobs check, e.g. "avx512_bf16", "amx_bf16"
    cpu_flags: frozenset[str] = frozenset()
    device_count: int = 0
    device_index: int = 0  # of the GPU trained on, among those visible
    device_memory_gib: float = 0.0
    compute_capability: tuple[int, ...] = ()
    cuda_version: str = ""
    cudnn_version: int = 0
    nccl_version: tuple[int, ...] = ()
    cxx_compiler: str = ""  # what torch.compile would use on a CPU; "" if there is none
    c_compiler: str = ""  # the same on a GPU
    platform: str = ""
    # free memory, file caches included; 0: unknown
    available_gib: float = 0.0


@dataclass(frozen=True)
class LoaderFacts:
    """The training DataLoader as the job built it."""

    dataset: str  # class name
    site: str  # "file.py:12", where it was constructed
    key: str  # identifies this DataLoader among all that the job builds, the same in every run
    batch_size: int | None  # None: batch_size=None, or the job has its own batch sampler
    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool
    drop_last: bool
    iterable: bool  # IterableDataset
    length: int | None  # batches per epoch
    samples: int | None  # len(dataset)
    custom_batch_sampler: bool
    in_order: bool = True
    # whether an IterableDataset splits its data by get_worker_info(); True for map-style datasets
    worker_sharding: bool = True
    # why workers would run the job's script again from the top; "" if they would not
    starts_anew: str = ""
    own_generator: str = ""  # random generator that the dataset keeps and draws from; "": none
    fixed_seeds: str = ""  # worker_init_fn with the same seeds in every epoch; "": none
    open_file: str = ""  # attribute in which the dataset keeps a file open; "": none
    batch_sampler: str = ""  # class of the job's own batch sampler
    # samples per epoch of each rank's sampler, in rank order; (): unknown
    rank_samples: tuple[int, ...] = ()
    batch_mib: float = 0.0  # size of one batch's tensors; 0: unknown
    batch_tensors: int = 0
    on_gpu: bool = False  # its batches are on the GPU when it delivers them
    cycled: bool = False  # the job keeps its batches and gives them out again: itertools.cycle


@dataclass(frozen=True)
class ReaderFacts:
    """Where the time goes while the training DataLoader fetches batches, in the unchanged job.

    A fetch is what one process does for one batch: ``__getitem__`` for each sample, plus the
    collate function.
    """

    fetch_s: float  # wall time per batch, without the time spent waiting for a CPU
    cpu_s: float  # CPU time per batch
    # the model's time per batch if batches were always ready; 0: unknown
    compute_s: float = 0.0

    @property
    def cpu_share(self) -> float:
        """0: the fetch only waits (for storage, a server); 1: it only computes."""
        return min(1.0, self.cpu_s / self.fetch_s) if self.fetch_s > 0 else 1.0

    @property
    def workers_needed(self) -> float | None:
        """Number of workers that keep up with the model if nothing else limits them; None if
        unknown.
        """
        return self.fetch_s / self.compute_s if self.compute_s > 0 else None


@dataclass(frozen=True)
class ProcessFacts:
    """The training process and its system limits. 0: unknown."""

    memory_gib: float = 0.0  # its own, without memory-mapped files
    open_files: int = 0
    most_files: int = 0  # RLIMIT_NOFILE
    host: str = ""  # name of its machine
    # processes that it has started by multiprocessing, DataLoader workers included
    children: int = 0


@dataclass(frozen=True)
class OptimizerFacts:
    name: str  # class name
    implementation: str  # "default", "for-loop", "foreach" or "fused", as the job requested
    supported: tuple[str, ...]  # implementations this optimizer can be switched to here
    lr: tuple[float, ...]  # one per param group
    parameters: int


@dataclass(frozen=True)
class ModelFacts:
    """One top-level module that the job calls while training."""

    name: str
    parameters: int
    convolutions: int  # Conv2d/Conv3d layers, which channels_last is for
    dropouts: int = 0  # dropout layers of any kind
    # such as transformer layers, which can be compiled one by one
    repeated_blocks: int = 0
    input_shapes: int = 1  # number of different input shapes seen in warm-up
    convolutions_1d: int = 0  # Conv1d layers, which cuDNN computes, too


@dataclass(frozen=True)
class DdpFacts:
    """One DistributedDataParallel, with the arguments the job passed."""

    site: str  # "file.py:12", where it was constructed
    gradients_mib: float  # of all parameters it synchronizes
    bucket_cap_mb: float | None = None  # None: torch's default
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    # by DDP's own count, the same parameters were used in every iteration so far
    seen_static: bool = True
    own_buckets: bool = False  # the job sets every bucket's size itself (bucket_cap_mb_list)


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
    own_graphs: bool = False  # it captures CUDA graphs itself, by make_graphed_callables
    # what its loss computes that autocast refuses on CUDA: "binary_cross_entropy"; "": nothing
    unsafe_to_autocast: str = ""
    double_backward: bool = False  # backward(create_graph=True) was seen
    # gradients are used before the agent could unscale them: by hooks on parameters, in a backward
    # in two parts, or in tensors that no optimizer has
    early_gradients: bool = False
    double_precision: bool = False  # all trained parameters are float64
    # gradient tensors survive from step to step: zero_grad(set_to_none=False)
    keeps_gradients: bool = False
    keeps_outputs: bool = False  # outputs of a model outlive the next iteration, or may
    # "tf32" or "" if it sets fp32_precision, which replaces this switch
    matmul_precision: str = "highest"
    cudnn_benchmark: bool = False
    cudnn_benchmark_limit: int = 10
    intra_op_threads: int = 1
    backwards_per_step: float = 1.0
    world_size: int = 1
    local_world_size: int = 0  # of these, those on its machine (LOCAL_WORLD_SIZE); 0: unknown
    # communication backend of its ranks: "nccl", "cpu:gloo,cuda:nccl"; "" for a single process
    backend: str = ""
    samples_per_step: float = 1.0
    sample_unit: str = "samples"  # "samples", or "iterations" if batches could not be counted
    ddp: tuple[DdpFacts, ...] = ()  # in construction order
    sharded: bool = False  # its parameters are sharded over the ranks (FSDP)
    # other settings the job makes itself, e.g. {"set_num_threads": "train.py:9"}
    own_settings: dict[str, str] = field(default_factory=dict)
    # how the loss compares samples within a batch (contrastive losses); "" if that was not seen
    compares_samples: str = ""
    # fused kernels that scaled_dot_product_attention ran: "flash", "efficient", "cudnn"
    attention: tuple[str, ...] = ()
    # "batches of several DataLoaders together" (or "in turn") if it trains on a mixture
    mixture: str = ""
    # class of a job's DataLoader that builds its iterators itself, if no other one was seen
    unseen_loader: str = ""
    # knob -> what its survey() found; filled in by the tuner
    surveys: Mapping[str, Any] = field(default_factory=dict)
    sites: JobSites = JobSites()  # where in the source all of this is
    process: ProcessFacts = ProcessFacts()
    # share of an iteration, without its wait for batches, spent on copies to the device; filled in by
    # the tuner
    copy_share: float = 0.0
    # largest share of the device's memory it reserves, 0..1; filled in by the tuner
    device_memory_share: float = 0.0
    # filled in by the tuner once measured; None: unknown
    reader: ReaderFacts | None = None
