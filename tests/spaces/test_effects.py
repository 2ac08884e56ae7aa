"""A knob without effect reports it; one that works does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from small_job import SmallJob
from torch import nn

from autotune_spaces.knobs import create, get


def test_lr_follows_the_batch() -> None:
    job = SmallJob()
    for rule, factor in (("none", 1.0), ("sqrt", 2.0), ("linear", 4.0)):
        create("batch_size", {"lr_scaling": rule}).apply(job, 32)
        assert job.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-3 * factor)
    create("batch_size", {"lr_scaling": "linear"}).apply(job, 8)
    assert job.optimizers[0].param_groups[0]["lr"] == 1e-3


def test_lr_rule_needs_the_jobs_own_batch_size() -> None:
    job = SmallJob()
    job.loader = None  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="batch size"):
        create("batch_size", {"lr_scaling": "sqrt"}).apply(job, 32)
    create("batch_size", {"lr_scaling": "sqrt", "own_batch_size": 8}).apply(job, 32)
    assert job.lr_factor == 2.0
    assert "(32 / 8) ** 0.5" in create(
        "batch_size", {"lr_scaling": "sqrt", "own_batch_size": 8}
    ).snippet(32)


def test_autocast_without_a_product_has_no_effect() -> None:
    norm = SmallJob(nn.Sequential(nn.Flatten(), nn.LayerNorm(192, elementwise_affine=True)))
    assert "no matrix product" in str(get("amp_dtype").effect(norm, "bfloat16"))
    half = SmallJob()
    half.entries[0].module.bfloat16()
    assert "already bfloat16" in str(get("amp_dtype").effect(half, "bfloat16"))
    double = SmallJob()
    double.entries[0].module.double()
    assert "are float64" in str(get("amp_dtype").effect(double, "bfloat16"))
    assert get("amp_dtype").effect(SmallJob(), "bfloat16") is None


def test_channels_last_without_images_has_no_effect() -> None:
    job = SmallJob(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)))
    get("channels_last").apply(job, True)
    assert "no convolution weight" in str(get("channels_last").effect(job, True))


def test_threads_set_back_by_the_job_are_noticed() -> None:
    job, threads = SmallJob(), torch.get_num_threads()
    try:
        get("intra_op_threads").apply(job, 1)
        assert get("intra_op_threads").effect(job, 1) is None
        torch.set_num_threads(2)
        assert "2" in str(get("intra_op_threads").effect(job, 1))
    finally:
        torch.set_num_threads(threads)


def test_matmul_precision_says_when_nothing_changes() -> None:
    """Its report is compared with the products themselves, whatever this CPU does."""
    knob, job = get("matmul_precision"), SmallJob()
    torch.manual_seed(0)
    left, right = torch.randn(512, 512), torch.randn(512, 512)
    before = torch.random.get_rng_state()
    exact = left @ right
    try:
        for value in ("high", "medium"):
            knob.apply(job, value)
            same = torch.equal(left @ right, exact)
            assert (knob.effect(job, value) is not None) == same
            assert torch.get_float32_matmul_precision() == value
        knob.apply(job, "highest")
        assert knob.effect(job, "highest") is None
        assert torch.equal(left @ right, exact)
        assert "set the precision back" in str(knob.effect(job, "medium"))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(torch.random.get_rng_state(), before), "the probe draws no random numbers"


def test_optimizer_without_the_flag_has_no_effect() -> None:
    job = SmallJob()
    assert "fused" in str(get("optimizer_impl").effect(job, "fused"))
    get("optimizer_impl").apply(job, "fused")
    first = [job.step() for _ in range(3)]
    assert get("optimizer_impl").effect(job, "fused") is None
    plain = SmallJob()
    assert first == pytest.approx([plain.step() for _ in range(3)], rel=1e-4)


class Unfollowable(nn.Module):
    """A forward that dynamo leaves to Python from its first line on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 2)

    @torch._dynamo.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


def test_compile_without_a_graph_has_no_effect() -> None:
    job, knob = SmallJob(Unfollowable()), get("compile_mode")
    knob.apply(job, "default")
    job.step()
    assert "produced no graph" in str(knob.effect(job, "default"))
    knob.apply(job, "off")
    assert knob.effect(job, "off") is None


@pytest.mark.slow
@pytest.mark.skipif(not __import__("shutil").which("g++"), reason="no C++ compiler")
def test_compile_really_compiles() -> None:
    job, knob = SmallJob(), get("compile_mode")
    plain = job.step()
    job = SmallJob()
    knob.apply(job, "default")
    assert job.step() == pytest.approx(plain, rel=1e-4)
    assert knob.effect(job, "default") is None
    knob.apply(job, "off")
    assert job.entries[0].mode is None


@pytest.mark.slow
def test_cudnn_switches_are_set_right_after_import() -> None:
    code = (
        "import os, torch\nfrom autotune_spaces.knobs import at_import\n"
        "at_import(torch, os.environ)\nprint(torch.backends.cudnn.benchmark)"
    )
    for value in (True, False):
        env = {**os.environ, **get("cudnn_benchmark").environment(value)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == str(value), done.stderr
