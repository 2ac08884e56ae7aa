"""Which samples an iteration trained on, in loops that prefetch, evaluate on their training loader,
or compare the samples of a batch.
"""

from __future__ import annotations

from typing import Any

import pytest
from tiers import slow
from tiny_tuner import CNN, Tuner, block

AHEAD = (
    CNN
    + """
def one_ahead(batches):  # as accelerate does, to know the last batch of an epoch
    batches = iter(batches)
    held = next(batches)
    for following in batches:
        yield held
        held = following
    yield held

losses = []
for epoch in range(3):
    for x, y in one_ahead(loader):
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
)
AHEAD_ACCUMULATED = AHEAD.replace(
    "for x, y in one_ahead(loader):", "for step, (x, y) in enumerate(one_ahead(loader)):"
).replace(
    "optimizer.zero_grad(); loss.backward(); optimizer.step()",
    """loss.backward()
        if step % 3 == 2 or step == 15:  # 16 batches an epoch: five groups of three, one of a single batch
            optimizer.step(); optimizer.zero_grad()""",
)
EVALUATED = (
    CNN
    + """
import copy, time
teacher = copy.deepcopy(model).eval()
def right():
    model.eval()
    with torch.no_grad():
        found = 0
        for x, y in loader:
            found += int((model(x).argmax(1) == y).sum())
            time.sleep(0.06)  # 1 s in all
    model.train()
    return found
right()  # before training: nothing of the model's training has been seen yet
for epoch in range(4):
    for x, y in loader:
        with torch.no_grad():
            wanted = teacher(x)
        model.eval()
        with torch.no_grad():
            before = model(x)  # a look at the batch that is trained on next
        model.train()
        loss = criterion(model(x), y) + (wanted - before).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    right()
"""
)
SEARCHED = (
    CNN
    + """
weights = {name: value.clone() for name, value in model.state_dict().items()}
for attempt in range(2):  # how large may a batch be?
    model.load_state_dict(weights)
    for x, y in DataLoader(data, batch_size=64 << attempt):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        break
optimizer.zero_grad()
for epoch in range(2):
    for x, y in loader:
        loss = criterion(model(x), y)
        print(float(loss).hex())
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
)


def record_of(tuner: Tuner, source: str, **config: Any) -> Any:
    """The record of a complete short job."""
    tuner.start(source, mode="fixed", steps=10_000, **config)
    hello, record = tuner.receive(), tuner.receive()
    assert type(record).__name__ == "Record" and record.ended_early, hello
    assert tuner.log == "", tuner.log
    return record


@pytest.mark.parametrize(
    ("source", "samples"),
    [(AHEAD_ACCUMULATED, [48, 48, 48, 48, 48, 16] * 3), slow(EVALUATED, [16] * 64)],
    ids=["fetched ahead", "evaluated on the training loader"],
)
def test_an_iteration_has_the_samples_it_trained_on(
    tuner: Tuner, source: str, samples: list[int]
) -> None:
    record = record_of(tuner, source)
    assert list(record.window.samples) == samples
    assert list(record.samples_before) == [sum(samples[:n]) for n in range(len(samples))]
    assert max(record.window.times_s) < 0.9, "an evaluation is no part of an iteration"


def test_what_a_loop_that_fetches_ahead_does_between_epochs_is_no_part_of_an_iteration(
    tuner: Tuner,
) -> None:
    record = record_of(tuner, AHEAD + "    import time; time.sleep(1.0)  # reports, checkpoints\n")
    assert len(record.window.times_s) == 48
    assert max(record.window.times_s) < 0.9 and record.window.away_s >= 2.0


@pytest.mark.slow
def test_backward_calls_of_a_search_before_training_are_no_part_of_the_first_step(
    tuner: Tuner,
) -> None:
    record = record_of(tuner, SEARCHED)
    printed = [float.fromhex(line) for line in tuner.finish()[1].split()]
    assert list(record.losses) == printed and len(printed) == 32
    assert set(record.window.samples) == {16.0}


@pytest.mark.slow
def test_a_stretched_epoch_that_the_loop_leaves_counts_nothing_twice(tuner: Tuner) -> None:
    """The loop counts its steps, as the Trainer does: it restarts the loader while one batch is
    held back.
    """
    source = AHEAD.replace("range(3)", "range(10**6)").replace(
        "    for x, y in one_ahead(loader):",
        "    for _, (x, y) in zip(range(16), one_ahead(loader)):",
    )
    tuner.start(source)
    assert tuner.receive().job.samples_per_step == 16
    (report,) = tuner.measure(block("b", 60))
    assert set(report.window.samples) == {16.0}


CHECKPOINTED = (
    CNN
    + """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Sequential(nn.Flatten(), nn.Linear(192, 32)), nn.Sequential(nn.ReLU(), nn.Linear(32, 4))
    def forward(self, x):
        return checkpoint(self.second, checkpoint(self.first, x, use_reentrant=False), use_reentrant=False)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
while True:
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
)


@pytest.mark.slow
def test_parts_computed_again_in_backward_are_no_models_of_the_job(tuner: Tuner) -> None:
    tuner.start(CHECKPOINTED)
    assert [m.name for m in tuner.receive().job.models] == ["Net"]
    plain, cast = tuner.measure(block("b", 8), block("c", 8, amp_dtype="bfloat16"))
    assert not plain.error and not cast.error and not cast.no_effect
    assert (
        cast.notes["in_force"]["autocast_regions"]
        > plain.notes["in_force"]["autocast_regions"]
        == 0
    )
    assert tuner.log == "", tuner.log


CONTRASTIVE = (
    CNN
    + """
images, texts = nn.Sequential(nn.Flatten(), nn.Linear(192, 24)), nn.Embedding(4, 24)
optimizer = torch.optim.Adam([*images.parameters(), *texts.parameters()])
unit = nn.functional.normalize
while True:
    for x, y in loader:
        loss = criterion(unit(images(x)) @ unit(texts(y)).T, torch.arange(len(x)))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
)


@pytest.mark.slow
def test_a_loss_that_compares_samples_is_seen(tuner: Tuner) -> None:
    tuner.start(CONTRASTIVE)
    assert (
        tuner.receive().job.compares_samples
        == "a product of all its samples with each other, 16 x 16"
    )


WRAPPED = (
    CNN
    + """
class Loader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
def noting(construct):  # what Lightning puts around constructors
    def wrapper(obj, *args, **kwargs):
        construct(obj, *args, **kwargs)
    return wrapper
DataLoader.__init__ = noting(DataLoader.__init__)
first = Loader(data, batch_size=16)  # here
again = DataLoader(data, batch_sampler=first.batch_sampler)  # in the place of it, as accelerate does
while True:
    for x, y in again:
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
)


def test_a_loader_is_found_where_the_job_built_it(tuner: Tuner) -> None:
    tuner.start(WRAPPED)
    line = next(n for n, text in enumerate(WRAPPED.splitlines(), 1) if text.endswith("# here"))
    assert tuner.receive().job.loader.site == f"train.py:{line}"


ESTIMATOR = (
    CNN
    + """
class Estimator:  # as skorch's: not a module, with a list of that name
    def __init__(self):
        self.module_, self._modules = model, ["module"]
    def fit(self):
        while True:
            for x, y in loader:
                loss = criterion(self.infer(x), y)
                optimizer.zero_grad(); loss.backward(); optimizer.step()
    def infer(self, x):
        return self.module_(x)
Estimator().fit()
"""
)


@pytest.mark.slow
def test_an_object_that_only_looks_like_a_module_is_no_trouble(tuner: Tuner) -> None:
    tuner.start(ESTIMATOR)
    assert [m.name for m in tuner.receive().job.models] == ["Sequential"]
    (report,) = tuner.measure(block("b", 8))
    assert not report.error and tuner.log == ""


@pytest.mark.parametrize(
    ("samples", "again"),
    [("[*range(64), 10**6]", ""), ("range(64)", "next(reader, None)")],
    ids=["a torn record", "the end, asked for twice"],
)
def test_the_model_is_found_after_a_batch_that_never_came(
    tuner: Tuner, samples: str, again: str
) -> None:
    """The job reads all its data first, as far as it can."""
    source = f"""{CNN}
batches, reader = [], iter(DataLoader(data, batch_size=16, sampler={samples}))
try:
    while True:
        batches.append(next(reader))
except (IndexError, StopIteration):
    {again or "pass"}
while True:
    for x, y in batches:
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
    tuner.start(source)
    tuner.receive()
    (report,) = tuner.measure(block("b", 5, amp_dtype="bfloat16"))
    assert not report.error and report.notes["in_force"]["autocast_regions"]
