"""Losses that compare the samples of a batch are recognized by their autograd graphs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from autotune_trials.agent.loop.autograd_graph import unsafe_to_autocast
from autotune_trials.agent.loop.sample_comparison import comparison

BATCH, WIDTH = 8, 24
unit = nn.functional.normalize


def activations(inputs: int = 5) -> torch.Tensor:
    return unit(nn.Linear(inputs, WIDTH)(torch.randn(BATCH, inputs)), dim=-1)


LABELS = torch.arange(BATCH)
COMPARING = {
    "clip": (
        lambda: nn.functional.cross_entropy(activations() @ activations().T, LABELS),
        "product of all its samples",
    ),
    "einsum": (
        lambda: torch.einsum("id,jd->ij", activations(), activations()).sum(),
        "product of all its samples",
    ),
    "with negatives": (
        lambda: (activations() @ torch.cat([activations(), activations()]).T).sum(),
        "8 x 16",
    ),
    "correlation": (
        lambda: (activations().T @ activations()).pow(2).sum(),
        "summed over its 8 samples",
    ),
    "cached gradients": (
        lambda: (
            activations().detach().requires_grad_() @ activations().detach().requires_grad_().T
        ).sum(),
        "product of all its",
    ),
    "distances": (
        lambda: torch.cdist(activations(), activations()).sum(),
        "distances between its 8 samples",
    ),
    "own distances": (
        lambda: nn.functional.pdist(activations()).sum(),
        "distances between its 8 samples",
    ),
}
NOT_COMPARING = {
    "pairs": lambda: (activations() * activations()).sum(1).mean(),
    "tied weights": lambda: nn.functional.cross_entropy(
        activations() @ nn.Embedding(BATCH, WIDTH).weight.T, LABELS
    ),
    "low-rank weights": lambda: (
        activations() @ (nn.Parameter(torch.randn(WIDTH, 3)) @ nn.Parameter(torch.randn(3, BATCH)))
    ).sum(),
    "attention": lambda: nn.TransformerEncoderLayer(16, 4, batch_first=True)(
        torch.randn(BATCH, BATCH, 16)
    ).sum(),
    "time first": lambda: nn.MultiheadAttention(16, 1)(
        *(torch.randn(BATCH, BATCH, 16) for _ in range(3))
    )[0].sum(),
    "recurrent": lambda: nn.LSTM(8, 8)(torch.randn(8, BATCH, 8))[0].sum(),
    "codebook": lambda: torch.cdist(activations(), nn.Parameter(torch.randn(16, WIDTH))).sum(),
}


@pytest.mark.parametrize("name", COMPARING)
def test_a_comparison_is_found_and_described(name: str) -> None:
    make, words = COMPARING[name]
    assert words in comparison(make(), BATCH)


@pytest.mark.parametrize("name", NOT_COMPARING)
def test_what_treats_each_sample_alone_is_no_comparison(name: str) -> None:
    assert comparison(NOT_COMPARING[name](), BATCH) == ""


def test_a_batch_of_one_and_a_loss_without_graph_compare_nothing() -> None:
    assert comparison(COMPARING["clip"][0](), 1) == ""
    assert comparison(torch.ones(()), BATCH) == ""


def test_a_graph_that_cannot_be_read_may_compare() -> None:
    unreadable = SimpleNamespace(grad_fn=object())
    assert comparison(unreadable, BATCH) == (
        "perhaps: its autograd graph cannot be read, AttributeError"
    )


def test_what_autocast_refuses_is_found_in_the_loss() -> None:
    chances, labels = activations().sigmoid(), torch.zeros(BATCH, WIDTH)
    refused = nn.BCELoss()(chances, labels) + chances.sum()
    assert unsafe_to_autocast(refused) == "binary_cross_entropy"
    assert unsafe_to_autocast([chances.sum(), refused]) == "binary_cross_entropy"
    assert unsafe_to_autocast(nn.BCEWithLogitsLoss()(chances, labels)) == ""
    assert unsafe_to_autocast(torch.ones(())) == ""
