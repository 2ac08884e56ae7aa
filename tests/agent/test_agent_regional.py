"""compile_mode=regional: the repeated blocks of a model are compiled, identical ones only once."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.backends.debugging
from test_agent_live import in_order, run_live
from tiny_tuner import Tuner, block, run_bare
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune_trials.agent.controls.entry_modules import SLOT, Entry
from autotune_trials.agent.controls.regional import repeated_blocks
from autotune_trials.agent.core.agent import Agent
from autotune_trials.protocol.messages import KnobChoice, SessionConfig

Launch = Callable[..., Agent]


# ------------------------------------------------------------------ which blocks


class Block(nn.Module):
    def __init__(self, width: int = 8, out: int = 0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, out or width), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Other(Block):
    pass


class Stage(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [Block(width // 2, width), Block(width), Block(width), Block(width)]
        )


def sizes(module: nn.Module) -> list[int]:
    return [len(alike) for alike in repeated_blocks(torch, module)]


def test_layers_of_a_transformer_are_one_kind() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    transformer = nn.Transformer(8, 2, 3, 4, 16)
    assert sizes(nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)) == [5]
    assert sizes(transformer) == [3, 4], "the encoder's and the decoder's"


def test_stages_of_other_widths_are_kinds_of_their_own() -> None:
    stages = nn.Sequential(Stage(8), Stage(16))
    assert sizes(stages) == [1, 3, 1, 3], "the first block of a stage changes the width"


def test_blocks_within_blocks_belong_to_the_outer_ones() -> None:
    assert sizes(
        nn.Sequential(nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block()))
    ) == [2]


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(8, 8),
        # no blocks: nothing to fuse
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(), nn.ReLU()),
        nn.ModuleList([Block(4), Block(8), Block(16)]),  # all different
        nn.ModuleList([Block(), Other()]),
        # mostly different
        nn.ModuleList([Block(4, 8), Block(8, 16), Block(16), Block(16), Block(16, 32)]),
    ],
)
def test_what_is_not_repeated(module: nn.Module) -> None:
    assert sizes(module) == []


# ------------------------------------------------------------------ in a running job

JOB = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1))
    def forward(self, x):
        return x + self.layers(x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.stem, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
data = TensorDataset(torch.randn(256, 16), torch.randint(0, 4, (256,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
LOOP = """
while True:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        compiled = any(m._compiled_call_impl is not None for m in model.blocks.modules())
        print(loss.item(), compiled, flush=True)
"""


@pytest.mark.slow
def test_alike_blocks_are_compiled_once_and_taken_back(tuner: Tuner) -> None:
    tuner.start(JOB + LOOP)
    assert [m.repeated_blocks for m in tuner.receive().job.models] == [4]
    regional = block("c", compile_mode="regional", _max_settle=20, _max_seconds=200.0)
    reports = tuner.measure(block("b"), regional, block("b2"))
    assert tuner.process is not None
    tuner.process.kill()
    rows = [line.split() for line in tuner.process.communicate()[0].split("\n")[:-1]]
    assert [(r.error, r.no_effect) for r in reports] == [("", {})] * 3
    assert reports[1].notes["unique_graphs"] == 1 and reports[1].notes["graph_breaks"] == 0
    assert in_order([row[1] for row in rows]) == ["False", "True", "False"]
    last = f"        if len(seen) == {len(rows)}: raise SystemExit(0)\n"
    bare = LOOP.replace("while True", "seen = []\nwhile True") + "        seen.append(0)\n" + last
    expected = [
        float(line.split()[0]) for line in run_bare(tuner.directory, JOB + bare).splitlines()
    ]
    assert [float(row[0]) for row in rows] == pytest.approx(expected, rel=1e-4), (
        "dropout, too, is the same"
    )


def test_without_repeated_blocks_it_makes_no_graph(tuner: Tuner) -> None:
    source = JOB.replace("range(4)", "range(1)") + LOOP
    reports, _ = run_live(tuner, source, block("c", compile_mode="regional"), block("b"))
    assert "produced no graph" in reports[0].no_effect["compile_mode"] and reports[1].error == ""


# ------------------------------------------------------------------ jobs that do more than calling


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """``launch(knob=value)``: the agent of ``autotune launch`` in this process, with a fast
    compiler: torch's own without code generation.
    """
    agents = []
    quick = torch._dynamo.backends.debugging.aot_eager
    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx", lambda graph, inputs, **_: quick(graph, inputs)
    )

    def launch(**knobs: Any) -> Agent:
        choices = tuple(KnobChoice(name, value) for name, value in knobs.items())
        agent = Agent(torch, SessionConfig("launch", str(tmp_path), "", knobs=choices))
        agents.append(agent)
        agent.install()
        return agent

    torch.manual_seed(0)
    yield launch
    for agent in agents:
        agent.stop()


class Net(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(8, 8), nn.ModuleList([Block() for _ in range(3)])
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for b in self.blocks:
            x = b(x) if self.reentrant is None else checkpoint(b, x, use_reentrant=self.reentrant)
        return x


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def train(model: nn.Module, size: int = 4) -> None:
    """Two steps; knobs apply from the second on."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        gradients(model, torch.randn(size, 8))
        optimizer.step()


def is_compiled(model: Any) -> list[bool]:
    return [getattr(b, SLOT) is not None for b in model.blocks]


def test_a_model_that_the_job_drops_is_gone(launch: Launch) -> None:
    launch(compile_mode="regional")

    def fold() -> Any:
        model = Net()
        train(model)
        assert is_compiled(model) == [True] * 3
        return weakref.ref(model)

    folds = [fold() for _ in range(2)]
    gc.collect()
    assert [model() for model in folds] == [None] * 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_computed_again_as_they_were(launch: Launch, reentrant: bool) -> None:
    agent = launch(compile_mode="regional")
    model, x = Net(reentrant), torch.randn(4, 8, requires_grad=True)
    train(model)
    assert is_compiled(model) == [True] * 3 and graphs() > 0
    compiled = gradients(model, x)
    agent.stop()
    assert is_compiled(model) == [False] * 3
    for ours, theirs in zip(compiled, gradients(model, x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_evaluation_copies_and_clones_run_uncompiled(launch: Launch) -> None:
    launch(compile_mode="regional")
    model, x = Net(), torch.randn(5, 8)
    train(model)
    before = graphs()
    assert before == 1
    model.eval()
    with torch.no_grad():
        expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert is_compiled(other) == [False] * 3 and torch.equal(other(x), expected)
    clone = Block.__new__(Block)
    clone.__dict__ = {**model.blocks[0].__dict__, "_modules": {"layers": nn.Identity()}}
    assert torch.equal(clone(x), x), "it is the clone that is called, not the block it was made of"
    assert graphs() == before


def test_a_compiler_that_fails_in_a_block_ends_the_knob_and_not_the_job(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_kernel(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel for this block")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", no_kernel)
    launch(compile_mode="regional")
    model = Net()
    train(model)
    assert is_compiled(model) == [False] * 3
    told = capsys.readouterr().err
    assert "a setting could not be applied" in told and "no kernel for this block" in told


# ------------------------------------------------------------------ shapes


@pytest.mark.parametrize(("value", "compiled"), [("static", 4), ("dynamic", 1), ("default", 2)])
def test_how_often_it_is_compiled_for_varying_shapes(
    launch: Launch, value: str, compiled: int
) -> None:
    launch(compile_mode=value)
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for size in (4, 4, 3, 5, 6, 4):
        gradients(model, torch.randn(size, 8))
        optimizer.step()
    assert graphs() == compiled


@pytest.mark.parametrize(("copies", "vary"), [("2", False), ("next(count)", True)])
def test_whether_the_inputs_vary_in_shape_is_seen(tuner: Tuner, copies: str, vary: bool) -> None:
    counted = "import itertools\ncount = itertools.count(1)\n"
    tuner.start(
        JOB + counted + LOOP.replace("model(x)", f"model(x.expand({copies}, -1, -1)).mean(0)")
    )
    (model,) = tuner.receive().job.models
    assert (model.input_shapes > 1) == vary


class Pair(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(width), Block(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


@pytest.mark.parametrize("mode", ["default", "regional"])
def test_the_sizes_of_one_model_do_not_count_as_varying_for_another(
    launch: Launch, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    varies, compile_fx = [], torch._inductor.compile_fx.compile_fx

    def watched(graph: Any, inputs: Any, **options: Any) -> Any:
        varies.append(any(isinstance(x, torch.SymInt) for x in inputs))
        return compile_fx(graph, inputs, **options)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", watched)
    launch(compile_mode=mode)
    one, other = Pair(8), Pair(16)
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    torch._dynamo.utils.clear_compilation_metrics()
    for _ in range(3):
        (one(torch.randn(4, 8)).mean() + other(torch.randn(6, 16)).mean()).backward()
        optimizer.step()
    assert varies and not any(varies)
    names = {each.co_name for each in torch._dynamo.utils.get_compilation_metrics()} - {None}
    assert len(names) == 2, "older versions of torch take closures of one name for one"


class Graphs:
    """Like torch-geometric's Batch."""

    def __init__(self, nodes: int) -> None:
        self._store = {"x": torch.zeros(nodes, 3), "edge_index": torch.zeros(2, 100)}


def test_whether_they_vary_is_seen_inside_a_batch_of_the_jobs_own_class() -> None:
    live: Any = SimpleNamespace(torch=torch)
    entry = Entry(nn.Identity(), live)
    for nodes in (57, 57, 31):
        entry.note_shapes((Graphs(nodes),), {})
    assert len(entry.shapes) == 2


def test_what_cuda_graphs_returned_outlives_them(launch: Launch) -> None:
    """A CPU has no graphs: a new address shows that the output was copied out of their memory."""
    agent, model = launch(compile_mode="reduce-overhead"), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        out = model(torch.ones(4, 8))
        out.square().mean().backward()
        optimizer.step()
    (entry,) = agent.live.entries
    was, where = out.detach().clone(), out.data_ptr()
    assert entry.compiled
    entry.set_compiled(None)
    assert out.equal(was) and out.data_ptr() != where
