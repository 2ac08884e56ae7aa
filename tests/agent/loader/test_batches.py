"""Counting the samples of a batch, and copying one."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch

from autotune_trials.agent.dataloader.kept_batches import KeptBatches
from autotune_trials.agent.loop.batches import copy_batch, samples_of, weight_of


@dataclasses.dataclass
class Fields:
    name: str
    image: torch.Tensor


class Encoding(collections.UserDict):
    """Like transformers' BatchEncoding."""


class Graphs:
    """Like torch-geometric's Batch: more nodes than graphs."""

    def __init__(self):
        self.x, self.num_graphs = torch.zeros(57, 3), 4


class Record:
    def __init__(self):
        self.inputs = torch.zeros(6, 2)


class Attributes(dict):
    """As in many a job: a missing attribute raises KeyError."""

    __getattr__ = dict.__getitem__


Pair = collections.namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("batch", "expected", "samples"),
    [
        (torch.zeros(8, 3), 8, 8),
        (torch.zeros(5, 3), 8, 5),
        ([torch.zeros(8, 3), torch.zeros(8)], 8, 8),
        ((torch.zeros(3, 2), torch.zeros(3)), 8, 3),
        ({"ids": torch.zeros(8, 9), "labels": torch.zeros(8)}, 8, 8),
        (Encoding(ids=torch.zeros(8, 9)), 8, 8),
        (Fields("a", torch.zeros(8, 9)), None, 8),
        (Pair(torch.zeros(8, 9), None), None, 8),
        (Graphs(), 8, 4),
        ([Graphs()], None, 57),
        (Record(), None, 6),
        (["one", "two", "three"], 8, 3),
        ({"text": ["one", "two", "three"]}, 3, 3),
        ((torch.tensor(0.5), {"x": torch.zeros(8, 1)}), 8, 8),
        # the value with the expected length counts
        ({"weights": torch.zeros(100), "x": torch.zeros(8, 2)}, 8, 8),
        # detection: lists of pictures
        (([torch.zeros(3, 9, 9)] * 8, [{"boxes": torch.zeros(2, 4)}] * 8), 8, 8),
        (torch.tensor(1.0), 8, 1),
        (3.5, 8, 1),
        (None, None, 1),
        ({}, None, 1),
    ],
)
def test_samples(batch, expected, samples):
    assert samples_of(batch, expected) == samples


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(6.0),
        [torch.arange(6.0), ["a", "b"], 3],
        {"x": torch.arange(6.0), "n": None},
        Pair(torch.arange(6.0), 1),
        Encoding(ids=torch.arange(6.0)),
        Fields("a", torch.arange(6.0)),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_copy_shares_nothing(batch):
    def tensor_of(item):
        if dataclasses.is_dataclass(item):
            item = vars(item)
        parts = (
            [item]
            if isinstance(item, torch.Tensor)
            else list(item.values() if hasattr(item, "values") else item)
        )
        return next(part for part in parts if isinstance(part, torch.Tensor))

    copied = copy_batch(batch)
    assert type(copied) is type(batch)
    tensor_of(copied).zero_()
    assert tensor_of(batch).tolist() == [0, 1, 2, 3, 4, 5]
    assert weight_of(batch).bytes == 24


def test_a_pinned_batch_is_copied_once(monkeypatch):
    """Without a device nothing can be pinned, so a tensor claims that it is, and memory requested
    as pinned is ordinary memory.
    """
    pinned, copies, empty_like = [], [], torch.empty_like
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    monkeypatch.setattr(
        torch, "empty_like", lambda t, pin_memory: (pinned.append(pin_memory), empty_like(t))[1]
    )
    for name in ("clone", "copy_", "pin_memory"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor,
            name,
            lambda *a, name=name, original=original: (copies.append(name), original(*a))[1],
        )
    batch = torch.arange(6.0)
    copied = copy_batch(batch)
    assert copied.equal(batch) and copied.data_ptr() != batch.data_ptr()
    assert pinned == [True] and copies == ["copy_"]


class Pinnable(Record):
    """As in torch's documentation of pinned batches."""

    pinned = False

    def pin_memory(self):
        self.pinned = True
        return self


@pytest.mark.parametrize("pinned", [False, True])
def test_the_copy_of_a_batch_of_the_jobs_own_class_is_pinned_as_the_batch_is(monkeypatch, pinned):
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: pinned)
    batch = Pinnable()
    copied = copy_batch(batch)
    assert copied is not batch and copied.inputs is not batch.inputs
    assert copied.pinned is pinned and not batch.pinned


def test_what_cannot_be_copied_is_passed_on():
    generator = (x for x in range(3))
    assert copy_batch(generator) is generator


def test_a_batch_whose_class_raises_another_error_for_a_missing_attribute():
    batch = Attributes(x=torch.ones(5, 3))
    assert samples_of(batch) == samples_of([batch]) == 5
    assert weight_of(batch).bytes == 60
    copied = copy_batch(batch)
    assert type(copied) is Attributes and copied is not batch
    assert copied["x"] is not batch["x"] and copied["x"].equal(batch["x"])


def test_a_batch_whose_size_cannot_be_determined_is_kept():
    class Odd:
        def element_size(self):
            raise NotImplementedError

        numel = element_size

    kept = KeptBatches()
    kept.keep(Odd(), 4.0)
    assert not kept.full()
    batch, samples = kept.next()
    assert isinstance(batch, Odd) and samples == 4.0
