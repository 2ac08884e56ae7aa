"""Live sessions: knobs take effect between blocks, and everything can be reverted."""

from __future__ import annotations

import pytest
from tiers import slow
from tiny_tuner import CNN, Tuner, block

from autotune_trials.protocol.messages import BlockReport

# The reference is computed from the weights without calling the module: no knob reaches it.
WATCHED = (
    CNN
    + """
import torch.nn.functional as F
def reference(x):
    w1, b1, w2, b2 = (p.detach() for p in model.parameters())
    return F.linear(F.relu(F.conv2d(x, w1.contiguous(), b1)).flatten(1), w2, b2)
while True:
    for x, y in loader:
        out = model(x)
        kind = str(out.dtype)[6:] if out.dtype != torch.float32 else "same" if torch.equal(out, reference(x)) else "differs"
        layout = "last" if not model[0].weight.is_contiguous() else "first"
        print(kind, layout, out.grad_fn is not None and torch.is_autocast_enabled("cpu"), flush=True)
        loss = criterion(out, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        assert not torch.is_autocast_enabled("cpu")
"""
)


def in_order(lines: list[str]) -> list[str]:
    """Drops consecutive repetitions."""
    return [line for i, line in enumerate(lines) if i == 0 or line != lines[i - 1]]


def run_live(tuner: Tuner, source: str, *blocks: object) -> tuple[list[BlockReport], list[str]]:
    tuner.start(source)
    tuner.receive()
    reports = tuner.measure(*blocks)
    assert tuner.process is not None
    tuner.process.kill()
    out, _ = tuner.process.communicate()
    assert tuner.log == "" or any(r.error for r in reports), tuner.log
    return reports, in_order(out.split("\n")[:-1])


def test_bfloat16_is_in_effect_and_taken_back_to_the_bit(tuner: Tuner) -> None:
    reports, seen = run_live(
        tuner, WATCHED, block("b"), block("c", amp_dtype="bfloat16"), block("b2")
    )
    assert [r.error for r in reports] == ["", "", ""] and reports[1].no_effect == {}
    assert seen == ["same first False", "bfloat16 first True", "same first False"]


@pytest.mark.parametrize(
    "hook",
    [
        "",
        "for p in model.parameters(): p.register_hook(lambda g: g.clamp(-1, 1))",
        "next(model.parameters()).register_post_accumulate_grad_hook(lambda p: None)",
        "model.register_forward_pre_hook(lambda _, inputs: inputs[0].requires_grad_())",
    ],
)
def test_gradients_that_are_not_only_the_optimizers_are_seen(tuner: Tuner, hook: str) -> None:
    """float16's loss scaling would show in them."""
    tuner.start(CNN + hook + WATCHED.removeprefix(CNN))
    assert tuner.receive().job.early_gradients is bool(hook)


def test_autocast_does_nothing_to_a_job_in_float64(tuner: Tuner) -> None:
    tuner.start("import torch; torch.set_default_dtype(torch.float64)\n" + WATCHED)
    assert tuner.receive().job.double_precision
    (report,) = tuner.measure(block("c", amp_dtype="bfloat16"))
    assert "float64" in report.no_effect["amp_dtype"]


def test_a_knob_of_the_loader_is_taken_back_where_the_process_reads_no_data(tuner: Tuner) -> None:
    """As in a rank that another one reads for: the plan is the same for all ranks."""
    batch = "torch.randn(16, 3, 8, 8), torch.randint(0, 4, (16,))"
    source = WATCHED.replace("for x, y in loader:", f"for x, y in [({batch})]:")
    reports, _ = run_live(
        tuner, source, block("c", num_workers=2, batch_size=8), block("b"), block("d", gc="freeze")
    )
    assert [r.error for r in reports] == ["", "", ""]
    assert set(reports[0].no_effect) == {"num_workers", "batch_size"}


@pytest.mark.slow
def test_channels_last_is_in_effect_and_taken_back(tuner: Tuner) -> None:
    reports, seen = run_live(tuner, WATCHED, block("c", channels_last=True), block("b"))
    assert reports[0].no_effect == {} and reports[0].error == ""
    assert [line.split()[1] for line in seen] in (
        ["first", "last", "first"],
        ["first", "last", "last", "first"],
    )
    assert seen[0] == seen[-1] == "same first False"


@pytest.mark.slow
def test_a_top_level_sequential_really_compiles_and_is_taken_back(tuner: Tuner) -> None:
    reports, seen = run_live(
        tuner, WATCHED, block("c", compile_mode="default", _max_settle=20), block("b")
    )
    assert reports[0].error == "" and reports[0].no_effect == {}
    assert reports[0].notes["unique_graphs"] >= 1 and reports[0].notes["graph_breaks"] == 0
    assert "unique_graphs" not in reports[1].notes
    assert seen[0] == seen[-1] == "same first False"


def test_the_jobs_own_compiled_model_is_compiled_anew_as_often_as_knobs_need(tuner: Tuner) -> None:
    """By itself torch gives up after eight times, and runs it eagerly from then on."""
    source = (
        WATCHED.replace(
            "while True:",
            "import torch._dynamo.config as limits\nmodel = torch.compile(model, backend='eager')\n"
            "def reference(x): return x\nwhile True:",
        )
        .replace("kind = ", "kind = limits.recompile_limit\n        _ = ")
        .replace("model[0]", "model._orig_mod[0]")
    )
    reports, seen = run_live(
        tuner, source, block("b"), block("c", matmul_precision="medium"), block("b2")
    )
    assert [r.error for r in reports] == ["", "", ""]
    limits = in_order([line.split()[0] for line in seen])
    assert limits == ["8", "64"]


@pytest.mark.slow
def test_a_compiler_that_fails_costs_the_block_and_not_the_job(tuner: Tuner) -> None:
    source = WATCHED.replace(
        "while True:",
        "import torch._dynamo\ndef broken(*a, **k): raise RuntimeError('no compiler here')\nfrom"
        " torch._dynamo import backends\nimport torch._inductor.compile_fx as c\nc.compile_fx ="
        " broken\nwhile True:",
    )
    reports, seen = run_live(tuner, source, block("c", compile_mode="default"), block("b"))
    assert reports[0].error.startswith("knob: compile_mode") and reports[0].window is None
    assert reports[1].error == "" and reports[1].window is not None
    assert seen == ["same first False"]


@pytest.mark.slow
def test_optimizer_implementations_keep_the_trajectory(tuner: Tuner) -> None:
    source = (
        CNN
        + """
while True:
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        group, state = optimizer.param_groups[0], optimizer.state[model[0].weight]
        print(loss.item(), group["foreach"], group["fused"], int(state["step"]), flush=True)
"""
    )
    tuner.start(source)
    tuner.receive()
    reports = tuner.measure(
        *(block(i, optimizer_impl=i) for i in ("for-loop", "foreach", "fused")), block("own")
    )
    tuner.process.kill()
    rows = [line.split() for line in tuner.process.communicate()[0].split("\n")[:-1]]
    assert not any(r.error or r.no_effect for r in reports)
    kinds = in_order([" ".join(r[1:3]) for r in rows])
    assert kinds == ["None None", "False False", "True False", "False True", "None None"]
    # no implementation lost its step count
    assert [int(r[3]) for r in rows] == list(range(1, len(rows) + 1))
    losses = [float(r[0]) for r in rows]
    expected = [float(x) for x in _trajectory(tuner, len(rows))]
    assert losses == pytest.approx(expected, rel=2e-3)


def _trajectory(tuner: Tuner, steps: int) -> list[str]:
    from tiny_tuner import run_bare

    return run_bare(
        tuner.directory,
        CNN
        + f"""
count = 0
while True:
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(loss.item())
        count += 1
        if count == {steps}: raise SystemExit(0)
""",
    ).split()


@pytest.mark.slow
def test_loader_settings_batch_size_and_the_ceiling(tuner: Tuner) -> None:
    source = (
        CNN + "while True:\n    for x, y in loader:\n        loss = criterion(model(x), y);"
        " loss.backward(); optimizer.step()\n"
    )
    reports, _ = run_live(
        tuner,
        source,
        block("w", num_workers=1),
        block("bs", batch_size=32),
        block("ceiling", _cached_batches=True),
        block("b", 20),
    )
    workers, batch, ceiling, own = reports
    assert not any(r.error or r.no_effect for r in reports)
    assert workers.rebuild_s > 0
    assert set(batch.window.samples) == {32.0} and batch.window.epoch_iterations == 8
    assert set(own.window.samples) == {16.0} and own.window.epoch_iterations == 16
    assert len(own.window.turnovers_s) >= 1
    assert sum(ceiling.window.data_s) / 6 < sum(own.window.data_s) / 20


FULL_GRADIENT = (
    CNN
    + """
while True:
    optimizer.zero_grad()
    for x, y in loader:
        loss = criterion(model(x), y) / len(loader)
        loss.backward()
    optimizer.step()
"""
)
ATTACKED = (
    CNN
    + """
test = DataLoader(TensorDataset(*data.tensors), batch_size=16)
step = 0
while True:
    for x, y in loader:
        optimizer.zero_grad(); criterion(model(x), y).backward(); optimizer.step()
        step += 1
        if step % 6 == 0:
            model.eval()
            for x, y in test:
                x.requires_grad_()
                criterion(model(x), y).backward()
            model.train()
"""
)


@pytest.mark.parametrize("source", [FULL_GRADIENT, ATTACKED], ids=["full-gradient", "attacked"])
def test_passes_with_backward_but_no_step_end(tuner: Tuner, source: str) -> None:
    reports, _ = run_live(tuner, source, block("b"), block("c", _cached_batches=True), block("b2"))
    own, ceiling, again = reports
    assert not own.error and not again.error
    assert ("endless" in ceiling.error) == (source is FULL_GRADIENT)


@pytest.mark.slow
def test_the_lr_factor_acts_in_the_step_alone(tuner: Tuner) -> None:
    source = (
        CNN.replace("Adam(", "SGD(")
        + """
while True:
    for x, y in loader:
        before = model[3].bias.detach().clone()
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        moved = (model[3].bias.detach() - before).norm() / model[3].bias.grad.norm()
        print(f"{moved / 1e-3:.2f}", optimizer.param_groups[0]["lr"], flush=True)
"""
    )
    from autotune_trials.protocol.messages import Block, KnobChoice

    twice = Block(
        "x2",
        (KnobChoice("batch_size", 32, {"lr_scaling": "linear"}),),
        6,
        min_settle=2,
        max_settle=12,
    )
    reports, seen = run_live(tuner, source, block("b"), twice, block("b2"))
    assert not any(r.error for r in reports)
    assert seen == ["1.00 0.001", "2.00 0.001", "1.00 0.001"]


def test_a_knob_that_raises_ends_its_block_only(tuner: Tuner) -> None:
    reports, seen = run_live(
        tuner,
        WATCHED,
        block("bad", amp_dtype="bfloat16", num_workers="many"),
        block("b", _level=False),
        block("c", _level=False),
    )
    assert reports[0].error.startswith("knob: ") and reports[0].window is None
    assert reports[1].error == "" and reports[1].window is not None
    # the block before it failed, so this switch is not a cheap one
    assert reports[1].settle_iterations >= 5 > reports[2].settle_iterations
    assert seen[-1] == "same first False"


def test_out_of_memory_in_a_block_is_told_before_the_job_dies(tuner: Tuner) -> None:
    source = (
        CNN
        + """
class Hungry(nn.Module):
    def __init__(self): super().__init__(); self.inner = model
    def forward(self, x):
        if len(x) > 16: raise torch.OutOfMemoryError("out of memory: tried to allocate everything")
        return self.inner(x)
hungry = Hungry()
while True:
    for x, y in loader:
        loss = criterion(hungry(x), y); loss.backward(); optimizer.step()
"""
    )
    tuner.start(source)
    tuner.receive()
    reports = tuner.measure(block("b"), block("big", batch_size=64))
    assert reports[0].error == "" and reports[1].error.startswith("oom: ")
    code, _, err = tuner.finish()
    assert code == 1 and "OutOfMemoryError" in err
    assert "oom" in tuner.markers() and "oom:" in tuner.log


@pytest.mark.slow
def test_a_job_that_survives_out_of_memory_goes_on_with_the_plan(tuner: Tuner) -> None:
    source = (
        CNN
        + """
def forward(x):
    if len(x) > 16: raise torch.OutOfMemoryError("out of memory")
    return nn.Sequential.forward(model, x)
model.forward = forward
while True:
    for x, y in loader:
        try:
            loss = criterion(model(x), y)
        except torch.OutOfMemoryError:
            x, y = x[:16], y[:16]
            loss = criterion(model(x), y)
        loss.backward(); optimizer.step()
"""
    )
    tuner.start(source)
    tuner.receive()
    reports = tuner.measure(block("big", batch_size=64), block("b"))
    assert reports[0].error.startswith("oom: ")
    assert reports[1].error == "" and set(reports[1].window.samples) == {16.0}


AUTOCAST_TRAPS = (
    CNN
    + """
switch = torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)
%s
count = 0
for epoch in range(1000):
    for x, y in loader:
        count += 1
        %s
        optimizer.step()
        assert not torch.is_autocast_enabled("cpu")
        with torch.no_grad():
            assert nn.functional.linear(torch.ones(1, 4), torch.ones(1, 4)).dtype == torch.float32
        print(str(out.dtype)[6:], flush=True)
"""
)
REGIONS = {
    "forward in a region that is switched off": (
        """optimizer.zero_grad()
        with switch: out = model(x)
        criterion(out.float(), y).backward()"""
    ),
    "backward in a region that is switched off": (
        """optimizer.zero_grad(); out = model(x)
        with switch: criterion(out.float(), y).backward()"""
    ),
    "everything in one region": (
        """optimizer.zero_grad()
        with switch:
            out = model(x); criterion(out.float(), y).backward()"""
    ),
    "two forward calls, one backward": (
        """optimizer.zero_grad(); out = model(x); other = model(x.flip(0))
        (criterion(out.float(), y) + criterion(other.float(), y.flip(0))).backward()"""
    ),
}


@pytest.mark.parametrize("region", [r if "two" in r else slow(r) for r in REGIONS])
def test_autocast_never_leaks_out_of_the_forward_region(tuner: Tuner, region: str) -> None:
    reports, seen = run_live(
        tuner,
        AUTOCAST_TRAPS % ("", REGIONS[region]),
        block("b"),
        block("c", amp_dtype="bfloat16"),
        block("b2"),
    )
    assert [r.error for r in reports] == ["", "", ""]
    assert seen == ["float32", "bfloat16", "float32"]


GAN = (
    CNN
    + """
maker, critic = nn.Linear(4, 192), nn.Linear(192, 1)
d_step, g_step = torch.optim.SGD(critic.parameters(), 1e-3), torch.optim.SGD(maker.parameters(), 1e-3)
criterion = nn.BCEWithLogitsLoss()
def train(x):
    fake = maker(torch.randn(len(x), 4))
    d_step.zero_grad(); criterion(critic(x.flatten(1)), torch.ones(len(x), 1)).backward()
    criterion(critic(fake.detach()), torch.zeros(len(x), 1)).backward(); d_step.step()
    g_step.zero_grad(); criterion(critic(fake), torch.ones(len(x), 1)).backward(); g_step.step()
"""
)
GAN_LOOPS = {
    "loader": GAN + "while True:\n    for x, _ in loader: train(x)",
    "no loader": GAN + "while True: train(data.tensors[0][:16])",
}


@pytest.mark.slow
@pytest.mark.parametrize("loop", GAN_LOOPS)
def test_autocast_can_end_in_the_middle_of_the_jobs_own_iteration(tuner: Tuner, loop: str) -> None:
    """The critic's step ends an iteration for the agent, while the job goes on with bfloat16
    outputs computed before.
    """
    reports, _ = run_live(
        tuner,
        GAN_LOOPS[loop],
        *(block(f"{i}", **({"amp_dtype": "bfloat16"} if i % 2 else {})) for i in range(6)),
    )
    assert [r.error for r in reports] == [""] * 6 and all(r.window is not None for r in reports)


FRESH = """
def fresh(x):
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        return nn.Sequential.forward(model, x)
def tell(out, x):
    print(str(out.dtype)[6:], out.dtype == torch.float32 or torch.equal(out, fresh(x)), flush=True)
"""
CACHED = {
    "all in a region of its own": """
with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
    while True:
        for x, y in loader:
            out = model(x)
            tell(out, x)
            criterion(out.float(), y).backward(); optimizer.step(); optimizer.zero_grad()
""",
    "backward and step in a region of its own, no loader": """
torch.manual_seed(0)
batches = [next(iter(loader)) for _ in range(4)]
while True:
    for x, y in batches:
        out = model(x)
        tell(out, x)
        with torch.autocast("cpu", enabled=False):
            criterion(out.float(), y).backward(); optimizer.step(); optimizer.zero_grad()
""",
    "weights changed between two calls": """
weights = list(model.parameters())
while True:
    for x, y in loader:
        slopes = torch.autograd.grad(criterion(model(x).float(), y), weights)
        with torch.no_grad():
            for w, slope in zip(weights, slopes): w.add_(slope)
        out = model(x)
        tell(out, x)
        criterion(out.float(), y).backward()
        with torch.no_grad():
            for w, slope in zip(weights, slopes): w.sub_(slope)
        optimizer.step(); optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("loop", CACHED)
def test_casted_weights_do_not_outlive_a_change_of_the_weights(tuner: Tuner, loop: str) -> None:
    """Autocast keeps casted weights until its region ends."""
    reports, seen = run_live(
        tuner,
        CNN.replace("1e-3", "0.1") + FRESH + CACHED[loop],
        block("b"),
        block("c", amp_dtype="bfloat16"),
        block("b2"),
    )
    assert [r.error for r in reports] == ["", "", ""]
    assert seen == ["float32 True", "bfloat16 True", "float32 True"]


def test_the_agents_failure_leaves_the_job_running_untouched(tuner: Tuner) -> None:
    source = (
        CNN
        + """
import sys
count = 0
while count < 40:
    for x, y in loader:
        loss = criterion(model(x), y); loss.backward(); optimizer.step()
        count += 1
        if count == 6:
            def broken(self, *a): raise ZeroDivisionError("planted")
            sys.modules["autotune_trials.agent.core.live_mode"].LiveMode._go_on = broken
patched = [f.__qualname__ for f in (torch.Tensor.backward, torch.autograd.backward, nn.Module.__call__, torch.compile, DataLoader.__init__,
           torch.set_num_threads, torch.optim.Optimizer.__init__) if hasattr(f, "__wrapped__")]
print(count, patched, "_compiled_call_impl" in vars(model))
"""
    )
    tuner.start(source)
    tuner.receive()
    (fault,) = tuner.measure(block("b", 1000))
    assert type(fault).__name__ == "Fault" and "planted" in fault.text
    code, out, err = tuner.finish()
    assert code == 0, err
    assert out.split() == ["48", "[]", "False"]
    assert "planted" in tuner.log


def test_a_tuner_that_goes_away_leaves_the_job_running(tuner: Tuner) -> None:
    tuner.start(
        CNN
        + "for _ in range(3):\n    for x, y in loader:\n        criterion(model(x), y).backward();"
        " optimizer.step()\nprint('done')"
    )
    tuner.receive()
    tuner.close_connection()
    code, out, _ = tuner.finish()
    assert (code, out.strip()) == (0, "done")
