"""Which loader trains, its facts, its epochs and stretched epochs, and cached batches for the
ceiling.
"""

from __future__ import annotations

import functools
import gc
import inspect
import math
import os
import subprocess
import sys
import time
from threading import Timer
from types import ModuleType, SimpleNamespace

import pytest
import torch
from loader_kit import (
    Numbers,
    ShardedStream,
    SizedStream,
    Stream,
    flat,
    train,
    wait_for_no_workers,
    workers,
)
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from autotune_trials.agent.dataloader import reader_meter
from autotune_trials.agent.dataloader.worker_ends import was_killed
from autotune_trials.agent.dataloader.worker_safety import shards

pytestmark = pytest.mark.usefixtures("no_workers_left")


def line() -> int:
    return inspect.currentframe().f_back.f_lineno


# -- which one trains


def test_a_loader_that_makes_its_iterators_itself_is_named(hook):
    class Own(DataLoader):  # like litdata's StreamingDataLoader
        def _get_iterator(self):
            return iter(map(torch.stack, [[torch.ones(4)] * 4] * 3))

    hooks, heard = hook()
    train(hooks, DataLoader(Numbers(40), batch_size=4))
    assert hooks.makes_iterators == ""
    list(Own(Numbers(40), batch_size=4))
    assert hooks.makes_iterators == "Own" and not heard.faults


def test_the_loader_followed_by_backward_trains(hook):
    hooks, heard = hook()
    training = DataLoader(Numbers(40), batch_size=4, shuffle=True)
    site = line() - 1
    validation = DataLoader(Numbers(12), batch_size=4)
    list(validation)  # e.g. a sanity check before training
    assert hooks.training is None and hooks.choice.facts is None
    train(hooks, training)
    list(validation)
    facts = hooks.choice.facts
    assert (facts.site, facts.key) == (
        f"test_loader_tracking.py:{site}",
        f"test_loader_tracking.py:{site}#0",
    )
    assert (facts.dataset, facts.batch_size, facts.length, facts.samples) == ("Numbers", 4, 10, 40)
    assert (facts.num_workers, facts.prefetch_factor, facts.iterable, facts.worker_sharding) == (
        0,
        None,
        False,
        True,
    )
    assert {key for key, *_ in heard.batches} == {
        facts.key,
        facts.key.replace(str(site), str(site + 2)),
    }


def test_a_batch_fetched_before_an_evaluation_does_not_change_the_training_loader(hook):
    """The job fetches the next batch, then runs the validation set, then backward."""
    hooks, _ = hook()
    training, validation = (
        DataLoader(Numbers(40), batch_size=4),
        DataLoader(Numbers(8), batch_size=4),
    )
    iterator = iter(training)
    seen = next(iterator).tolist()
    for step in range(9):
        seen += next(iterator).tolist()
        if step and step % 3 == 0:
            list(validation)
        hooks.choice.credit_backward()
        assert hooks.choice.facts.samples == 40
        hooks.training.set(num_workers=step % 2)
    assert seen == list(range(40))


def test_training_that_moves_to_another_loader_is_followed(hook):
    hooks, _ = hook()
    search, training = DataLoader(Numbers(8), batch_size=4), DataLoader(Numbers(400), batch_size=4)
    train(hooks, search)
    hooks.training.set(num_workers=1)
    iterator = iter(training)
    for _ in range(3):
        assert hooks.choice.facts.samples == 8
        next(iterator)
        hooks.choice.credit_backward()
    assert hooks.choice.facts.samples == 400 and hooks.training_source.queue_depth() == 0
    next(iterator)
    assert hooks.training_source.queue_depth() == 2 and len(workers()) == 1


def test_several_backwards_a_batch_count_once(hook):
    hooks, _ = hook()
    first, second = DataLoader(Numbers(40), batch_size=4), DataLoader(Numbers(8), batch_size=4)
    train(hooks, first)
    next(iter(second))
    for _ in range(20):
        hooks.choice.credit_backward()
    assert hooks.choice.facts.samples == 40


def test_loader_built_anew_every_epoch_is_one_family(hook):
    hooks, _ = hook()
    keys = set()
    for epoch in range(4):
        loader = DataLoader(Numbers(40), batch_size=4, shuffle=True)
        validation = DataLoader(Numbers(8), batch_size=4)
        iterator = iter(loader)
        next(iterator)
        assert len(workers()) == (1 if epoch else 0)  # settings apply from its first batch
        hooks.choice.credit_backward()
        keys.add(hooks.choice.facts.key)
        hooks.training.set(num_workers=1)
        train(hooks, iterator)
        list(validation)
        del iterator
    assert len(keys) == 1


def make(split):
    return DataLoader(Numbers(40 if split == "train" else 20), batch_size=4)


def test_a_loader_built_around_a_held_batch_sampler_is_of_the_same_family(hook):
    """As accelerate does: it must not mistake the batch size held by a knob for the job's own."""
    hooks, _ = hook(mode="fixed")
    loader = DataLoader(Numbers(40), batch_size=4)
    first = hooks.tracked(loader)
    hooks.overrides.selected = first.key
    hooks.training.set(batch_size=8, num_workers=1)
    state = hooks.tracked(DataLoader(Numbers(40), batch_sampler=loader.batch_sampler))
    assert (state.key, state.batch_size) == (first.key, 4)


def test_loaders_of_one_site_are_told_apart(hook):
    hooks, _ = hook()
    training, validation = make("train"), make("validation")
    train(hooks, training)
    assert hooks.choice.facts.key.endswith("#0")
    hooks.training.set(num_workers=1)
    next(iter(validation))
    assert workers() == []


def test_looking_for_cycles_in_a_job_of_many_loaders_comes_to_an_end(hook, monkeypatch):
    """Each look goes through all objects of the process."""
    looks, look = [], gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *held: looks.append(held) or look(*held))
    for most_s, expected in ((60.0, 8), (0.0, 1)):
        monkeypatch.setattr(
            "autotune_trials.agent.dataloader.training_choice.MOST_LOOKING_S", most_s
        )
        hooks, _ = hook()
        loaders = [DataLoader(Numbers(length), batch_size=4) for length in range(4, 12)]
        for loader in 2 * loaders:
            next(iter(loader))
        hooks.uninstall()
        assert len(looks) == expected
        looks.clear()


def test_site_of_a_subclass_is_where_the_job_builds_it(hook):
    class Own(DataLoader):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    hooks, _ = hook()
    loader = Own(Numbers(8), batch_size=4)
    site = line() - 1
    train(hooks, loader)
    assert hooks.choice.facts.site == f"test_loader_tracking.py:{site}"


def test_signature_for_frameworks_that_build_loaders_anew(hook):
    bare = inspect.signature(DataLoader.__init__), inspect.getfullargspec(DataLoader.__init__)
    hook()
    assert (
        inspect.signature(DataLoader.__init__),
        inspect.getfullargspec(DataLoader.__init__),
    ) == bare
    assert "prefetch_factor" in inspect.signature(DataLoader).parameters


# -- settings held from the start


def test_settings_wait_for_the_loader_of_the_key(hook):
    site = line() + 4
    hooks, _ = hook(mode="fixed", loader_key=f"test_loader_tracking.py:{site}#0")
    hooks.training.set(batch_size=10, num_workers=1)
    validation = DataLoader(Numbers(40), batch_size=4)
    training = DataLoader(Numbers(40), batch_size=4)
    assert (len(validation), len(training), training.batch_size) == (10, 4, 10)
    assert [len(batch) for batch in validation] == [4] * 10
    iterator = iter(training)
    assert len(workers()) == 1
    assert [len(batch) for batch in iterator] == [10] * 4
    train(hooks, training)
    facts = hooks.choice.facts
    assert (facts.batch_size, facts.num_workers, facts.length) == (4, 0, 10)  # the job's own
    assert hooks.training_source.epoch_iterations() == 4
    hooks.uninstall()
    assert (len(training), training.batch_size) == (10, 4)
    assert [len(batch) for batch in training] == [4] * 10


@pytest.mark.parametrize("key", ["", "elsewhere.py:1#0"])
def test_settings_without_a_known_key_go_to_the_first_loader_that_trains(hook, key):
    hooks, _ = hook(mode="fixed", loader_key=key)
    hooks.training.set(num_workers=2, batch_size=8)
    validation, training = (
        DataLoader(Numbers(12), batch_size=4),
        DataLoader(Numbers(40), batch_size=4),
    )
    list(validation)
    assert workers() == []
    seen = train(hooks, training)
    assert [len(batch) for batch in seen] == [4, 8, 8, 8, 8, 4] and flat(seen) == list(range(40))
    assert [len(batch) for batch in train(hooks, training)] == [8] * 5
    assert [len(batch) for batch in validation] == [4] * 3


# -- epochs


def test_stretched_epoch_goes_on_and_ends_when_told(hook):
    hooks, heard = hook()
    hooks.serving.set_stretch(True)
    loader = DataLoader(Numbers(12), batch_size=4, num_workers=1)
    seen = []
    for number, batch in enumerate(loader):
        seen += batch.tolist()
        hooks.choice.credit_backward()
        hooks.loop_state.iterations += 1
        if number == 10:
            hooks.serving.set_stretch(False)
    assert seen == list(range(12)) * 4
    turnovers = [turnover for *_, turnover in heard.batches]
    assert [turnover is not None for turnover in turnovers] == [False] * 3 + [
        True,
        False,
        False,
    ] * 3
    assert all(wait == 0 for _, _, wait, turnover in heard.batches if turnover is not None)
    assert heard.ends == 4


def test_stretching_leaves_evaluation_alone_even_over_the_training_loader(hook):
    hooks, _ = hook()
    hooks.serving.set_stretch(True)
    training = DataLoader(Numbers(12), batch_size=4)
    train(hooks, training, limit=20)
    assert len(list(training)) == 3
    assert len(list(DataLoader(Numbers(8), batch_size=4))) == 2


def test_a_pass_without_a_step_ends(hook):
    """The job steps after its loop, with the gradient of all its data, or evaluates with
    gradients.
    """
    hooks, _ = hook()
    hooks.serving.set_stretch(True)
    loader = DataLoader(Numbers(40), batch_size=4)
    for cached in (False, True, True):
        hooks.serving.serve_cached(cached)
        iterator = iter(loader)
        for seen, _ in enumerate(iterator, 1):
            hooks.choice.credit_backward()
            assert seen <= 10
        hooks.loop_state.iterations += 1
        assert hooks.serving.withheld is cached
    train(hooks, loader, limit=30)
    assert not hooks.serving.withheld


def test_stretched_source_that_cannot_begin_again_ends(hook):
    class Once(IterableDataset):
        left = iter(range(12))

        def __iter__(self):
            return self.left

    hooks, _ = hook()
    hooks.serving.set_stretch(True)
    assert flat(train(hooks, DataLoader(Once(), batch_size=4))) == list(range(12))


def test_turnover_between_epochs_leaves_out_what_the_job_does_there(hook):
    class Slow(Numbers):
        def __getitem__(self, index):
            if index == 0:
                time.sleep(0.2)
            return index

    hooks, heard = hook()
    loader = DataLoader(Slow(8), batch_size=4)
    train(hooks, loader)
    time.sleep(2.0)
    train(hooks, loader)
    assert [turnover is None for *_, turnover in heard.batches] == [True, True, False, True]
    assert 0.2 <= heard.batches[2][3] < 2.0
    assert 0.2 <= heard.batches[0][2] < 2.0 and heard.batches[1][2] < 0.2


def test_epoch_iterations_follow_the_settings(hook):
    hooks, _ = hook()
    train(hooks, loader := DataLoader(Numbers(45), batch_size=4, drop_last=True))
    assert hooks.training_source.epoch_iterations() == 11
    hooks.training.set(batch_size=10)
    assert hooks.training_source.epoch_iterations() == 4
    hooks.training.set(batch_size=None, num_workers=1)
    assert hooks.training_source.epoch_iterations() == len(loader) == 11


# -- iterable datasets


class OneStep(IterableDataset):
    def helper(self):
        return info_of()

    def __iter__(self):
        return iter(range(self.helper()))


def info_of():
    info = torch.utils.data.get_worker_info()
    return 8 if info is None else 8 // info.num_workers


class Chained(IterableDataset):
    def __init__(self, *inner):
        self.inner = inner

    def __iter__(self):
        for part in self.inner:
            yield from part


class Wrapped(IterableDataset):
    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        yield from self.inner


def share(worker):
    info = get_worker_info()
    info.dataset.length //= info.num_workers


SHARDING = [
    (lambda: Stream(), None, False),
    (lambda: SizedStream(), None, False),
    (lambda: ShardedStream(), None, True),
    (lambda: OneStep(), None, True),
    (lambda: Wrapped(ShardedStream()), None, True),
    (lambda: Chained(Stream(), Wrapped(ShardedStream())), None, True),
    (lambda: Wrapped(Stream()), None, False),
    (lambda: Stream(), share, True),
]


@pytest.mark.parametrize("case", range(len(SHARDING)))
def test_sharding_is_seen(hook, case):
    dataset, init, expected = SHARDING[case]
    hooks, _ = hook()
    train(hooks, DataLoader(dataset(), batch_size=4, worker_init_fn=init), limit=1)
    facts = hooks.choice.facts
    assert facts.worker_sharding is expected and facts.iterable


def test_sharding_datapipes(hook):
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")
    hooks, _ = hook()
    train(hooks, DataLoader(pipes.IterableWrapper(range(8)).sharding_filter(), batch_size=4))
    assert hooks.choice.facts.worker_sharding


def test_iterable_dataset_is_switched(hook):
    hooks, heard = hook()
    loader = DataLoader(ShardedStream(80), batch_size=4)
    for number, _ in enumerate(loader):
        hooks.choice.credit_backward()
        hooks.training.set(num_workers=2 if number < 3 else 0)
        if number == 2:
            assert len(workers()) == 2
    assert sorted(flat(train(hooks, loader))) == list(range(80))
    hooks.training.set(num_workers=2)
    assert sorted(flat(train(hooks, loader))) == list(range(80))
    assert (
        hooks.choice.facts.batch_size == 4
        and hooks.choice.facts.samples is None
        and not heard.faults
    )


@pytest.mark.parametrize("own", [0, 1])
def test_batch_size_of_an_iterable_dataset_changes_without_starting_it_again(hook, own):
    hooks, heard = hook()
    loader = DataLoader(SizedStream(80), batch_size=4, num_workers=own)
    seen = train(hooks, loader, {3: {"batch_size": 10}})
    assert flat(seen) == list(range(80)) and len(seen[8]) == 10
    assert hooks.training_source.epoch_iterations() == 8
    assert hooks.choice.facts.length == 20
    assert heard.batches[-2][1] == 10


def test_what_is_only_held_waits_for_the_next_epoch_of_an_iterable_dataset(hook):
    """A new source would deliver the first items again."""
    hooks, _ = hook(mode="fixed")
    loader = DataLoader(ShardedStream(40), batch_size=4)
    seen = train(hooks, loader, {2: {"num_workers": 2, "batch_size": 5}})
    assert flat(seen) == list(range(40)) and len(seen[3]) == 5
    iterator = iter(loader)
    assert len(workers()) == 2
    assert sorted(flat(train(hooks, iterator))) == list(range(40))


def test_an_iterable_dataset_is_not_started_again_when_the_agent_stops(hook):
    hooks, _ = hook()
    iterator = iter(DataLoader(ShardedStream(40), batch_size=4))
    train(hooks, iterator, {0: {"num_workers": 1}}, limit=3)
    hooks.uninstall()
    assert flat(batch.tolist() for batch in iterator) == list(range(8, 40))


def test_batches_whose_samples_cannot_be_counted(hook):
    """A nested tensor has no shape."""
    hooks, heard = hook()
    ragged = [torch.ones(2), torch.ones(3), torch.ones(4)]
    loader = DataLoader(
        Stream(6), batch_size=3, collate_fn=lambda _: torch.nested.nested_tensor(ragged)
    )
    for batch in loader:
        assert batch.is_nested
        hooks.choice.credit_backward()
    assert [samples for _, samples, _, _ in heard.batches] == [3, 3] and not heard.faults


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_pinning_an_iterable_dataset_without_workers_does_not_start_it_again(hook):
    hooks, _ = hook()
    seen = train(hooks, DataLoader(SizedStream(40), batch_size=4), {3: {"pin_memory": True}})
    assert flat(seen) == list(range(40))


# -- cached batches


def test_cached_batches_are_copies_of_a_few(hook):
    hooks, heard = hook()
    hooks.serving.set_stretch(True)
    served, real = [], []
    for number, batch in enumerate(DataLoader(Numbers(400), batch_size=4, num_workers=1)):
        (served if 5 <= number < 40 else real).append(batch.tolist())
        hooks.choice.credit_backward()
        hooks.loop_state.iterations += 1
        batch += 1000  # in-place changes by the job have no effect
        if number == 4:
            hooks.serving.serve_cached(True)
        if number == 39:
            hooks.serving.serve_cached(False)
        if number == 50:
            break
    assert len({tuple(batch) for batch in served}) == 8
    assert served[:8] == served[8:16]
    # the eight cached batches were fetched, then the source went on
    assert flat(real) == [*range(20), *range(52, 96)]
    assert all(samples == 4 for _, samples, _, _ in heard.batches)


def test_cached_batches_are_not_served_to_an_evaluation(hook):
    hooks, _ = hook()
    loader = DataLoader(Numbers(80), batch_size=4)
    train(hooks, loader, limit=2)
    hooks.serving.serve_cached(True)
    assert flat(batch.tolist() for batch in loader) == list(range(80))


# -- uninstalling


def test_uninstall_restores_torch_and_running_iterators(hook):
    import torch.utils.data.dataloader as data

    before = (DataLoader.__init__, DataLoader._get_iterator, data._DatasetKind.create_fetcher)
    hooks, heard = hook()
    assert DataLoader.__init__ is not before[0]
    loader = DataLoader(Numbers(400), batch_size=4)
    iterator = iter(loader)
    train(hooks, iterator, {0: {"num_workers": 2}}, limit=5)
    assert len(workers()) == 2
    hooks.uninstall()
    hooks.uninstall()
    told = len(heard.batches)
    assert flat(batch.tolist() for batch in iterator) == list(range(20, 400))
    assert wait_for_no_workers() == []
    assert len(heard.batches) == told
    assert (
        DataLoader.__init__,
        DataLoader._get_iterator,
        data._DatasetKind.create_fetcher,
    ) == before
    assert type(iter(loader)).__name__ == "_SingleProcessDataLoaderIter"


def test_loaders_that_were_there_before_and_copies_of_loaders(hook):
    import copy

    early = DataLoader(Numbers(40), batch_size=4)
    hooks, heard = hook()
    assert flat(train(hooks, early, {1: {"num_workers": 1}})) == list(range(40))
    assert flat(train(hooks, copy.deepcopy(early))) == list(range(40))
    assert not heard.faults


def test_agent_is_importable_without_torch():
    code = (
        "import sys, autotune_trials.agent.dataloader.hooks, autotune_trials.agent.loop.batches\n"
        "print([name for name in ('torch', 'numpy', 'psutil', 'yaml') if name in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_cost_of_the_proxy_per_batch(hook, monkeypatch):
    """Counts the Python calls per batch beyond torch's own iterator, including the listener.
    benchmarks/overhead.py measures time.
    """
    # slow fetches, as on a loaded machine, are all timed
    monkeypatch.setattr(reader_meter, "QUICK_S", math.inf)

    class Ready(Numbers):
        def __getitems__(self, indices):
            return batch

    def calls_per_batch(batches=1000):
        calls = 0

        def count(frame, event, argument):
            nonlocal calls
            calls += event in ("call", "c_call")

        iterator = iter(DataLoader(Ready(batches), batch_size=1, collate_fn=lambda items: items))
        next(iterator)
        sys.setprofile(count)
        try:
            for _ in iterator:
                pass
        finally:
            sys.setprofile(None)
        return calls / (batches - 1)

    batch = (torch.zeros(4, 3), torch.zeros(4))
    bare = calls_per_batch()
    hook()
    assert calls_per_batch() - bare <= 16


def test_a_loader_built_anew_for_every_epoch_has_turnovers(hook):
    """Otherwise starting workers would be one slow iteration, which a robust mean drops."""
    hooks, heard = hook()
    for _ in range(3):
        train(hooks, DataLoader(Numbers(8), batch_size=4, num_workers=1))
    turnovers = [turnover for *_, turnover in heard.batches]
    assert [turnover is None for turnover in turnovers] == [True, True, False, True, False, True]
    assert all(turnover > 0 for turnover in turnovers if turnover is not None)


def test_a_worker_killed_while_it_handed_over_a_batch_is_noticed() -> None:
    """torch says only that the connection was reset."""
    ended, writable = os.pipe()
    os.close(writable)
    sentinels = ended, os.dup(ended)

    class Iterator:
        def __init__(self, exitcode: int | None) -> None:
            self._workers = [
                SimpleNamespace(exitcode=code, sentinel=ended, join=lambda timeout: None)
                for code, ended in zip((None, exitcode), sentinels)
            ]

        def __next__(self) -> None:
            raise ConnectionResetError(104, "Connection reset by peer")

    for exitcode, killed in ((-9, True), (1, False), (None, False)):
        with pytest.raises(ConnectionResetError) as reset:
            next(Iterator(exitcode))
        assert was_killed(reset.value) is killed
    for sentinel in sentinels:
        os.close(sentinel)


def test_a_worker_that_is_still_ending_is_waited_for() -> None:
    worker = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)
    assert worker.stdout is not None

    class Worker:
        sentinel = worker.stdout.fileno()  # closed when it ends, as a worker's is

        @property
        def exitcode(self) -> int | None:
            return worker.poll()

        def join(self, timeout: float) -> None:
            worker.wait(timeout)

    class Iterator:
        _workers = [Worker()]

        def __next__(self) -> None:
            raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(ConnectionResetError) as reset:
        next(Iterator())
    Timer(0.2, worker.kill).start()
    assert was_killed(reset.value)
    worker.stdout.close()


class Seeding(Stream):
    """Asks for the worker's seed, not for its part of the data."""

    def __iter__(self):
        info = get_worker_info()
        torch.manual_seed(info.seed if info else 0)
        yield from super().__iter__()


def seed_worker(worker_id):
    torch.manual_seed(get_worker_info().seed)


def test_a_stream_that_only_seeds_its_workers_does_not_split_its_data():
    assert shards(ShardedStream(8))
    assert not shards(Seeding(8))
    assert not shards(Stream(8), seed_worker)


class Settings(dict):
    """A dictionary read by attributes: unknown ones raise KeyError."""

    __getattr__ = dict.__getitem__


def test_a_stream_that_holds_an_odd_object_is_read():
    stream = ShardedStream(8)
    stream.settings = Settings(rate=1)
    assert shards(stream)
    assert not shards(Settings(rate=1), Settings(rate=2))


def split(items):
    info = get_worker_info()
    return items if info is None else items[info.id :: info.num_workers]


def in_parts(method):
    @functools.wraps(method)
    def parts(self):
        return iter(split(list(method(self))))

    return parts


class Manifest(Stream):
    """Holds much plain data beside the code that splits it."""

    def __init__(self, count):
        super().__init__(count)
        self.records = [{f"field {k}": f"text {i} {k}" for k in range(20)} for i in range(40)]

    def __iter__(self):
        return iter(split(list(super().__iter__())))


class Decorated(Stream):
    @in_parts
    def __iter__(self):
        return super().__iter__()


class ByModule(Stream):
    def __iter__(self):
        return iter(helpers.split(list(super().__iter__())))


helpers = ModuleType("helpers")
helpers.split = split


@pytest.mark.parametrize("kind", [Manifest, Decorated, ByModule])
def test_code_that_splits_a_stream_is_found(kind):
    assert shards(kind(8))
