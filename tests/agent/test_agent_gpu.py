"""What only a CUDA device can show: the device timeline, loss scaling, asynchronous copies, graph replay."""

from __future__ import annotations

import pytest
import torch
from tiny_tuner import CNN, Tuner, block, run_bare

from autotune_trials.protocol import Record

pytestmark = pytest.mark.gpu

CUDA_LOOP = CNN.replace("batch_size=16", "batch_size=16, pin_memory=True").replace("nn.Linear(8 * 36, 4))", "nn.Linear(8 * 36, 4)).cuda()") + """
for epoch in range(10_000):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        out = model(x)
        loss = criterion(out.float(), y)
        optimizer.zero_grad(); loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""


def live(tuner: Tuner, *blocks: object) -> list[object]:
    tuner.start(CUDA_LOOP)
    hello = tuner.receive()
    assert hello.job.device == "cuda" and hello.machine.device == "cuda"
    return tuner.measure(*blocks)


def test_phases_lie_on_the_device_timeline_and_add_up(tuner: Tuner) -> None:
    (report,) = live(tuner, block("b", 30))
    window = report.window
    assert sum(window.phases_s.values()) == pytest.approx(sum(window.times_s), rel=1e-3)
    assert window.phases_s["to_device"] > 0 and window.phases_s["backward"] > 0
    assert window.peak_memory_gib > 0


@pytest.mark.parametrize(
    ("knob", "value"),
    [("amp_dtype", "bfloat16"), ("amp_dtype", "float16"), ("non_blocking", True), ("channels_last", True), ("optimizer_impl", "fused"),
     ("optimizer_impl", "for-loop"), ("matmul_precision", "high"), ("cudnn_benchmark", True), ("pin_memory", False)],
)
def test_live_knobs_take_hold_and_are_taken_back(tuner: Tuner, knob: str, value: object) -> None:
    reports = live(tuner, block("b"), block("c", **{knob: value}), block("b2"))
    assert [(r.error, dict(r.no_effect)) for r in reports] == [("", {})] * 3


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_compile_on_cuda(tuner: Tuner, mode: str) -> None:
    reports = live(tuner, block("b"), block("c", compile_mode=mode, non_blocking=True, _max_seconds=200.0), block("b2"))
    assert [r.error for r in reports] == [""] * 3
    assert reports[1].notes["unique_graphs"] >= 1 and reports[1].notes["graph_breaks"] == 0


KEEPING = CUDA_LOOP.replace("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)").replace(
    "optimizer.step()", "optimizer.step(); print(loss.item(), float(sum(p.grad.abs().sum() for p in model.parameters())), flush=True)"
)


def test_gradients_survive_cuda_graphs_that_are_given_back(tuner: Tuner) -> None:
    tuner.start(KEEPING)
    tuner.receive()
    reports = tuner.measure(block("b"), block("c", compile_mode="reduce-overhead", _max_seconds=200.0), block("b2", 30))
    assert [r.error for r in reports] == [""] * 3
    assert tuner.process is not None and tuner.process.poll() is None
    tuner.process.kill()
    out, _ = tuner.process.communicate()
    assert all(torch.isfinite(torch.tensor([float(v) for v in line.split()])).all() for line in out.split("\n")[:-1])


ATTENDING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 256, 256), torch.randn(64, 256, 256)), batch_size=8)
model = nn.TransformerEncoderLayer(256, 4, batch_first=True).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(x.cuda())
        loss = (out.float() - y.cuda()).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize("mode", ["live", "fixed"])
@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn", "math"])
def test_the_attention_kernel_asked_for_runs(tuner: Tuner, kernel: str, mode: str) -> None:
    if kernel in ("flash", "cudnn") and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU cannot run it")
    tuner.start(ATTENDING, mode, {"sdpa_backend": kernel} if mode == "fixed" else None, steps=12)
    hello = tuner.receive()
    if mode == "fixed":
        assert tuner.receive().no_effect == {}
        return
    assert hello.job.attention
    reports = tuner.measure(block("b"), block("c", sdpa_backend=kernel), block("b2"))
    assert [(r.error, dict(r.no_effect)) for r in reports] == [("", {})] * 3


EVALUATED = CUDA_LOOP.replace("        out = model(x)\n", """
        model.eval()
        with torch.no_grad(): before = model(x)  # a look at the batch that is trained on next
        model.train()
        out = model(x)
""").replace("    for x, y in loader:", """
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            for _ in range(40): model(x.cuda())
    model.train()
    for x, y in loader:""")


def test_a_look_stays_on_the_device_timeline_and_an_evaluation_does_not(tuner: Tuner) -> None:
    tuner.start(EVALUATED, "fixed", steps=100)
    tuner.receive()
    record = tuner.receive()
    assert isinstance(record, Record) and set(record.window.samples) == {16.0}
    times_s = record.window.times_s[20:]
    after = [times_s[n] for n in range(len(times_s)) if (n + 20) % 16 == 0]  # 640 calls of the model came before these
    assert max(after) < 20 * sorted(times_s)[len(times_s) // 2]


SCALED = """
import os, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 64, device="cuda"), torch.randn(32, 1, device="cuda")
own = "AUTOTUNE_SESSION" not in os.environ
scaler = torch.amp.GradScaler("cuda", enabled=own)
for step in range(20):
    with torch.autocast("cuda", dtype=torch.float16, enabled=own):
        loss = (model(x).float() - y).pow(2).mean()
    if step == 5: loss = loss * 1e37
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
    print(float(loss), float(norm), flush=True)
"""


def test_float16_on_cuda_follows_grad_scaler(tuner: Tuner) -> None:
    expected = [[float(v) for v in line.split()] for line in run_bare(tuner.directory, SCALED).splitlines()]
    tuner.start(SCALED, "fixed", {"amp_dtype": "float16"}, steps=20)
    tuner.receive()
    found = tuner.receive()
    assert isinstance(found, Record) and found.skipped == (5,)
    assert list(found.losses[:5]) == pytest.approx([row[0] for row in expected[:5]], rel=1e-3)
    assert list(found.losses[6:]) == pytest.approx([row[0] for row in expected[6:]], rel=1e-2)
