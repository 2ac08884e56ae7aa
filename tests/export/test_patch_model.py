"""`autotune export --format diff`: torch.compile and channels_last after the line that builds the
model.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from patch_sources import changed_lines, library, patched, refusals, training, tuned

from autotune.export.patch.plan import make_patch
from autotune_spaces.sites import ForwardSite, JobSites

MAIN = """import torch


def train_one_epoch(net, loader):
    for x, y in loader:
        loss = criterion(net(x), y)
        loss.backward()


def main():
{body}
    train_one_epoch(model, loader)


main()
"""


def source(body: str) -> str:
    return MAIN.format(body="\n".join("    " + line for line in body.splitlines()))


def sites(text: str, **more: object) -> JobSites:
    return training(
        text,
        "net(x)",
        "loss.backward()",
        "train_one_epoch(model, loader)",
        bindings=("net", "model"),
        **more,
    )  # type: ignore[arg-type]


MAKINGS = [  # new lines follow the marked one
    "model = Net()  # <-",
    "model = Net()\nmodel = model.to(device)  # <-\noptimizer = Adam(model.parameters())",
    (
        "model = Net()\nif distributed:  # <-\n    model = DDP(model)\noptimizer ="
        " Adam(model.parameters())"
    ),
    "if big:  # <-\n    model = Big()\nelse:\n    model = Small()\nuse(model)",
    "model, transform = load()  # <-",
    "model: Net = Net()  # <-\nscheduler = make(model)",
    "model = Net(  # <-\n    1,\n    2,\n)",
    "ema = model = Net()  # <-",
    "model: Net\nmodel = Net()  # <-",
]


@pytest.mark.parametrize("body", MAKINGS)
def test_after_the_model_has_its_final_value(tmp_path: Path, body: str) -> None:
    text = source(body)
    after = patched(tmp_path, text, sites(text), {"compile_mode": "max-autotune"})
    assert changed_lines(text, after) == ['model.compile(mode="max-autotune")']
    for mode, argument in (
        ("default", ""),
        ("static", "dynamic=False"),
        ("dynamic", "dynamic=True"),
    ):
        assert changed_lines(
            text, patched(tmp_path, text, sites(text), {"compile_mode": mode})
        ) == [f"model.compile({argument})"]
    assert (
        "which modules are the repeated blocks"
        in refusals(tmp_path, text, sites(text), {"compile_mode": "regional"})["compile_mode"]
    )
    lines = after.splitlines()
    before = lines[: lines.index('    model.compile(mode="max-autotune")')]
    statement = next(
        line
        for line in reversed(before)
        if line[4:5] not in ("", " ", ")") and not line.startswith("    else")
    )
    assert "# <-" in statement


def test_default_mode_and_both_at_once(tmp_path: Path) -> None:
    text = source("model = Net()")
    after = patched(
        tmp_path,
        text,
        sites(text, images=(("0", 4),)),
        {"compile_mode": "default", "channels_last": True},
    )
    assert changed_lines(text, after) == [
        "loss = criterion(net(x.to(memory_format=torch.channels_last)), y)",
        "model.compile()",
        "model.to(memory_format=torch.channels_last)",
    ]


INITIALISED = """import torch


def initialize(module):
    if hasattr(module, "weight"):
        torch.nn.init.orthogonal_(module.weight)


model = torch.nn.Conv2d(3, 4, 3)
model.apply(initialize)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start = model.weight.detach().clone()

# training
for x in torch.ones(1, 2, 3, 4, 4):
    out = model(x)
    loss = out.sum()
    loss.backward()
    optimizer.step()
"""


def test_weights_are_initialised_before_their_layout_changes(tmp_path: Path) -> None:
    found = training(INITIALISED, "model(x)", "loss.backward()", images=(("0", 4),))
    after = patched(tmp_path, INITIALISED, found, {"channels_last": True})
    line = "\nmodel.to(memory_format=torch.channels_last)\n\n# training\nfor x in"
    assert line in after
    names: dict[str, Any] = {}
    exec(after, names)  # orthogonal_ raises an error in channels_last
    layout = torch.channels_last
    assert names["model"].weight.is_contiguous(memory_format=layout)
    assert names["out"].is_contiguous(memory_format=layout)
    assert not torch.equal(names["model"].weight, names["start"]), "the optimizer's are others"
    [written] = make_patch(tuned(tmp_path, found, {"channels_last": True})).written
    notes = " ".join(written.change.notes)
    assert "in evaluation too: there `view()` may raise" in notes
    assert "do not resume an earlier checkpoint with a fused optimizer" in notes
    assert "move" not in notes


def test_a_model_that_is_an_attribute_may_be_initialised_later(tmp_path: Path) -> None:
    text = """import torch


class Trainer:
    def __init__(self):
        self.net = Net()
        self.net.apply(initialize)

    def step(self, x):
        loss = self.net(x).sum()
        loss.backward()


Trainer().step(0)
"""
    found = training(
        text, "self.net(x)", "loss.backward()", "Trainer().step(0)", bindings=("self.net",)
    )
    (tmp_path / "train.py").write_text(text)
    [written] = make_patch(tuned(tmp_path, found, {"channels_last": True})).written
    assert written.change.notes[0].startswith(
        "move `self.net.to(memory_format=torch.channels_last)` below any later line that"
    )


def test_a_model_made_in_a_loop_is_compiled_there(tmp_path: Path) -> None:
    text = """import torch
for fold in range(5):
    model = Net(fold)
    for x, y in loader:
        model(x).sum().backward()
"""
    after = patched(
        tmp_path,
        text,
        training(text, "model(x)", "model(x).sum().backward()"),
        {"compile_mode": "default"},
    )
    assert "    model = Net(fold)\n    model.compile()\n    for x" in after


def test_an_attribute_is_compiled_in_the_class_that_sets_it(tmp_path: Path) -> None:
    text = """import torch


class Trainer:
    def __init__(self):
        self.net = Net()
        if gpu:
            self.net = self.net.cuda()
        self.steps = 0

    def step(self, x):
        loss = self.net(x).sum()
        loss.backward()


Trainer().step(0)
"""
    found = training(
        text, "self.net(x)", "loss.backward()", "Trainer().step(0)", bindings=("self.net",)
    )
    after = patched(tmp_path, text, found, {"compile_mode": "default"})
    assert (
        "            self.net = self.net.cuda()\n        self.net.compile()\n        self.steps = 0"
        in after
    )


def test_of_several_methods_the_one_that_makes_the_model(tmp_path: Path) -> None:
    text = """import torch


class Trainer:
    def __init__(self):
        self.net = None

    def set_up(self):
        self.net = Net()

    def close(self):
        self.net = None

    def step(self, x):
        loss = self.net(x).sum()
        loss.backward()


trainer.step(0)
"""
    found = training(
        text, "self.net(x)", "loss.backward()", "trainer.step(0)", bindings=("self.net",)
    )
    after = patched(tmp_path, text, found, {"compile_mode": "default"})
    assert (
        "        self.net = Net()\n        self.net.compile()\n\n    def close" in after
        and after.count("compile") == 1
    )
    twice = text.replace(
        "    def close(self):\n        self.net = None",
        "    def load(self):\n        self.net = torch.load('best')",
    )
    found = training(
        twice, "self.net(x)", "loss.backward()", "trainer.step(0)", bindings=("self.net",)
    )
    assert (
        "several methods of Trainer set `self.net`"
        in refusals(tmp_path, twice, found, {"compile_mode": "default"})["compile_mode"]
    )


def test_torch_by_another_name_and_by_none(tmp_path: Path) -> None:
    text = "import torch as th\nmodel = Net()\nloss = model(x)\nloss.backward()\n"
    after = patched(
        tmp_path,
        text,
        training(text, "model(x)", "loss.backward()", images=(("0", 4),)),
        {"channels_last": True},
    )
    assert changed_lines(text, after) == [
        "model.to(memory_format=th.channels_last)",
        "loss = model(x.to(memory_format=th.channels_last))",
    ]
    text = "from nets import Net\nmodel = Net()\nloss = model(x)\nloss.backward()\n"
    after = patched(
        tmp_path,
        text,
        training(text, "model(x)", "loss.backward()", images=(("0", 4),)),
        {"channels_last": True},
    )
    assert after.startswith("from nets import Net\nimport torch\nmodel = Net()\nmodel.to(")


def test_torch_is_imported_before_the_line_that_needs_it(tmp_path: Path) -> None:
    """A notebook's cells import as they go."""
    text = (
        "from torch import nn\nmodel = nn.Linear(4, 1)\nimport time\nloss = model(x)\n"
        "loss.backward()\n"
    )
    calls = training(text, "model(x)", "loss.backward()", images=(("0", 4),))
    after = patched(tmp_path, text, calls, {"channels_last": True})
    assert after.startswith(
        "from torch import nn\nimport torch\nmodel = nn.Linear(4, 1)\nimport time\nmodel.to("
    )
    assert "import torch\n" not in patched(tmp_path, text, calls, {"compile_mode": "default"})


@pytest.mark.parametrize(
    ("before", "images", "after"),
    [
        ("net(x)", "0", "net(x.to(memory_format=torch.channels_last))"),
        ("net(x / 255, y)", "0", "net((x / 255).to(memory_format=torch.channels_last), y)"),
        ("net(x.cuda())", "0", "net(x.cuda().to(memory_format=torch.channels_last))"),
        (
            "net(y, image=batch['image'])",
            "image",
            "net(y, image=batch['image'].to(memory_format=torch.channels_last))",
        ),
        (
            "net(augment(\n            x))",
            "0",
            "net(augment(\n            x).to(memory_format=torch.channels_last))",
        ),
    ],
)
def test_images_where_the_model_gets_them(
    tmp_path: Path, before: str, images: str, after: str
) -> None:
    text = source("model = Net()").replace("net(x)", before)
    found = training(
        text,
        before,
        "loss.backward()",
        "train_one_epoch(model, loader)",
        bindings=("net", "model"),
        images=((images, 4),),
    )
    assert after in patched(tmp_path, text, found, {"channels_last": True})


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    text = source("model = Net()").replace("net(x)", "net(*x)")
    found = training(
        text,
        "net(*x)",
        "loss.backward()",
        "train_one_epoch(model, loader)",
        bindings=("net", "model"),
        images=(("0", 4),),
    )
    assert (
        "is not explicit there"
        in refusals(tmp_path, text, found, {"channels_last": True})["channels_last"]
    )
    volumes = replace(found, forwards=(replace(found.forwards[0], images=(("0", 5),)),))
    assert (
        "5 dimensions"
        in refusals(tmp_path, text, volumes, {"channels_last": True})["channels_last"]
    )
    nameless = source("make = 1").replace("train_one_epoch(model", "train_one_epoch(make()")
    found = training(
        nameless,
        "net(x)",
        "loss.backward()",
        "train_one_epoch(make(), loader)",
        bindings=("net", ""),
    )
    reason = refusals(tmp_path, nameless, found, {"compile_mode": "default"})["compile_mode"]
    assert (
        reason == "it is unclear where the model is made: no assignment to `net` was found before"
        " train.py:6"
    )
    theirs = JobSites(
        "train.py",
        forwards=(ForwardSite("Net", (library("model(**inputs)", "transformers/trainer.py"),)),),
    )
    assert (
        "the library transformers"
        in refusals(tmp_path, text, theirs, {"compile_mode": "default"})["compile_mode"]
    )
    assert (
        "no call of the model"
        in refusals(tmp_path, text, JobSites(), {"compile_mode": "default"})["compile_mode"]
    )
    assert "it is off" in refusals(tmp_path, text, found, {"compile_mode": "off"})["compile_mode"]
