"""A random generator that the dataset keeps: forked workers would all draw the same from it."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data.dataloader as data
from torch.utils.data import DataLoader, Dataset, Subset

from autotune_spaces.base import NotApplicable
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.knobs import create
from autotune_trials.agent.dataloader.facts import describe

SHARED = np.random.default_rng(1)


class Augmented(Dataset[float]):
    def __init__(self) -> None:
        self.rng: Any = np.random.default_rng(0)
        self.order = self.rng.permutation(16)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


class Transformed(Augmented):
    """The generator is two objects down."""

    def __init__(self) -> None:
        self.transforms = [Noise()]

    def __getitem__(self, index: int) -> float:
        return self.transforms[0](index)


class Noise:
    def __init__(self) -> None:
        self.source = random.Random(0)

    def __call__(self, value: float) -> float:
        return value + self.source.random()


class Global(Augmented):
    def __getitem__(self, index: int) -> float:
        return float(SHARED.random())


class Shuffled(Augmented):
    """Uses it while it is built, and no more."""

    def __getitem__(self, index: int) -> float:
        return float(self.order[index])


class Built(Augmented):
    """Uses it in a method of its constructor's, and shuffles between epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.build()

    def build(self) -> None:
        self.order = self.rng.permutation(16)

    def on_epoch_end(self) -> None:
        self.rng.shuffle(self.order)

    def __getitem__(self, index: int) -> float:
        return float(self.order[index])


class Resampled(Augmented):
    """Seeds it for every epoch, as WebDataset does."""

    epoch = 0

    def __iter__(self) -> Any:
        self.epoch += 1
        self.rng = random.Random(self.epoch)
        return iter([self.draw()])

    def draw(self) -> float:
        return float(self.rng.random())

    def __getitem__(self, index: int) -> float:
        raise NotImplementedError


class Reseeded(Augmented):
    def __getitem__(self, index: int) -> float:
        self.rng = self.rng or np.random.default_rng()
        return float(self.rng.random())


class SampleSeeded(Augmented):
    def __init__(self) -> None:
        self.rng = random.Random()

    def __getitem__(self, index: int) -> float:
        self.rng.seed(index)
        return float(self.rng.random())


class FromSystem(Augmented):
    def __init__(self) -> None:
        self.rng = random.SystemRandom()


def worker_number() -> int:
    info = torch.utils.data.get_worker_info()
    return 0 if info is None else info.id


class AwareByHelper(Augmented):
    def __getitem__(self, index: int) -> float:
        self.number = worker_number()
        return float(self.rng.random())


class ByMethod(Augmented):
    def __getitem__(self, index: int) -> float:
        return self.draw()

    def draw(self) -> float:
        return float(self.rng.random())


class Aware(Augmented):
    def __getitem__(self, index: int) -> float:
        if torch.utils.data.get_worker_info() is not None:
            self.rng = np.random.default_rng(torch.initial_seed())
        return float(self.rng.random())


class Several(Augmented):
    """One for each kind of augmentation."""

    def __init__(self) -> None:
        self.rngs: Any = {"crop": np.random.default_rng(0), "flip": np.random.default_rng(1)}

    def __getitem__(self, index: int) -> float:
        return float(self.rngs["crop"].random())


class Method(Augmented):
    def __init__(self) -> None:
        self.draw = np.random.default_rng(0).random

    def __getitem__(self, index: int) -> float:
        return float(self.draw())

    def collate(self, items: list[float]) -> Any:
        return self.draw()


def collate(items: list[float], rng: Any = None) -> Any:
    return rng.random()


def enclosing() -> Any:
    rng = np.random.default_rng(0)
    return lambda items: rng.random()


def seeded_alike(worker_id: int) -> None:
    np.random.seed(42 + worker_id)


def seed_everything(seed: int) -> None:
    np.random.seed(seed)
    torch.manual_seed(seed)


def seeded_alike_by_another(worker: int) -> None:
    seed_everything(worker)


def seeded_there(worker: int) -> None:
    torch.utils.data.get_worker_info().dataset.rng = np.random.default_rng(worker)


def one_thread(worker: int) -> None:
    torch.set_num_threads(1)


def seeded_anew(worker_id: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)


def found(dataset: Any, **more: Any) -> str:
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=2, **more)
    return describe(data, loader, "k#0", "k:1", 2).own_generator


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (Augmented(), "Augmented.rng"),
        (Subset(Augmented(), [1, 2]), "Augmented.rng"),
        (Transformed(), "Noise.source"),
        (Global(), "SHARED"),
        (Shuffled(), ""),
        (ByMethod(), "ByMethod.rng"),
        (Several(), "Several.rngs"),
        (Method(), "Method.draw"),
        (Aware(), ""),
        (AwareByHelper(), ""),
        (Built(), ""),
        (Resampled(), ""),
        (Reseeded(), ""),
        (SampleSeeded(), ""),
        (FromSystem(), ""),
        ([1.0, 2.0], ""),
    ],
)
def test_it_is_found_where_fetching_uses_it(dataset: Any, name: str) -> None:
    assert found(dataset) == name
    assert found(dataset, worker_init_fn=print) == "", "it may do anything"
    assert found(dataset, worker_init_fn=seeded_there) == "", "workers are seeded by the job"
    assert found(dataset, worker_init_fn=one_thread) == name, "it has nothing to do with that"


def test_such_a_loader_gets_no_workers() -> None:
    loader: DataLoader[Any] = DataLoader(Augmented(), batch_size=2)
    facts = describe(data, loader, "k#0", "k:1", 2)
    machine = Machine(4, 16.0, 4.0, "cpu", "", "2.13", "3.11")
    with pytest.raises(NotApplicable, match=r"Augmented\.rng"):
        create("num_workers").candidates(machine, JobFacts(1, "cpu", facts, (), ()))


class Unreadable:
    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("not connected")


def test_a_dataset_that_cannot_be_inspected_gets_no_workers() -> None:
    loader: DataLoader[Any] = DataLoader([Unreadable()], batch_size=2)
    facts = describe(data, loader, "k#0", "k:1", 2)
    assert facts.own_generator == facts.open_file
    machine = Machine(4, 16.0, 4.0, "cpu", "", "2.13", "3.11")
    with pytest.raises(NotApplicable, match=r"list, which cannot be inspected \(RuntimeError\)"):
        create("num_workers").candidates(machine, JobFacts(1, "cpu", facts, (), ()))


def test_it_is_found_in_a_collate_function() -> None:
    rng = np.random.default_rng(0)
    bound = functools.partial(collate, rng=rng)
    assert found(range(16), collate_fn=bound) == "collate.rng"
    assert found(range(16), collate_fn=enclosing()) == "rng"
    assert found(range(16), collate_fn=Method().collate) == "Method.draw"
    assert found(range(16), collate_fn=functools.partial(collate, rng=None)) == ""


def test_neither_does_one_whose_workers_are_seeded_alike_in_every_epoch() -> None:
    """Without workers the function has no effect."""
    machine = Machine(4, 16.0, 4.0, "cpu", "", "2.13", "3.11")
    for function, name in (
        (seeded_alike, "seeded_alike"),
        (seeded_alike_by_another, "seeded_alike_by_another"),
        (seeded_anew, ""),
        (print, ""),
    ):
        loader: DataLoader[Any] = DataLoader(range(16), batch_size=2, worker_init_fn=function)
        facts = describe(data, loader, "k#0", "k:1", 2)
        assert facts.fixed_seeds == name
        job = JobFacts(1, "cpu", facts, (), ())
        if name:
            with pytest.raises(NotApplicable, match=r"seeded_alike.*torch\.initial_seed"):
                create("num_workers").candidates(machine, job)
        else:
            assert create("num_workers").candidates(machine, job)
