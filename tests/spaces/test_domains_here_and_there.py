"""What each knob offers on which machine and for which job, and the reason if it does not apply."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from machines import (
    ADAM,
    ATTENDING,
    CONV,
    CPU,
    CUDA,
    CUDA_JOB,
    DDP,
    FULL_JOB,
    JOB,
    MLP,
    OLD_CUDA,
    job,
    machine,
    with_loader,
)

from autotune_spaces.base import NotApplicable
from autotune_spaces.facts import JobFacts, OptimizerFacts, ProcessFacts, ReaderFacts
from autotune_spaces.knobs import create, get


def values(name, where=CPU, what=JOB, **options):  # type: ignore[no-untyped-def]
    return (
        create(name, options.pop("options", None), options.pop("values", None))
        .domain(where, what)
        .values
    )


def out(name, where=CPU, what=JOB, **options):  # type: ignore[no-untyped-def]
    with pytest.raises(NotApplicable) as caught:
        values(name, where, what, **options)
    return str(caught.value)


def test_workers_go_up_to_the_cores() -> None:
    assert values("num_workers") == (0, 1, 2, 4, 6)
    assert values("num_workers", machine(cores=1)) == (0, 1)
    assert values("num_workers", machine(cores=8)) == (0, 1, 2, 4, 8)
    assert values("num_workers", what=with_loader(num_workers=12)) == (0, 1, 2, 4, 6, 12)


def test_ranks_share_the_cores() -> None:
    assert values("num_workers", machine(cores=8), job(world_size=4)) == (0, 1, 2)
    assert values("intra_op_threads", machine(cores=8), job(world_size=4, intra_op_threads=1)) == (
        1,
        2,
    )
    two_nodes = job(CUDA_JOB, world_size=16)
    assert values("num_workers", machine(CUDA, cores=32, device_count=8), two_nodes) == (0, 1, 2, 4)


def test_the_launcher_tells_how_many_ranks_share_a_machine() -> None:
    """Each rank may see one GPU only, and ranks on CPUs may span machines."""
    one_gpu_each = job(CUDA_JOB, world_size=8, local_world_size=8)
    assert values("num_workers", machine(CUDA, cores=32), one_gpu_each) == (0, 1, 2, 4)
    two_nodes = job(world_size=8, local_world_size=4, intra_op_threads=1)
    assert values("num_workers", machine(cores=8), two_nodes) == (0, 1, 2)
    assert values("intra_op_threads", machine(cores=8), two_nodes) == (1, 2)
    of_another_launcher = job(world_size=2, local_world_size=8)
    assert values("num_workers", machine(cores=8), of_another_launcher) == (0, 1, 2, 4)


def reading(
    cpu_share: float, *, fetch_s: float = 0.05, compute_s: float = 0.0025, **changes: Any
) -> JobFacts:
    return job(reader=ReaderFacts(fetch_s, cpu_share * fetch_s, compute_s), **changes)


def test_a_reader_that_waits_gets_workers_far_beyond_the_cores_as_many_as_it_needs_doubled_once() -> (
    None
):
    two = machine(cores=2)
    assert values("num_workers", two, reading(0.02)) == (0, 1, 2, 4, 8, 16, 32, 64)
    assert values("num_workers", two, reading(0.02, compute_s=0.02)) == (0, 1, 2, 4, 8), (
        "3 keep up: 4, and twice that"
    )
    assert values("num_workers", two, reading(0.02, compute_s=0.0)) == (
        0,
        1,
        2,
        4,
        8,
        16,
        32,
        64,
    ), "nobody knows what is needed"
    assert values("num_workers", machine(cores=6), reading(0.02, compute_s=0.02)) == (
        0,
        1,
        2,
        4,
        6,
        8,
    )


def test_a_reader_that_computes_keeps_the_cores_and_one_in_between_gets_its_share_of_them() -> None:
    two = machine(cores=2)
    assert (
        values("num_workers", two, reading(1.0))
        == values("num_workers", two, reading(0.8))
        == (0, 1, 2)
    )
    assert values("num_workers", two, reading(0.5)) == (0, 1, 2, 4)
    assert values("num_workers", two, reading(0.1)) == (0, 1, 2, 4, 8, 16)
    assert values("num_workers", machine(cores=8), reading(0.02, world_size=4)) == (
        0,
        1,
        2,
        4,
        8,
        16,
        32,
        64,
    )


def test_workers_end_where_memory_files_shared_memory_or_batches_do() -> None:
    loader = with_loader(length=5).loader
    assert values("num_workers", machine(cores=2), reading(0.02, loader=loader)) == (0, 1, 2, 4), (
        "a fifth worker is the last with a batch"
    )
    large = with_loader(batch_mib=256.0, batch_tensors=2).loader
    assert values("num_workers", machine(cores=2, shm_gib=8), reading(0.02, loader=large))[-1] == 8
    assert (
        values(
            "num_workers",
            machine(cores=2, available_gib=4.0),
            reading(0.02, process=ProcessFacts(memory_gib=1.0)),
        )[-1]
        == 4
    )
    few_files = ProcessFacts(open_files=20, most_files=128)
    assert values("num_workers", machine(cores=2), reading(0.02, process=few_files))[-1] == 16


def test_what_leaves_no_room_for_a_single_worker_is_named() -> None:
    little, large = machine(available_gib=1.0), ProcessFacts(memory_gib=30.0)
    assert "more memory" in out("num_workers", little, job(process=large))
    assert values("num_workers", little, job(process=large), values=[0, 2]) == (0, 2)
    assert values("num_workers", little, with_loader(job(process=large), num_workers=2)) == (0, 2)
    few_files = ProcessFacts(open_files=20, most_files=24)
    assert "more open files" in out("num_workers", what=job(process=few_files))
    assert "more /dev/shm" in out(
        "num_workers", machine(shm_gib=0.1), with_loader(batch_mib=256.0, batch_tensors=2)
    )


def test_a_named_number_of_workers_is_tried_whatever_the_evidence_unless_they_cannot_be_started() -> (
    None
):
    assert values("num_workers", machine(cores=2), reading(1.0), values=[0, 48]) == (0, 48)
    few_files = reading(1.0, process=ProcessFacts(open_files=20, most_files=128))
    assert values("num_workers", machine(cores=2), few_files, values=[0, 24, 48]) == (0, 24)
    assert "144 open files" in out("num_workers", machine(cores=2), few_files, values=[48])


def test_workers_are_out_where_data_would_come_twice() -> None:
    assert "get_worker_info" in out(
        "num_workers", what=with_loader(iterable=True, worker_sharding=False, dataset="Stream")
    )
    assert "Stream" in out(
        "num_workers", what=with_loader(iterable=True, worker_sharding=False, dataset="Stream")
    )
    assert values("num_workers", what=with_loader(iterable=True, worker_sharding=True))


def test_workers_that_would_add_batches_to_an_epoch_are_not_tried() -> None:
    """Each ends with a smaller batch of its own: 3 workers make 18 batches instead of 16."""
    stream = with_loader(iterable=True, samples=1000, batch_size=64, length=16)
    assert values("num_workers", what=stream, values=[0, 1, 2, 3, 4]) == (0, 1, 2, 4)
    assert "18 batches instead of 16" in out("num_workers", what=stream, values=[3])


def test_workers_are_out_where_the_dataset_makes_its_batches_and_nobody_can_tell_how_it_shares_them_out() -> (
    None
):
    own_batches = {
        "iterable": True,
        "worker_sharding": True,
        "batch_size": None,
        "dataset": "Triples",
    }
    assert "Triples is an IterableDataset that makes its batches itself" in out(
        "num_workers", what=with_loader(**own_batches)
    )
    assert values("num_workers", what=with_loader(**own_batches, num_workers=1)), (
        "the job shares them out itself"
    )


def test_workers_need_shared_memory() -> None:
    assert "/dev/shm" in out("num_workers", machine(shm_gib=0.0))


@pytest.mark.parametrize(
    "name", ["num_workers", "prefetch_factor", "persistent_workers", "in_order", "batch_size"]
)
def test_loader_knobs_are_out_without_a_loader(name: str) -> None:
    assert "DataLoader" in out(name, what=job(loader=None))


def test_a_loader_out_of_sight_is_named() -> None:
    unseen = job(loader=None, unseen_loader="StreamingDataLoader")
    assert "DataLoader (StreamingDataLoader) makes its iterators itself" in out(
        "num_workers", what=unseen
    )


@pytest.mark.parametrize("name", ["prefetch_factor", "persistent_workers", "in_order"])
def test_worker_knobs_mean_nothing_without_workers(name: str) -> None:
    knob = get(name)
    assert not knob.active({}, {"num_workers": 0})
    assert not knob.active({"num_workers": 0}, {"num_workers": 4})
    assert knob.active({"num_workers": 2}, {"num_workers": 0})
    assert knob.active({}, {}), "unknown, so it stays in"


@pytest.mark.parametrize(
    "name",
    [
        "pin_memory",
        "non_blocking",
        "cuda_prefetch",
        "cudnn_benchmark",
        "cudnn_benchmark_limit",
        "cudnn_workspace_mib",
        "cuda_alloc_conf",
    ],
)
def test_cuda_knobs_are_out_on_a_cpu(name: str) -> None:
    assert out(name) == "only for CUDA, and the job trains on cpu"
    assert len(values(name, CUDA, FULL_JOB)) > 1


def test_copies_ahead_are_tried_where_copies_take_time() -> None:
    assert values("cuda_prefetch", CUDA, job(CUDA_JOB, copy_share=0.05)) == (False, True)
    assert "copies to the GPU take only 0.4% of an iteration" in out(
        "cuda_prefetch", CUDA, job(CUDA_JOB, copy_share=0.004)
    )
    assert values("cuda_prefetch", CUDA, CUDA_JOB, values=[True]) == (False, True), (
        "who names it has it tried"
    )
    assert "DataLoader" in out("cuda_prefetch", CUDA, job(CUDA_JOB, loader=None, copy_share=0.05))


def test_a_cpu_job_on_a_cuda_machine_is_a_cpu_job() -> None:
    assert "trains on cpu" in out("pin_memory", CUDA, JOB)


def test_batch_sizes() -> None:
    assert values("batch_size") == (32, 64, 128, 256)
    assert values("batch_size", what=with_loader(samples=100)) == (32, 64), (
        "no batch larger than the data"
    )
    assert values("batch_size", what=with_loader(batch_size=1)) == (1, 2, 4, 8)
    theirs = {"custom_batch_sampler": True, "batch_size": None}
    assert "own batch sampler (Buckets), which sets the batch size" in out(
        "batch_size", what=with_loader(**theirs, batch_sampler="Buckets")
    )
    assert "varies from step to step" in out(
        "batch_size", what=with_loader(**theirs, batch_sampler="UniformWithReplacementSampler")
    )
    assert "batch_size=None" in out("batch_size", what=with_loader(batch_size=None))


def test_the_batch_size_of_one_loader_among_several_is_a_mixture() -> None:
    assert "would change the mixture" in out(
        "batch_size", what=job(mixture="batches of several DataLoaders in turn")
    )


def test_the_batch_size_of_a_contrastive_loss_is_part_of_it() -> None:
    found = "a product of all its samples with each other, 32 x 32"
    assert found in out("batch_size", what=job(compares_samples=found))


def test_amp_on_a_cpu_needs_the_instructions() -> None:
    assert values("amp_dtype") == ("off", "bfloat16")
    assert values("amp_dtype", machine(cpu_flags=frozenset({"amx_bf16"}))) == ("off", "bfloat16")
    assert "no bfloat16 instructions" in out("amp_dtype", machine(cpu_flags=frozenset({"avx2"})))


def test_float16_is_never_tried_on_a_cpu_even_if_asked_for() -> None:
    assert "float16 is only for CUDA" in out("amp_dtype", values=["float16"])
    assert values("amp_dtype", values=["float16", "bfloat16"]) == ("off", "bfloat16")


def test_amp_on_cuda() -> None:
    assert values("amp_dtype", CUDA, CUDA_JOB) == ("off", "bfloat16", "float16")
    assert values("amp_dtype", OLD_CUDA, CUDA_JOB) == ("off", "float16")
    assert values("amp_dtype", CUDA, job(CUDA_JOB, double_backward=True)) == ("off", "bfloat16")
    assert values("amp_dtype", CUDA, job(CUDA_JOB, early_gradients=True)) == ("off", "bfloat16")


def test_bfloat16_is_not_tried_where_dataparallels_threads_would_compute_in_float16() -> None:
    parallel = job(CUDA_JOB, models=(dataclasses.replace(MLP, name="DataParallel"),))
    assert values("amp_dtype", CUDA, parallel) == ("off", "bfloat16", "float16")
    two = machine(CUDA, device_count=2)
    assert values("amp_dtype", two, parallel) == ("off", "float16")
    assert values("amp_dtype", two, CUDA_JOB) == ("off", "bfloat16", "float16")


def test_torch_has_two_matmul_precisions_on_a_gpu_and_three_words_for_them() -> None:
    import torch

    before, tf32 = torch.get_float32_matmul_precision(), {}
    for word in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(word)
        tf32[word] = torch.backends.cuda.matmul.allow_tf32
    torch.set_float32_matmul_precision(before)
    assert tf32 == {"highest": False, "high": True, "medium": True}


def test_float16_of_several_ranks_needs_them_to_see_the_same_gradients() -> None:
    ranks = job(CUDA_JOB, world_size=2, ddp=(DDP,))
    assert "float16" in values("amp_dtype", CUDA, ranks)
    for sharded in (True, False):  # FSDP; a job that averages gradients itself
        alone = dataclasses.replace(ranks, ddp=(), sharded=sharded)
        assert values("amp_dtype", CUDA, alone) == ("off", "bfloat16")
        assert "must skip the same steps" in out("amp_dtype", CUDA, alone, values=["float16"])


def test_amp_leaves_a_jobs_own_alone() -> None:
    assert "bfloat16" in out("amp_dtype", CUDA, job(CUDA_JOB, own_autocast="bfloat16"))
    assert "GradScaler" in out("amp_dtype", CUDA, job(CUDA_JOB, own_scaler=True))


def test_what_speeds_up_float32_is_nothing_for_a_job_in_float64() -> None:
    for where, what in ((machine(), job()), (CUDA, CUDA_JOB)):
        for name in ("amp_dtype", "matmul_precision"):
            assert "float64" in out(name, where, dataclasses.replace(what, double_precision=True))
            assert len(values(name, where, what)) > 1


def test_matmul_precision() -> None:
    assert values("matmul_precision") == ("highest", "medium")
    assert values("matmul_precision", CUDA, CUDA_JOB) == ("highest", "high"), "medium is TF32, too"
    assert values("matmul_precision", CUDA, job(CUDA_JOB, matmul_precision="high")) == (
        "highest",
        "high",
    )
    assert values("matmul_precision", CUDA, job(CUDA_JOB, matmul_precision="medium")) == (
        "highest",
        "medium",
    )
    assert "TF32" in out("matmul_precision", OLD_CUDA, CUDA_JOB)
    assert "CPU" in out("matmul_precision", machine(cpu_flags=frozenset()))
    assert "fp32_precision" in out("matmul_precision", what=job(matmul_precision=""))


def test_cudnn() -> None:
    assert "no convolutions" in out("cudnn_benchmark", CUDA, job(CUDA_JOB, models=(MLP,)))
    assert "itself" in out("cudnn_benchmark", CUDA, job(CUDA_JOB, cudnn_benchmark=True))
    assert not get("cudnn_benchmark_limit").active({}, {"cudnn_benchmark": False})
    same = job(
        CUDA_JOB, own_settings={"deterministic": "torch.backends.cudnn.deterministic = True"}
    )
    for knob in ("cudnn_benchmark", "cudnn_benchmark_limit"):
        assert "cudnn.deterministic = True" in out(knob, CUDA, same)
    assert values("cudnn_workspace_mib", CUDA, FULL_JOB) == ("unset", 64, 256, 1024)
    assert "reserves 40% of" in out(
        "cudnn_workspace_mib", CUDA, job(CUDA_JOB, device_memory_share=0.4)
    )
    assert values("cudnn_workspace_mib", CUDA, CUDA_JOB, values=[512]) == ("unset", 512), (
        "who names a value has it tried"
    )
    assert get("cudnn_workspace_mib").environment(1024) == {"CUDNN_CONV_WSCAP_DBG": "1024"}
    assert get("cudnn_workspace_mib").environment("unset") == {}


def test_compile_mode() -> None:
    assert values("compile_mode") == ("off", "default", "max-autotune")
    every = ("off", "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
    assert values("compile_mode", CUDA, CUDA_JOB) == every
    assert "itself" in out("compile_mode", what=job(own_compile=True))
    assert "C++ compiler" in out("compile_mode", machine(cxx_compiler=""))
    assert "create_graph" in out("compile_mode", what=job(double_backward=True))
    assert "Module" in out("compile_mode", what=job(models=()))
    assert values("compile_mode", machine(CUDA, cxx_compiler=""), CUDA_JOB), (
        "CUDA kernels are not built by g++"
    )
    assert "a C compiler" in out("compile_mode", machine(CUDA, c_compiler=""), CUDA_JOB)


def test_compile_modes_for_what_the_job_is_like() -> None:
    blocks = job(models=(dataclasses.replace(MLP, repeated_blocks=4),))
    assert values("compile_mode", what=blocks) == ("off", "default", "regional", "max-autotune")
    assert "no repeated blocks" in out("compile_mode", values=["regional"])
    short = with_loader(samples=3210)
    assert values("compile_mode", what=short) == ("off", "default", "static", "max-autotune")
    assert (
        values("compile_mode", what=with_loader(samples=3210, rank_samples=(1600, 1610)))[2]
        == "static"
    )
    for whole in (
        JOB,
        with_loader(samples=3210, drop_last=True),
        with_loader(samples=None),
        with_loader(batch_size=None),
    ):
        assert "smaller batch" in out("compile_mode", what=whole, values=["static"])
    varying = dataclasses.replace(short, models=(dataclasses.replace(MLP, input_shapes=2),))
    assert values("compile_mode", what=varying) == ("off", "default", "dynamic", "max-autotune")
    assert "vary in shape" in out("compile_mode", what=varying, values=["static"])
    assert "the same shape" in out("compile_mode", what=short, values=["dynamic"])


def test_cuda_graphs_are_out_where_gradients_are_accumulated() -> None:
    accumulating = job(CUDA_JOB, backwards_per_step=4.0)
    assert values("compile_mode", CUDA, accumulating) == (
        "off",
        "default",
        "max-autotune-no-cudagraphs",
    )
    for mode in ("reduce-overhead", "max-autotune"):
        assert "backward 4 times per step" in out("compile_mode", CUDA, accumulating, values=[mode])
    assert "max-autotune" in values("compile_mode", what=job(backwards_per_step=4.0)), (
        "a CPU has no CUDA graphs"
    )


def test_a_step_that_a_scaler_skips_is_no_accumulation() -> None:
    assert "reduce-overhead" in values("compile_mode", CUDA, job(CUDA_JOB, backwards_per_step=1.01))


def test_batches_on_the_gpu_need_no_workers_and_no_pinning() -> None:
    ready = with_loader(CUDA_JOB, on_gpu=True)
    for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"):
        assert "already on the GPU" in out(name, CUDA, ready)
    for name in ("non_blocking", "cuda_prefetch"):
        assert "already on the GPU" in out(name, CUDA, ready)
        assert "without a torch DataLoader" in out(name, CUDA, job(CUDA_JOB, loader=None))
    assert 32 in values("batch_size", CUDA, ready)


def test_a_model_captured_in_cuda_graphs_keeps_its_layout_and_its_batch_size() -> None:
    captured = job(CUDA_JOB, models=(CONV,), own_graphs=True)
    for name in ("channels_last", "batch_size"):
        assert "CUDA graphs" in out(name, CUDA, captured)
    assert values("channels_last", CUDA, job(captured, own_graphs=False)) == (False, True)


def test_sharded_parameters_keep_their_layout() -> None:
    """fully_shard refuses other ones, and gathers them in the default layout."""
    sharded = job(CUDA_JOB, models=(CONV,), world_size=2, sharded=True)
    assert "FSDP" in out("channels_last", CUDA, sharded)
    assert values("channels_last", CUDA, job(sharded, sharded=False)) == (False, True)


def test_a_loss_that_autocast_refuses_on_cuda() -> None:
    refused = {"unsafe_to_autocast": "binary_cross_entropy"}
    assert "binary_cross_entropy_with_logits" in out("amp_dtype", CUDA, job(CUDA_JOB, **refused))
    assert "bfloat16" in values("amp_dtype", what=job(**refused)), "on a CPU it is float32"


def test_one_dimensional_convolutions_are_cudnns_too() -> None:
    flat = job(CUDA_JOB, models=(dataclasses.replace(MLP, convolutions_1d=2),))
    assert values("cudnn_benchmark", CUDA, flat) == (False, True)
    assert "no Conv2d or Conv3d" in out("channels_last", CUDA, flat)
    assert "no Conv1d" in out("cudnn_benchmark", CUDA, job(CUDA_JOB, models=(MLP,)))


def test_adafactors_default_is_the_loop_on_a_gpu_too() -> None:
    slow = dataclasses.replace(ADAM, name="Adafactor", supported=("for-loop", "foreach"))
    assert values("optimizer_impl", CUDA, job(CUDA_JOB, optimizers=(slow,))) == (
        "default",
        "foreach",
    )


def test_cuda_graphs_are_out_where_gradients_are_kept() -> None:
    keeping = job(CUDA_JOB, keeps_gradients=True)
    assert "max-autotune" not in values("compile_mode", CUDA, keeping)
    assert "set_to_none=False" in out("compile_mode", CUDA, keeping, values=["reduce-overhead"])
    assert "max-autotune" in values("compile_mode", what=job(keeps_gradients=True))


def test_cuda_graphs_and_cudas_own_allocator_are_not_tried_together() -> None:
    """torch's CUDA graphs save the state of their memory pool, and raise unless it belongs to
    torch's own allocator.
    """
    chosen = job(CUDA_JOB, own_settings={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    assert values("compile_mode", CUDA, chosen) == ("off", "default", "max-autotune-no-cudagraphs")
    assert "cudaMallocAsync" in out("compile_mode", CUDA, chosen, values=["reduce-overhead"])
    knob, own = get("cuda_alloc_conf"), {"compile_mode": "off"}
    for mode, other in (("reduce-overhead", False), ("default", True)):
        assert (
            knob.active({"compile_mode": mode, "cuda_alloc_conf": "backend:cudaMallocAsync"}, own)
            is other
        )
        assert knob.active(
            {"compile_mode": mode, "cuda_alloc_conf": "expandable_segments:True"}, own
        )
    assert not knob.active(
        {"cuda_alloc_conf": "backend:cudaMallocAsync"}, {"compile_mode": "max-autotune"}
    )


def test_attention_kernels() -> None:
    def on_cuda(*kernels: str, **changes: Any) -> JobFacts:
        return job(ATTENDING, device="cuda", attention=kernels, **changes)

    assert values("sdpa_backend", what=ATTENDING) == ("default", "math")
    assert "fused" in out("sdpa_backend"), "none was seen"
    assert "compiles its model itself" in out("sdpa_backend", what=job(ATTENDING, own_compile=True))
    assert "no other fused kernel" in out("sdpa_backend", what=ATTENDING, values=["cudnn"])
    assert values("sdpa_backend", CUDA, on_cuda("flash")) == ("default", "efficient", "cudnn")
    assert values("sdpa_backend", CUDA, on_cuda("cudnn", "efficient")) == (
        "default",
        "flash",
        "efficient",
        "cudnn",
    )
    assert "amp_dtype it has others" in out("sdpa_backend", CUDA, on_cuda("efficient"))
    assert out("sdpa_backend", OLD_CUDA, on_cuda("efficient")).endswith("only one fused kernel")
    assert values("sdpa_backend", CUDA, on_cuda("efficient"), values=["flash", "math"]) == (
        "default",
        "flash",
        "math",
    ), "under amp_dtype, say"
    assert values("sdpa_backend", CUDA, on_cuda("efficient", own_autocast="bfloat16")) == (
        "default",
        "flash",
        "cudnn",
    )
    assert "compute capability below 8.0" in out(
        "sdpa_backend", OLD_CUDA, on_cuda("efficient"), values=["cudnn"]
    )


def test_channels_last_is_for_convolutions() -> None:
    assert "no convolutions" in out("channels_last", what=job(models=(MLP,)))
    assert "train.py:4" in out(
        "channels_last", what=job(own_settings={"channels_last": "train.py:4"})
    )


def test_optimizer_impl() -> None:
    assert values("optimizer_impl") == ("default", "foreach", "fused"), (
        "for-loop is what the job has on a CPU"
    )
    assert values("optimizer_impl", CUDA, CUDA_JOB) == ("default", "for-loop", "fused")
    sgd = OptimizerFacts("SGD", "default", ("for-loop", "foreach", "fused"), (0.1,), 4)
    assert "fused" in values("optimizer_impl", what=job(optimizers=(sgd,)))
    assert "fused" not in values("optimizer_impl", what=job(optimizers=(sgd,), own_scaler=True))
    asked = OptimizerFacts("SGD", "foreach", ("for-loop", "foreach"), (0.1,), 4)
    assert values("optimizer_impl", what=job(optimizers=(asked,))) == ("for-loop", "foreach")
    own = OptimizerFacts("Lion", "default", (), (0.1,), 4)
    assert "Lion" in out("optimizer_impl", what=job(optimizers=(own,)))
    assert values("optimizer_impl", what=job(optimizers=(ADAM, asked))) == (
        "default",
        "for-loop",
        "foreach",
    ), "both must be able to"
    assert "fused" in out("optimizer_impl", what=job(optimizers=(asked,)), values=["fused"])


def test_threads() -> None:
    assert values("intra_op_threads") == (1, 2, 4, 6)
    assert out("intra_op_threads", machine(cores=1), job(intra_op_threads=1)).startswith(
        "1, the job's own value"
    )


def test_who_adopts_another_batch_size_is_told_to_look_at_the_schedule() -> None:
    assert "0.5x as many steps" in get("batch_size").remark(64, 32)
    assert get("batch_size").remark(32, 32) == ""
