"""A model is asked whether it treats samples one by one, and is left as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from balanced_loss import Balanced
from torch import nn

from autotune_trials.agent.controls.sample_slices import Inseparable, cut, join, lengths_of, rows_of
from autotune_trials.agent.controls.separability import adds_losses, why_inseparable

ROWS, SIZE = 10, 4


class Custom(nn.Module):
    """A linear layer with something of its own after it."""

    def __init__(self, then: Callable[[Any, torch.Tensor], Any], **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.then = then
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0) -> Any:
        y = self.linear(x) * scale
        return self.then(self, y if mask is None else y * mask)


class Hooked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_forward_hook(lambda *_: None)


def keep(module: Any, y: torch.Tensor) -> torch.Tensor:
    module.last = y.mean()
    return y


def append(module: Any, y: torch.Tensor) -> torch.Tensor:
    module.losses.append(y.mean())
    return y


def begin_anew(module: Any, y: torch.Tensor) -> torch.Tensor:
    module.losses = []
    return append(module, y)


def keep_beside(module: Any, y: torch.Tensor) -> torch.Tensor:
    module.state.aux = y.mean()
    return y


def store(module: Any, y: torch.Tensor) -> torch.Tensor:
    module.bank[: len(y)].copy_(y)
    return y


def follow(module: Any, y: torch.Tensor) -> torch.Tensor:
    module.slow.data = module.slow.data * 0.9 + module.linear.weight.data * 0.1
    return y


def note(module: Any, y: torch.Tensor) -> torch.Tensor:
    module.seen["sums"].append(float(y.sum()))
    return y


def count(module: Any, y: torch.Tensor) -> torch.Tensor:
    module.calls += 1
    return y


def asked(module: nn.Module, size: int = SIZE, **kwargs: Any) -> str:
    torch.manual_seed(0)
    call = ((torch.randn(ROWS, 6),), kwargs)
    return why_inseparable(
        torch, module, call, cut(torch, call, ROWS, size), lengths_of(ROWS, size)
    )


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()),
        nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0)),
        nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3)),  # silenced for the comparison
        nn.Sequential(
            nn.Unflatten(1, (3, 2)),
            nn.TransformerEncoderLayer(2, 1, 8, dropout=0.3, batch_first=True),
        ),
        Custom(lambda m, y: nn.functional.dropout(y, m.dropout, m.training), dropout=0.3),
        nn.Sequential(
            nn.Unflatten(1, (3, 2)),
            nn.TransformerEncoderLayer(2, 1, 8, dropout=0.0, batch_first=True),
        ),
        Custom(lambda m, y: {"logits": y, "pair": (y[:, 0], y * 2), "flag": None}),
        Custom(lambda m, y: (y, m.linear.bias)),
    ],
)
def test_samples_one_by_one(module: nn.Module) -> None:
    assert asked(module) == ""


def test_what_cannot_be_told_apart_is_left_alone() -> None:
    """A GRU's hidden state has the batch in its second dimension."""
    module = nn.Sequential(nn.Unflatten(1, (3, 2)), nn.GRU(2, 5, batch_first=True))
    assert "for the batch as a whole" in asked(
        module
    ) and "Compute the loss outside of the model" in asked(module)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), "changes its own running_mean"),
        (nn.BatchNorm1d(6, track_running_stats=False), "depends on the other samples"),
        (
            nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.BatchNorm1d(6)),
            "changes its own running_mean",
        ),
        (
            nn.Sequential(nn.Dropout(0.1), Custom(lambda m, y: y - y.mean(0))),
            "depends on the other samples",
        ),
        (Custom(lambda m, y: nn.functional.dropout(y, 0.1)), "draws random numbers"),
        (Custom(lambda m, y: y if random.random() < 2 else None), "draws random numbers"),
        (Custom(lambda m, y: y.mean()), "for the batch as a whole"),
        (Custom(lambda m, y: (y, y.square().mean())), "for the batch as a whole"),
        (Custom(lambda m, y: y @ y.T), "different shapes"),
        (Custom(lambda m, y: y - y.mean(0)), "depends on the other samples"),
        (Custom(keep), "keeps a tensor of its last pass"),
        (Custom(count, calls=0), "changes its own calls"),
        (Custom(append, losses=[]), "keeps a tensor of its last pass"),
        (Custom(begin_anew, losses=[torch.zeros(())]), "keeps a tensor of its last pass"),
        (Custom(keep_beside, state=SimpleNamespace()), "keeps a tensor of its last pass"),
        (Custom(store, bank=torch.zeros(64, 6)), "changes its own bank"),
        (Custom(note, seen={"sums": []}), "changes its own seen"),
        (
            Custom(follow, slow=nn.Parameter(torch.zeros(6, 6), requires_grad=False)),
            "changes its own weights",
        ),
        (Custom(lambda m, y: (y, torch.arange(len(y)))), "depends on the other samples"),
        (Hooked(), "hooks"),
        (Custom(lambda m, y: y.view(ROWS, 6)), "cannot be called on other portions"),
        (Custom(lambda m, y: y / 0), "not a finite number"),
    ],
)
def test_what_is_against_it(module: nn.Module, said: str) -> None:
    assert said in asked(module)


def test_nothing_is_left_behind() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    before = {name: t.clone() for name, t in module.state_dict().items()}
    torch.manual_seed(3)
    random.seed(3)
    stream, python = torch.get_rng_state(), random.getstate()
    call = ((torch.ones(ROWS, 6),), {})
    assert why_inseparable(
        torch, module, call, cut(torch, call, ROWS, SIZE), lengths_of(ROWS, SIZE)
    )
    assert torch.equal(torch.get_rng_state(), stream) and random.getstate() == python
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert module.training and all(p.grad is None for p in module.parameters())


def test_what_a_pass_keeps_and_changes_is_put_back() -> None:
    for then, attributes in (
        (append, {"losses": [1.0]}),
        (begin_anew, {"losses": [1.0]}),
        (keep, {}),
        (count, {"calls": 3}),
    ):
        module = Custom(then, **attributes)
        before = {
            name: value.copy() if isinstance(value, list) else value
            for name, value in vars(module).items()
        }
        assert asked(module)
        assert vars(module) == before


def test_what_a_model_changes_in_place_is_told_and_not_changed_by_the_question() -> None:
    class InPlace(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.mul_(2))

    inputs = torch.ones(ROWS, 6)
    call = ((inputs,), {})
    said = why_inseparable(
        torch, InPlace(6, 6), call, cut(torch, call, ROWS, SIZE), lengths_of(ROWS, SIZE)
    )
    assert "in place" in said and torch.equal(inputs, torch.ones(ROWS, 6))


def test_a_mask_of_one_row_is_not_one_a_sample() -> None:
    assert "something else for a part" in asked(
        Custom(lambda m, y: (y, torch.ones(1, 3, dtype=torch.bool))), size=1
    )


def test_a_loss_inside_the_backward_of_a_model_is_seen() -> None:
    linear, x = nn.Linear(6, 6), torch.rand(ROWS, 6)
    y = linear(x)
    assert "Balanced adds a loss" in adds_losses(
        torch, {"y": Balanced.apply(y, y.mean(0).square().sum())}
    )
    assert adds_losses(torch, (y, torch.rand(3))) == ""
    temperature = nn.Parameter(torch.ones(()))
    assert adds_losses(torch, Balanced.apply(y, temperature)) == ""  # a weight, not a loss


def test_an_object_that_each_pass_fills_anew_is_not_joined() -> None:
    shared = SimpleNamespace(y=None)
    with pytest.raises(Inseparable, match="SimpleNamespace"):
        join(torch, [shared, shared], [4, 4])


def test_arguments_by_name_masks_and_constants() -> None:
    module = Custom(lambda m, y: y)
    assert asked(module, mask=torch.rand(ROWS, 6), scale=2.0) == ""
    assert asked(module, mask=torch.rand(6)) == ""  # of no sample: goes along whole


def test_a_call_is_cut_and_joined_again() -> None:
    call = (
        (torch.arange(ROWS), {"mask": torch.eye(3)}),
        {"names": "x", "wide": torch.rand(ROWS, 2)},
    )
    assert rows_of(torch, call) == ROWS
    parts = cut(torch, call, ROWS, SIZE)
    assert [rows_of(torch, p) for p in parts] == lengths_of(ROWS, SIZE) == [4, 4, 2]
    back = join(torch, parts, [4, 4, 2])
    assert torch.equal(back[0][0], call[0][0]) and torch.equal(back[1]["wide"], call[1]["wide"])
    assert back[0][1]["mask"] is call[0][1]["mask"] and back[1]["names"] == "x"
    with pytest.raises(Inseparable, match="str"):
        join(torch, [((parts[0][0][0], "a"), {}), ((parts[1][0][0], "b"), {})], [4, 4])
