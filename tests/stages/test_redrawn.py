"""If a knob changes dropout's random numbers, the kind of loss check depends on the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from replayed import Machine, context_of, job, table
from torch import nn

from autotune.stages.converge import asked
from autotune.stages.observe import observe
from autotune_spaces.base import Config
from autotune_spaces.codec import encode
from autotune_trials.agent.facts.job_facts import _drops

SPACE = (
    "{amp_dtype: auto, channels_last: auto, optimizer_impl: auto, num_workers: [2],"
    " batch_size: [64]}"
)


@pytest.mark.parametrize(
    ("dropouts", "config", "numerics"),
    [
        (0, {"channels_last": True}, "rounding"),
        (2, {"channels_last": True}, "random-stream"),
        (2, {"channels_last": True, "optimizer_impl": "fused", "num_workers": 2}, "random-stream"),
        (2, {"channels_last": True, "batch_size": 64}, "statistical"),
        (2, {"optimizer_impl": "fused"}, "rounding"),
        (2, {"amp_dtype": "bfloat16"}, "rounding"),
    ],
)
def test_dropout_under_another_memory_format_is_another_random_stream(
    tmp_path: Path, dropouts: int, config: Config, numerics: str
) -> None:
    assert numerics_of(tmp_path, {}, dropouts, config) == numerics


@pytest.mark.parametrize(("dropouts", "numerics"), [(0, "rounding"), (2, "random-stream")])
def test_on_a_gpu_autocast_drops_other_elements(
    tmp_path: Path, dropouts: int, numerics: str
) -> None:
    gpu = {
        "device": "cuda",
        "device_name": "a GPU",
        "device_count": 1,
        "device_memory_gib": 80.0,
        "compute_capability": [9, 0],
    }
    assert numerics_of(tmp_path, gpu, dropouts, {"amp_dtype": "bfloat16"}) == numerics


@pytest.mark.parametrize(
    ("kind", "redrawn"), [(nn.Dropout, True), (nn.AlphaDropout, True), (nn.Dropout2d, False)]
)
def test_dropout_goes_by_the_order_in_memory(kind: type[nn.Module], redrawn: bool) -> None:
    """The reason why channels_last redraws. Dropout of whole channels draws in a fixed order."""
    images, dropped = torch.ones(2, 3, 8, 8), []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        dropped.append(kind()(images.to(memory_format=memory_format)))
    assert torch.equal(*dropped) is not redrawn


class DropPath(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob


def test_what_counts_as_dropout() -> None:
    dropping = [nn.Dropout(0.1), nn.MultiheadAttention(8, 2, dropout=0.1), DropPath(0.2)]
    assert all(map(_drops, dropping))
    keeping = [nn.Linear(2, 2), nn.Dropout(0.0), nn.MultiheadAttention(8, 2), DropPath(0.0)]
    assert not any(map(_drops, keeping))


def numerics_of(folder: Path, machine: dict[str, object], dropouts: int, config: Config) -> str:
    """The kind of loss check for ``config`` and a model with this number of dropouts."""
    model = replace(Machine(table()).hello().job.models[0], dropouts=dropouts)
    replayed = table(job={"models": [encode(model)]})
    executor = Machine(replace(replayed, machine={**replayed.machine, **machine}))
    with context_of(folder, executor, job(folder, SPACE)) as context:
        observe(context)
        return asked(context, config).numerics
