"""The training loader is switched during a running loop without losing or repeating a sample."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import operator
import random
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from loader_kit import (
    Augmented,
    Broken,
    IndexDataLoader,
    InfiniteDataLoader,
    Numbers,
    flat,
    train,
    wait_for_no_workers,
    workers,
)
from tiers import slow
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)

from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.dataloader.workers_copy import workers_copy

pytestmark = pytest.mark.usefixtures("no_workers_left")

CHANGES = [
    ({}, {"num_workers": 2}),
    ({}, {"num_workers": 1, "prefetch_factor": 5}),
    ({"num_workers": 2}, {"num_workers": 0}),
    slow({"num_workers": 1, "prefetch_factor": 4}, {"num_workers": 0}),
    (
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3, "timeout": 30},
        {"num_workers": 0},
    ),
    ({"num_workers": 1}, {"num_workers": 3}),
    ({"num_workers": 2}, {"prefetch_factor": 6}),
    ({"num_workers": 2}, {"persistent_workers": True}),
    ({"num_workers": 2, "persistent_workers": True}, {"persistent_workers": False}),
    ({"num_workers": 2}, {"in_order": False}),
    ({}, {"pin_memory": True}),
    slow({"num_workers": 2}, {"pin_memory": True}),
    ({}, {"batch_size": 3}),
    slow({}, {"batch_size": 16}),
    ({"num_workers": 2}, {"batch_size": 3}),
    ({"num_workers": 2}, {"batch_size": 16, "num_workers": 1}),
    ({}, {"batch_size": 10, "num_workers": 2}),
]


@pytest.mark.parametrize(("own", "change"), CHANGES, ids=str)
@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_switch_and_back_in_mid_epoch(hook, own, change):
    hooks, heard = hook()
    loader = DataLoader(Numbers(101), batch_size=4, **own)
    back = dict.fromkeys(change)
    for _ in range(2):
        seen = train(hooks, loader, {2: change, 6: back})
        assert not heard.faults
        if change.get("in_order", True):
            assert flat(seen) == list(range(101))
        assert sorted(flat(seen)) == list(range(101))
        assert all(len(batch) == 4 for batch in seen[:3])
        assert all(len(batch) == change.get("batch_size", 4) for batch in seen[3:7])
        assert all(len(batch) == 4 for batch in seen[7:-1])


def test_settings_are_really_in_force(hook):
    hooks, _ = hook()
    iterator = iter(DataLoader(Numbers(400), batch_size=4, num_workers=1))
    next(iterator)
    hooks.choice.credit_backward()
    for change, alive, depth in [
        ({"num_workers": 3}, 3, 6),
        ({"prefetch_factor": 4}, 3, 12),
        ({"num_workers": 0}, 0, 0),
        ({"num_workers": None}, 1, 4),
        ({"prefetch_factor": None}, 1, 2),
    ]:
        hooks.training.set(**change)
        next(iterator)
        assert len(workers()) == alive
        assert hooks.training_source.queue_depth() == depth
        assert hooks.serving.last_rebuild_s > 0
    before = {process.pid for process in workers()}
    hooks.training.set(num_workers=1)  # the job's own value: nothing is rebuilt
    next(iterator)
    assert {process.pid for process in workers()} == before


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sizes", [(4, 7), (7, 4), slow((8, 3))])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batch_size_respects_drop_last(hook, drop_last, sizes, num_workers):
    """The tail is batched with the size in force at the end, even if the old size had already
    dropped part of it.
    """
    hooks, _ = hook()
    old, new = sizes
    length = 45
    for after in range(1, length // old - 1, 1 + 2 * num_workers):
        loader = DataLoader(
            Numbers(length), batch_size=old, drop_last=drop_last, num_workers=num_workers
        )
        hooks.control.set(batch_size=None)
        seen = train(hooks, loader, {after: {"batch_size": new}})
        rest = length - (after + 1) * old
        expected = (length - rest % new) if drop_last else length
        assert flat(seen) == list(range(expected))
        last = (new if rest >= new else old) if drop_last else rest % new or new
        assert len(seen[-1]) == last


SAMPLERS = {
    "random": lambda: RandomSampler(range(60)),
    "replacement": lambda: RandomSampler(range(60), replacement=True, num_samples=77),
    "weighted": lambda: WeightedRandomSampler(torch.arange(1.0, 61), 60),
    "distributed": lambda: DistributedSampler(range(60), num_replicas=2, rank=1),
    "sequential": lambda: SequentialSampler(range(60)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_order_of_every_sampler_survives_switching(hook, name):
    """Three epochs with set_epoch; the same samples in the same order as with torch alone."""

    def epochs(switch):
        torch.manual_seed(3)
        sampler = SAMPLERS[name]()
        loader = DataLoader(Numbers(60), batch_size=4, sampler=sampler)
        out = []
        for epoch in range(3):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            seen = []
            for number, batch in enumerate(loader):
                seen += batch.tolist()
                switch(epoch, number)
            out.append(seen)
        return out

    bare = epochs(lambda epoch, number: None)
    hooks, heard = hook()

    def switch(epoch, number):
        hooks.choice.credit_backward()
        if number == 1:
            hooks.training.set(num_workers=epoch % 2 + 1)
        if number == 3:
            hooks.training.set(batch_size=6 if epoch else 5)
        if number == 5:
            hooks.training.set(num_workers=None, batch_size=None)

    assert epochs(switch) == bare
    assert len({tuple(epoch) for epoch in bare}) == (1 if name == "sequential" else 3)
    assert not heard.faults


def test_batch_sampler_of_the_job_keeps_its_batches(hook):
    hooks, _ = hook()
    batches = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11], [12, 13], [14, 15]]
    loader = DataLoader(Numbers(), batch_sampler=batches)
    assert train(hooks, loader, {1: {"num_workers": 2}, 4: {"num_workers": 0}}) == batches
    assert hooks.choice.facts.custom_batch_sampler and hooks.choice.facts.batch_size is None
    assert hooks.choice.facts.batch_sampler == "list"
    with pytest.raises(ValueError, match="own batch sampler"):
        hooks.training.set(batch_size=8)


def test_torchs_batch_sampler_given_by_hand_can_be_rebatched(hook):
    """As accelerate builds its loaders: with an explicit BatchSampler."""
    hooks, _ = hook()
    loader = DataLoader(
        Numbers(30), batch_sampler=BatchSampler(SequentialSampler(range(30)), 4, False)
    )
    seen = train(hooks, loader, {1: {"batch_size": 10}})
    assert [len(batch) for batch in seen] == [4, 4, 10, 10, 2] and flat(seen) == list(range(30))
    assert (
        hooks.choice.facts.batch_size == 4
        and not hooks.choice.facts.custom_batch_sampler
        and not hooks.choice.facts.batch_sampler
    )


def test_a_batch_size_that_the_job_sets_later_is_its_own(hook):
    hooks, _ = hook()
    loader = DataLoader(Numbers(40), batch_size=4)
    assert len(train(hooks, loader)) == 10
    loader.batch_sampler.batch_size = 16
    assert [len(batch) for batch in train(hooks, loader)] == [16, 16, 8]
    seen = train(hooks, loader, {0: {"batch_size": 10}, 1: {"batch_size": None}})
    assert [len(batch) for batch in seen] == [16, 10, 14]
    hooks.uninstall()
    assert loader.batch_sampler.batch_size == 16


def test_a_held_batch_size_leaves_the_one_that_the_job_set_meanwhile(hook):
    hooks, _ = hook(mode="fixed")
    loader = DataLoader(Numbers(40), batch_size=4)
    loader.batch_sampler.batch_size = 20
    hooks.overrides.selected = hooks.tracked(loader).key
    hooks.training.set(batch_size=10)
    assert len(loader) == 4 and [len(batch) for batch in loader] == [10] * 4
    hooks.uninstall()
    assert [len(batch) for batch in loader] == [20] * 2


def test_a_loader_that_closes_something_at_its_end_does_so_once(hook):
    class Closing(DataLoader):
        def __del__(self):
            closed.append(self)

    closed = []
    hooks, heard = hook()
    loader = Closing(Numbers(40), batch_size=4)
    for _ in range(2):
        assert flat(train(hooks, loader, {1: {"pin_memory": True}})) == list(range(40))
    gc.collect()
    assert closed == [] and not heard.faults


def test_no_batching_at_all(hook):
    hooks, _ = hook()
    loader = DataLoader(Numbers(30), batch_size=None)
    assert train(hooks, loader, {3: {"num_workers": 2}, 9: {"num_workers": 1}}) == list(range(30))


def test_infinite_loader_that_overrides_iter(hook):
    hooks, _ = hook()
    loader = InfiniteDataLoader(Numbers(20), batch_size=4, num_workers=1)
    for _ in range(3):
        assert flat(train(hooks, loader, {1: {"num_workers": 2}, 3: {"num_workers": 0}})) == list(
            range(20)
        )
    assert hooks.choice.facts.custom_batch_sampler and hooks.choice.facts.length == 5
    del loader.iterator


@pytest.mark.parametrize(
    "change",
    [{"num_workers": 1}, {"batch_size": 8}, {"num_workers": 1, "persistent_workers": True}],
)
def test_a_loader_that_shows_torch_another_dataset_than_the_job(hook, change):
    hooks, heard = hook()
    loader = IndexDataLoader(Numbers(40), batch_size=4)
    seen = train(hooks, loader)
    for _ in range(2):
        assert flat(train(hooks, loader, {1: change, 3: dict.fromkeys(change)})) == flat(seen)
    hooks.serving.stretch = True
    assert flat(train(hooks, loader, {1: change}, limit=12))[:40] == list(range(40))
    assert not heard.faults and loader.dataset is loader._data


def test_values_that_cannot_be_are_refused(hook):
    hooks, _ = hook(mode="fixed")
    for wrong in (
        {"num_workers": -1},
        {"batch_size": 0},
        {"num_workers": "4"},
        {"prefetch_factor": 1.5},
    ):
        with pytest.raises(ValueError, match="expected a whole number"):
            hooks.training.set(**wrong)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(hook, method):
    hooks, heard = hook()
    loader = DataLoader(Numbers(40), batch_size=4, num_workers=1, multiprocessing_context=method)
    seen = train(hooks, loader, {2: {"num_workers": 0}, 4: {"num_workers": 2}})
    assert flat(seen) == list(range(40)) and not heard.faults


# -- when things go wrong


@pytest.mark.parametrize("own", [0, 2])
def test_worker_errors_reach_the_job_as_they_are(hook, own):
    hooks, heard = hook()
    loader = DataLoader(Broken(40), batch_size=4, num_workers=own)
    text = ""
    try:
        train(hooks, loader, {1: {"num_workers": 2 - own}})
    except ValueError as error:
        text = str(error)
        # torch leaves a reference cycle through its frames, which would keep the iterator alive
        error.__traceback__ = None
    assert "picture 13 is torn" in text
    assert own or ("in __getitem__" in text and "DataLoader worker process" in text)
    assert not heard.faults


def test_after_an_error_the_iterator_goes_on_as_torchs_does(hook):
    def survivors(prepare):
        loader = DataLoader(Broken(40), batch_size=4, num_workers=2)
        iterator, out = iter(loader), []
        while True:
            try:
                out.append(next(iterator).tolist())
                prepare(len(out))
            except StopIteration:
                return out
            except ValueError:
                out.append("error")

    bare = survivors(lambda number: None)
    hooks, _ = hook()

    def prepare(number):
        hooks.choice.credit_backward()
        if number == 6:
            hooks.training.set(num_workers=1)

    assert survivors(prepare) == bare and bare.count("error") == 1


class Unpicklable(Numbers):
    def __init__(self, length=40):
        super().__init__(length)
        self.lock = threading.Lock()


def test_workers_that_cannot_start_leave_the_job_at_its_own_settings(hook):
    hooks, heard = hook()
    loader = DataLoader(Unpicklable(40), batch_size=4)
    loader.__dict__["_DataLoader__multiprocessing_context"] = multiprocessing.get_context("spawn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = train(hooks, loader, {2: {"num_workers": 2}})
    assert flat(seen) == list(range(40))
    assert (
        len(heard.faults) == 1
        and "num_workers=2" in heard.faults[0][0]
        and "pickle" in heard.faults[0][1]
    )


class Starving(Numbers):
    """At one item, workers started by a knob report that shared memory has run out."""

    def __init__(self, length, epoch):
        super().__init__(length)
        self.left = multiprocessing.Value("i", epoch)  # how often workers can read item 9

    def __getitem__(self, index):
        if index == 9 and get_worker_info() is not None:
            self.left.value -= 1
            if self.left.value < 0:
                raise RuntimeError("unable to open shared memory object: Too many open files")
        return torch.tensor(index)


@pytest.mark.parametrize("in_order", [True, False])
def test_no_batch_is_lost_where_a_worker_hands_over_that_it_cannot_go_on(hook, in_order):
    hooks, heard = hook()
    loader = DataLoader(Starving(40, 0), batch_size=4)
    seen = train(hooks, loader, {0: {"num_workers": 2, "in_order": in_order}})
    assert sorted(flat(seen)) == list(range(40)) and len(heard.faults) == 1


class OnGpu(Numbers):
    """Computes on the GPU, which the training process uses, too."""

    def __getitem__(self, index):
        if get_worker_info() is not None:
            torch.cuda.init()
        return torch.tensor(index)


def test_workers_that_cannot_use_cuda_leave_the_job_at_its_own_settings(hook, monkeypatch):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    hooks, heard = hook()
    seen = train(hooks, DataLoader(OnGpu(40), batch_size=4), {2: {"num_workers": 2}})
    assert flat(seen) == list(range(40)) and len(heard.faults) == 1
    assert "num_workers=2" in heard.faults[0][0] and "re-initialize CUDA" in heard.faults[0][1]


def test_the_first_batch_of_a_stretched_epoch_goes_back_too(hook):
    hooks, heard = hook()
    hooks.serving.set_stretch(True)
    loader = DataLoader(Starving(12, 1), batch_size=12)
    seen = train(hooks, loader, {0: {"num_workers": 1}}, limit=4)
    assert flat(seen) == list(range(12)) * 4 and len(heard.faults) == 1


def test_trouble_of_ours_leaves_the_job_alone(hook):
    hooks, heard = hook()

    class Failing(Listener):
        def batch_given(self, given):
            raise RuntimeError("listener broke")

    loader = DataLoader(Numbers(40), batch_size=4)
    iterator = iter(loader)
    first = next(iterator).tolist()
    hooks.events.listen(Failing())
    rest = [batch.tolist() for batch in iterator]
    assert flat([first, *rest]) == list(range(40))
    assert heard.faults[0][0] == "DataLoader.__next__" and "listener broke" in heard.faults[0][1]
    assert type(iter(loader)).__name__ == "_SingleProcessDataLoaderIter"  # not the agent's


def test_iterator_that_cannot_be_wrapped_falls_back(hook):
    class Own(DataLoader):
        @property
        def _index_sampler(self):
            return BatchSampler(range(8), 2, False)

    hooks, heard = hook()
    assert [batch.tolist() for batch in Own(Numbers(8))] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert "_index_sampler" in heard.faults[0][1]


def test_interrupt_passes_through(hook):
    class Interrupted(Numbers):
        def __getitem__(self, index):
            if index == 9:
                raise KeyboardInterrupt
            return index

    hook()
    with pytest.raises(KeyboardInterrupt):
        list(DataLoader(Interrupted(20), batch_size=4))


# -- processes


@pytest.mark.parametrize(
    "change", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
)
def test_abandoned_iterator_ends_its_workers(hook, change):
    hooks, _ = hook()
    loader = DataLoader(Numbers(400), batch_size=4)
    for _ in range(3):
        train(hooks, loader, {0: change}, limit=5)
        assert len(workers()) <= 2
    kept = len(workers())
    assert kept == (2 if "persistent_workers" in change else 0)
    hooks.training.set(**dict.fromkeys(change))
    del loader
    gc.collect()
    assert wait_for_no_workers() == []


def test_persistent_workers_set_by_a_knob_live_from_epoch_to_epoch(hook):
    hooks, _ = hook(mode="fixed")
    loader = DataLoader(Numbers(24), batch_size=4)
    hooks.overrides.selected = hooks.tracked(loader).key
    hooks.training.set(num_workers=2, persistent_workers=True)
    pids = []
    for _ in range(3):
        assert flat(train(hooks, loader)) == list(range(24))
        pids.append({process.pid for process in workers()})
    assert len(pids[0]) == 2 and pids[0] == pids[1] == pids[2]
    hooks.uninstall()
    assert wait_for_no_workers() == []


@pytest.mark.parametrize("epoch", [6, 4])
def test_persistent_workers_set_by_a_knob_live_on_where_batches_are_counted(hook, epoch):
    """The job starts a new epoch without reaching the end of the last one. With ``epoch`` 4, two
    batches are left, which it may still fetch.
    """
    hooks, _ = hook(mode="fixed")
    loader = DataLoader(Numbers(24), batch_size=4)
    hooks.overrides.selected = hooks.tracked(loader).key
    hooks.training.set(num_workers=2, persistent_workers=True)
    pids, iterators = [], []
    for _ in range(3):
        iterators.append(iter(loader))
        seen = [next(iterators[-1]).tolist() for _ in range(epoch)]
        assert flat(seen) == list(range(4 * epoch))
        pids.append({process.pid for process in workers()})
    assert pids[0] == pids[1] == pids[2] if epoch == 6 else len(pids[2]) == 6
    assert flat([batch.tolist() for batch in iterators[0]]) == list(range(4 * epoch, 24))
    iterators.clear()
    hooks.uninstall()
    assert wait_for_no_workers() == []


def test_persistent_workers_of_the_job_end_with_each_epoch_if_a_knob_says_so(hook):
    hooks, _ = hook(mode="fixed")
    loader = DataLoader(Numbers(24), batch_size=4, num_workers=2, persistent_workers=True)
    hooks.overrides.selected = hooks.tracked(loader).key
    hooks.training.set(persistent_workers=False)
    for _ in range(2):
        assert flat(train(hooks, loader)) == list(range(24))
        assert wait_for_no_workers() == []
    hooks.training.set(persistent_workers=None)
    for _ in range(2):
        assert flat(train(hooks, loader)) == list(range(24))
        assert len(workers()) == 2


EPOCH = {"now": 0}


@pytest.mark.parametrize("nested", [False, True])
def test_dataset_changed_between_epochs_is_seen_by_workers_a_knob_keeps(hook, nested):
    class Table(Numbers):
        shift = 0

        def __init__(self):
            super().__init__(12)
            self.soft, self.large = dict.fromkeys(range(40), 0), np.zeros(1 << 18)
            self.scale, self.transform, self.rows = 1, abs, list(range(30))
            self.labels, self.weights = np.zeros(12), torch.zeros(12)

        def __getitem__(self, index):
            more = self.labels[index] + float(self.weights[index]) + sum(self.rows[20:])
            more += self.shift + EPOCH["now"] + self.soft[39] + self.large[index]
            return self.transform(self.rows[index]) * self.scale + more

    table = Table()
    dataset = Subset(table, range(12)) if nested else table
    hooks, _ = hook(mode="fixed")
    loader = DataLoader(dataset, batch_size=4)
    hooks.overrides.selected = hooks.tracked(loader).key
    hooks.training.set(num_workers=1, persistent_workers=True)
    changes = [
        lambda: setattr(table, "scale", 10),
        lambda: setattr(table, "transform", lambda row: -row),
        lambda: setattr(table, "rows", list(range(3, 63, 2))),
        lambda: table.rows.reverse(),
        lambda: operator.setitem(table.rows, 29, 1000),
        lambda: operator.setitem(table.labels, 11, 100.0),
        lambda: table.weights.add_(1000.0),
        lambda: setattr(Table, "shift", 3),
        lambda: operator.setitem(EPOCH, "now", EPOCH["now"] + 7),
        lambda: operator.setitem(table.soft, 39, 2000),
        lambda: operator.iadd(table.large, 5),
    ]
    for change in changes:
        before = flat(train(hooks, loader))
        change()
        seen = flat(train(hooks, loader))
        assert seen == [table[index] for index in range(12)] and seen != before


def test_functions_changed_between_epochs_are_seen_by_workers_a_knob_keeps(hook):
    class Resize:
        size, calls = 1, 0

        def __call__(self, rows):
            return [row * self.size for row in rows]

        def collate(self, rows):
            return [row * self.size for row in rows]

    def bound(rows):
        return [row * factor for row in rows]

    factor, resize = 4, Resize()
    loader = DataLoader(Numbers(12), batch_size=4, collate_fn=resize)
    hooks, _ = hook(mode="fixed")
    hooks.overrides.selected = hooks.tracked(loader).key
    hooks.training.set(num_workers=1, persistent_workers=True)

    def rows():
        return [row for batch in train(hooks, loader) for row in batch]

    def change_closure():
        nonlocal factor
        factor = 5

    changes = [
        (2, lambda: setattr(resize, "size", 2)),
        (4, lambda: setattr(loader, "collate_fn", functools.partial(bound))),
        (5, change_closure),
        (2, lambda: setattr(loader, "collate_fn", resize.collate)),
        (3, lambda: setattr(resize, "size", 3)),
    ]
    assert rows() == list(range(12))
    kept = workers()
    assert rows() == list(range(12)) and workers() == kept
    for expected, change in changes:
        change()
        assert rows() == [row * expected for row in range(12)]
    kept = workers()
    resize.calls += 1  # collate() does not read it
    assert rows() == [row * 3 for row in range(12)] and workers() == kept


def test_loader_dropped_while_iterated(hook):
    hooks, _ = hook()
    for _ in range(2):
        seen = []
        for batch in DataLoader(Numbers(24), batch_size=4):
            seen += batch.tolist()
            hooks.choice.credit_backward()
            hooks.training.set(num_workers=len(seen) % 3)
        assert seen == list(range(24))


def test_next_of_a_new_iterator_every_step(hook):
    hooks, _ = hook()
    loader = DataLoader(Numbers(24), batch_size=4)
    for step in range(6):
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        hooks.choice.credit_backward()
        hooks.training.set(num_workers=step % 2)
    assert hooks.choice.facts.samples == 24


# -- everything together


SEEDS = [(1, True), slow(2, True), slow(5, True), slow(9, True), (10, False)]


@pytest.mark.parametrize(("seed", "shuffle"), SEEDS)
@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_thirty_random_switches_lose_and_repeat_nothing(hook, seed, shuffle):
    choose = random.Random(seed)
    own = choose.choice(
        [
            {},
            {"num_workers": 1},
            {"num_workers": 2, "persistent_workers": True},
            {"num_workers": 2, "drop_last": True},
        ]
    )
    epochs, length = 5, 331

    def expected():
        torch.manual_seed(seed)
        loader = DataLoader(Numbers(length), batch_size=8, shuffle=shuffle, **own)
        return [flat(batch.tolist() for batch in loader) for _ in range(epochs)]

    order = expected()
    hooks, heard = hook()
    torch.manual_seed(seed)
    loader = DataLoader(Numbers(length), batch_size=8, shuffle=shuffle, **own)
    switches = 0
    for epoch in range(epochs):
        seen: list[int] = []
        size, ordered = 8, hooks.overrides.values.get("in_order") is not False
        for batch in loader:
            seen += batch.tolist()
            hooks.choice.credit_backward()
            if choose.random() < 0.35 and switches < 30:
                switches += 1
                hooks.training.set(
                    **choose.choice(
                        [
                            {"num_workers": choose.choice([0, 1, 2, None])},
                            {"batch_size": choose.choice([3, 8, 13, None])},
                            {"prefetch_factor": choose.choice([1, 2, 5, None])},
                            {"persistent_workers": choose.choice([True, False, None])},
                            {"in_order": choose.choice([True, False, None])},
                            {"pin_memory": choose.choice([True, None])},
                        ]
                    )
                )
            ordered = ordered and hooks.overrides.values.get("in_order") is not False
            size = hooks.overrides.values.get("batch_size", 8)
        dropped = length - len(seen)
        assert len(set(seen)) == len(seen)
        assert 0 <= dropped < max(size, 13) if own.get("drop_last") else dropped == 0
        if ordered:
            both = min(len(seen), len(order[epoch]))  # drop_last may drop a different tail
            assert seen[:both] == order[epoch][:both]
    assert not heard.faults
    assert sum(samples for _, samples, _, _ in heard.batches) == epochs * length or own.get(
        "drop_last"
    )
    assert switches == 30


def test_augmentation_is_not_repeated_by_a_rebuilt_source(hook):
    hooks, _ = hook()
    torch.manual_seed(0)
    noise = []
    for number, (values, index) in enumerate(
        DataLoader(Augmented(120), batch_size=4, num_workers=1)
    ):
        noise += (values - index[:, None]).flatten().tolist()
        hooks.choice.credit_backward()
        hooks.training.set(num_workers=1 + number % 2)
    assert len({round(value, 4) for value in noise}) > 0.9 * len(noise)


SETTINGS = SimpleNamespace(size=4, step=0)


class OfSettings(Numbers):
    fetched = 0

    def __getitem__(self, index):
        OfSettings.fetched += 1
        return torch.zeros(SETTINGS.size) + MODEL.in_features


MODEL = torch.nn.Linear(2, 1)


def test_what_fetching_does_not_read_restarts_no_workers():
    """Counters, the step in the program's settings, the parameters of a model named for its sizes."""
    loader = DataLoader(OfSettings(8), batch_size=2)
    before = workers_copy(loader)
    assert len(loader.dataset[0]) == 4
    SETTINGS.step = 1
    with torch.no_grad():
        MODEL.weight.add_(1)
    assert workers_copy(loader) == before
    SETTINGS.size = 5
    assert workers_copy(loader) != before
