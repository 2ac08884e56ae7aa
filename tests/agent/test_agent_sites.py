"""Source locations of what the knobs change: the exact calls, whatever the program's structure."""

from __future__ import annotations

import pytest
from tiny_tuner import Tuner

from autotune_spaces.sites import JobSites
from autotune_trials.agent.facts.call_sites import MOST

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_float32_matmul_precision("highest"); torch.set_num_threads(1)
größe = "日本"; data = TensorDataset(torch.randn(256, 3, 8, 8), torch.randint(0, 4, (256,)))

class Trainer:
    def __init__(self, net, **options):
        self.net = net
        self.loader = DataLoader(
            data, 16,
            **options,
        )
        self.optimizer = torch.optim.SGD([{"params": net.parameters(), "lr": 0.1}], lr=0.2)

    def loss(self, x, y):
        return nn.functional.cross_entropy(self.net(
            x), y)

    def epoch(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = self.loss(x, y)
            with torch.no_grad():
                self.net(x)
            (loss * 2
                ).backward()
            self.optimizer.step()

def main():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4))
    trainer = Trainer(model, shuffle=True)
    while True:
        trainer.epoch()

main()
"""


def sites(tuner: Tuner, source: str, **options: object) -> JobSites:
    tuner.start(source, **options)  # type: ignore[arg-type]
    found = tuner.receive().job.sites
    assert tuner.log == "", tuner.log
    return found


def test_calls_are_known_to_the_letter(tuner: Tuner) -> None:
    found = sites(tuner, PROGRAM)
    source = (tuner.directory / "train.py").read_text().splitlines(keepends=True)
    assert found.program == "train.py"
    assert (
        found.loader is not None
        and found.loader.kind == "torch.utils.data.dataloader.DataLoader"
        and found.loader.others == 0
    )
    assert (
        found.loader.parameters[:3] == ("dataset", "batch_size", "shuffle")
        and "*" in found.loader.parameters
    )
    (optimizer,) = found.optimizers
    # the group has its own learning rate
    assert (optimizer.kind, optimizer.lr) == ("torch.optim.sgd.SGD", None)
    (forward,) = found.forwards  # the call without gradients does not count
    assert forward.images == (("0", 4),) and forward.module == "Sequential"
    (backward,) = found.backwards
    assert backward.forward == 0
    assert {site.name for site in found.settings} == {
        "set_num_threads",
        "set_float32_matmul_precision",
    }
    calls = [
        found.loader.call,
        optimizer.call,
        *forward.stack,
        *backward.stack,
        *found.steps,
        *(s.call for s in found.settings),
    ]
    for call in calls:
        lines = source[call.line - 1 : call.end_line]
        lines[-1] = lines[-1][: call.end_column]
        assert "".join(lines)[call.column :] == call.text
        assert call.own and call.file == "train.py"
    assert found.loader.call.text.startswith("DataLoader(\n") and found.loader.call.text.endswith(
        ")"
    )
    assert [c.text for c in forward.stack[1:]] == ["self.loss(x, y)", "trainer.epoch()", "main()"]
    assert [c.function for c in forward.stack] == [
        "Trainer.loss",
        "Trainer.epoch",
        "main",
        "<module>",
    ]
    assert [c.binding for c in forward.stack] == ["self.net", "self.net", "model", ""]
    assert backward.stack[0].text.endswith("backward()")
    assert [c.text for c in found.steps] == ["self.optimizer.step()"]


LIBRARY = """
from torch.utils.data import DataLoader
class Own(DataLoader):
    def __init__(self, data, size, **more):
        super().__init__(data, size, **more)
def prepare(loader):
    return DataLoader(loader.dataset, loader.batch_size, num_workers=loader.num_workers)
def train(model, loader):
    import torch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
USER = """
import torch
from engine import Own, prepare, train
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
other = DataLoader(TensorDataset(torch.randn(4, 8)), 2)
model = torch.nn.Linear(8, 4)
train(model, {loader})
"""


def in_library(tuner: Tuner, loader: str) -> JobSites:
    """The sites of USER, with a library in site-packages."""
    folder = tuner.directory.parent / "site-packages"
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "__init__.py").write_text(LIBRARY)
    return sites(
        tuner,
        f"import sys; sys.path.insert(0, {str(folder)!r})\n" + USER.replace("{loader}", loader),
    )


def test_a_librarys_loop_is_told_from_the_jobs_own(tuner: Tuner) -> None:
    found = in_library(tuner, "Own(data, 8, drop_last=True)")
    assert (
        found.loader is not None
        and found.loader.call.text == "Own(data, 8, drop_last=True)"
        and found.loader.call.own
    )
    assert found.loader.parameters == ("data", "size", "**")
    (forward,) = found.forwards
    assert [(c.file, c.own) for c in forward.stack] == [
        ("engine/__init__.py", False),
        ("train.py", True),
    ]
    assert forward.stack[1].binding == "model"
    assert [c.file for c in found.backwards[0].stack] == ["engine/__init__.py", "train.py"]
    assert not found.steps[0].own and not found.optimizers[0].call.own


@pytest.mark.slow
def test_a_loader_that_a_library_makes_anew_is_traced_to_the_jobs_own(tuner: Tuner) -> None:
    found = in_library(tuner, "prepare(DataLoader(data, batch_size=8))")
    assert (
        found.loader is not None
        and found.loader.call.text == "DataLoader(data, batch_size=8)"
        and found.loader.call.own
    )


@pytest.mark.slow
def test_a_loader_that_only_its_loop_names_is_known(tuner: Tuner) -> None:
    """`for batch in DataLoader(…)`: the loader itself is gone as soon as it is iterated."""
    source = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    data = TensorDataset(torch.randn(640, 8), torch.randint(0, 4, (640,)))
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for index, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        for x, y in DataLoader(data, 64):
            model(x).detach()
    """
    found = sites(tuner, source)
    assert (
        found.loader is not None
        and found.loader.call.text == "DataLoader(data, batch_size=8)"
        and found.loader.call.own
    )
    assert (found.loader.kind, found.loader.others) == ("torch.utils.data.dataloader.DataLoader", 0)
    assert found.loader.parameters[:2] == ("dataset", "batch_size")


@pytest.mark.parametrize("second", ["TensorDataset(torch.randn(32, 8)), 8", "data, 16"])
def test_one_call_for_several_loaders_is_noticed(tuner: Tuner, second: str) -> None:
    """Also if both read one dataset."""
    source = f"""
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    def load(data, size):
        return DataLoader(data, batch_size=size)
    data = TensorDataset(torch.randn(64, 8))
    train, test = load(data, 8), load({second})
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        for (x,) in train:
            model(x).sum().backward()
            optimizer.step()
    """
    found = sites(tuner, source)
    assert found.loader is not None and found.loader.others == 1
    assert found.optimizers[0].lr == 1e-3
    assert (
        found.forwards[0].stack[0].text == "model(x)"
        and found.backwards[0].stack[0].text == "model(x).sum().backward()"
    )


@pytest.mark.parametrize(
    ("groups", "lr"),
    [
        ('[{"params": [p], "lr": 0.1} for p in model.parameters()]', None),
        ('({"params": [p], "lr": 0.1} for p in model.parameters())', None),
        ('[{"params": [p], "weight_decay": 0.1} for p in model.parameters()]', 0.1),
        ("model.parameters()", 0.1),
    ],
)
def test_groups_that_state_the_common_rate_themselves(
    tuner: Tuner, groups: str, lr: float | None
) -> None:
    """Another rate in the call would not be theirs."""
    found = sites(
        tuner,
        f"""
    import torch
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD({groups}, lr=0.1)
    while True:
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    """,
    )
    assert found.optimizers[0].lr == lr


def test_one_call_for_many_optimizers_is_one_place(tuner: Tuner) -> None:
    """A tuned.yaml with a place for each of them could not be read again."""
    found = sites(
        tuner,
        """
    import torch
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(40)))
    optimizers = [
        torch.optim.SGD([p], lr=(1 + index // 2) * 1e-6)
        for index, p in enumerate(model.parameters())
    ]
    while True:
        model(torch.randn(4, 8)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    """,
    )
    assert len(found.optimizers) == len(set(found.optimizers)) == MOST


@pytest.mark.slow
def test_without_columns_only_lines_are_known(tuner: Tuner) -> None:
    found = sites(tuner, PROGRAM, env={"PYTHONNODEBUGRANGES": "1"})
    assert (
        found.loader is not None and found.loader.call.column == -1 and found.loader.call.line > 10
    )
    assert found.steps[0].text == "self.optimizer.step()"


@pytest.mark.slow
def test_only_live_sessions_record_sites(tuner: Tuner) -> None:
    assert sites(tuner, PROGRAM, mode="fixed", steps=20) == JobSites()


PINNING = """
import queue, threading, torch
from torch.utils.data._utils.pin_memory import _pin_memory_loop
ended = threading.Event(); ended.set()
try: _pin_memory_loop(queue.Queue(), queue.Queue(), 0, ended, None)
except Exception: pass  # without a GPU it gets no further than its threads
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(4, 2)).sum().backward(); optimizer.step(); optimizer.zero_grad(set_to_none=KEPT)
"""


@pytest.mark.parametrize("kept", [False, True])
def test_the_threads_of_a_loader_that_pins_are_not_the_jobs(tuner: Tuner, kept: bool) -> None:
    tuner.start(PINNING.replace("KEPT", str(not kept)))
    job = tuner.receive().job
    assert "set_num_threads" not in job.own_settings
    assert job.keeps_gradients == kept
