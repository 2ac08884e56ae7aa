"""A live session leaves the losses of a job as they are, to the bit (test_loop_styles.py has many more
styles of training loops, in recorded runs).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers import slow
from tiny_tuner import CNN, Tuner, block, run_bare

PRINT = """
losses = []
def note(loss):
    losses.append(float(loss).hex())
    if len(losses) == 50:
        print(" ".join(losses), sum(float(p.double().sum()) for p in model.parameters()).hex(), flush=True)
        raise SystemExit(0)
"""
HEAD = CNN + PRINT

PLAIN = (
    HEAD
    + """
while True:
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note(loss)
"""
)
GAN = (
    HEAD
    + """
critic = nn.Sequential(nn.Flatten(), nn.Linear(192, 1))
maker = nn.Linear(4, 192)
d_step = torch.optim.Adam(critic.parameters())
g_step = torch.optim.Adam(maker.parameters())
while True:
    for x, _ in loader:
        with torch.no_grad():
            fake = maker(torch.randn(len(x), 4))
        d = (critic(x).exp().mean() - critic(fake).mean()) ** 2
        d_step.zero_grad(); d.backward(); d_step.step()
        g = critic(maker(torch.randn(len(x), 4))).pow(2).mean()
        g_step.zero_grad(); g.backward(); g_step.step()
        note(g)
"""
)
VALIDATION = (
    HEAD
    + """
held_out = DataLoader(data, batch_size=32)
count = 0
while True:
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        note(loss)
        count += 1
        if count % 10 == 0:
            model.eval()
            with torch.no_grad():
                sum(float(criterion(model(a), b)) for a, b in held_out)
            model.train()
"""
)
MANUAL = (
    HEAD
    + """
try:
    import autotune
except ImportError:
    autotune = None
x, y = data.tensors
while True:
    loss = criterion(model(x[:16]), y[:16])
    grads = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for p, g in zip(model.parameters(), grads):
            p -= 0.05 * g
    if autotune: autotune.step(loss=loss, samples=16)
    note(loss)
"""
)
COPIES = (
    HEAD
    + """
import copy, io, pickle
while True:
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if len(losses) % 5 == 2:
            twin = copy.deepcopy(model)
            assert twin._compiled_call_impl is None
            assert torch.equal(twin(x), model(x))
            copy.copy(model)(x)
            pickle.loads(pickle.dumps(model))(x)
            file = io.BytesIO(); torch.save(model, file); file.seek(0)
            torch.load(file, weights_only=False)(x)
        note(loss)
"""
)
SUBCLASS = (
    HEAD
    + """
class Tagged(torch.Tensor):
    pass
while True:
    for x, y in loader:
        loss = criterion(model(x), y).as_subclass(Tagged)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        torch.manual_seed(len(losses))
        note(loss)
"""
)
SCHEDULED = (
    HEAD
    + """
optimizer = torch.optim.SGD([torch.nn.Parameter(p.detach().clone()) for p in model.parameters()], lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
while True:
    for x, y in loader:
        loss = sum(((p - 1) ** 2).sum() for p in optimizer.param_groups[0]["params"]) + 0 * criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        schedule.step()
        note(loss)
"""
)

STYLES = {
    "plain": PLAIN,
    "gan": GAN,
    "validation": VALIDATION,
    "copies": COPIES,
    "subclass": SUBCLASS,
    "manual": MANUAL,
}


def losses_under_agent(tuner: Tuner, source: str) -> tuple[object, object, str]:
    """(Hello, first block report, stdout) of a live session that measures the baseline only."""
    tuner.forks = False
    tuner.start(
        source, env={"PYTHONPATH": tuner.python_path()} if "import autotune" in source else None
    )
    hello = tuner.receive()
    assert type(hello).__name__ == "Hello", hello
    reports = tuner.measure(block("b", 12), block("rest", 1000))
    code, out, err = tuner.finish()
    assert code == 0, err
    assert tuner.log == "", tuner.log
    return hello, reports[0], out


USUAL = {"plain", "manual"}  # run every time; the others run with the slow tests


@pytest.mark.parametrize("style", [s if s in USUAL else slow(s) for s in STYLES])
def test_losses_are_the_same_bits_with_the_agent(tuner: Tuner, tmp_path: Path, style: str) -> None:
    bare_directory = tmp_path / "bare"
    bare_directory.mkdir()
    bare = run_bare(bare_directory, STYLES[style])
    hello, report, out = losses_under_agent(tuner, STYLES[style])
    assert out == bare
    job = hello.job
    assert report.error == "" and len(report.window.times_s) >= 10
    assert sum(report.window.phases_s.values()) == pytest.approx(
        sum(report.window.times_s), rel=1e-6
    )
    assert (job.loader is None) == (style == "manual")
    assert job.backwards_per_step == {"gan": 2.0, "manual": 0.0}.get(style, 1.0)
    assert job.sample_unit == "samples"
    if style == "validation":
        assert report.window.interruptions >= 1 and max(report.window.samples) == 16
    assert [m.name for m in job.models][:1] == ["Sequential"]
    if style == "gan":
        assert len(job.optimizers) == 2 and report.window.interruptions == 0


def test_schedulers_stand_still_in_a_live_session(tuner: Tuner) -> None:
    """The learning rate drops by ten every five steps; it must not drift between blocks of a
    session.
    """
    tuner.start(
        SCHEDULED.replace(
            "        note(loss)\n",
            """
        losses.append(loss)
        if len(losses) == 49:
            print(optimizer.param_groups[0]["lr"])
            raise SystemExit(0)
""",
        )
    )
    tuner.receive()
    tuner.measure(block("b", 1000))
    assert tuner.finish()[1].strip() == "0.1"
