"""On a CUDA device only: the device timeline, loss scaling, asynchronous copies, graph replay."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import pytest
import torch
from tiny_tuner import CNN, Tuner, block, run_bare

from autotune.verdict.timing import cost_without_data, waiting_times_s
from autotune_trials.protocol.messages import Fault, Hello, Record

pytestmark = pytest.mark.gpu

CUDA_LOOP = (
    CNN.replace("batch_size=16", "batch_size=16, pin_memory=True").replace(
        "nn.Linear(8 * 36, 4))", "nn.Linear(8 * 36, 4)).cuda()"
    )
    + """
for epoch in range(10_000):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        out = model(x)
        loss = criterion(out.float(), y)
        optimizer.zero_grad(); loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
)


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


BUSY = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.randn(1)
model = nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.randn(16384, 4096, device="cuda")
for shift in DataLoader(Slow(), batch_size=1):
    loss = model(x + shift.cuda(non_blocking=True)).pow(2).mean()
    for _ in range(3): loss = loss + model(x).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def test_what_the_cpu_waits_for_while_the_device_is_busy_is_no_waiting(tuner: Tuner) -> None:
    tuner.start(BUSY)
    tuner.receive()
    (report,) = tuner.measure(block("b", 40))
    window = report.window
    assert sum(window.data_s) > 40 * 0.0025, "the loader takes its time"
    assert sum(waiting_times_s(window)) < 0.2 * sum(window.data_s)
    assert cost_without_data(window) == pytest.approx(
        sum(window.times_s) / sum(window.samples), rel=0.1
    )


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("amp_dtype", "bfloat16"),
        ("amp_dtype", "float16"),
        ("non_blocking", True),
        ("cuda_prefetch", True),
        ("channels_last", True),
        ("optimizer_impl", "fused"),
        ("optimizer_impl", "for-loop"),
        ("matmul_precision", "high"),
        ("pin_memory", False),
    ],
)
def test_live_knobs_take_hold_and_are_taken_back(tuner: Tuner, knob: str, value: object) -> None:
    reports = live(tuner, block("b"), block("c", **{knob: value}), block("b2"))
    assert [(r.error, dict(r.no_effect)) for r in reports] == [("", {})] * 3


def test_reentrant_checkpoints_are_one_backward_and_their_loss_the_jobs(tuner: Tuner) -> None:
    """Their inner backwards run on a thread of the autograd engine."""
    source = CUDA_LOOP.replace(
        "out = model(x)",
        "out = torch.utils.checkpoint.checkpoint_sequential(model, 3, x.requires_grad_(),"
        " use_reentrant=True)",
    ).replace("optimizer.step()", "optimizer.step(); print(loss.item(), flush=True)")
    tuner.start("import torch.utils.checkpoint\n" + source, mode="fixed", steps=20)
    assert tuner.receive().job.backwards_per_step == 1.0
    record = tuner.receive()
    assert isinstance(record, Record) and tuner.process is not None
    tuner.process.kill()
    printed = [float(line) for line in tuner.process.communicate()[0].split()]
    # the job is held in its last step, before it prints
    assert len(printed) >= 19
    assert list(record.losses[: len(printed)]) == pytest.approx(printed)


def test_workers_under_a_default_device(tuner: Tuner) -> None:
    """torch draws a loader's seed on the default device."""
    source = CUDA_LOOP.replace(
        "model = nn", "torch.set_default_device('cuda')\nmodel = nn"
    ).replace("shuffle=True", "shuffle=True, generator=torch.Generator('cuda')")
    tuner.start(source)
    tuner.receive()
    reports = tuner.measure(block("b"), block("c", pin_memory=False), block("b2"))
    assert [r.error for r in reports] == [""] * 3


def test_batches_that_are_on_the_gpu_already(tuner: Tuner) -> None:
    source = CUDA_LOOP.replace("pin_memory=True", "pin_memory=False").replace(
        "loader = ", "data = TensorDataset(*(t.cuda() for t in data.tensors))\nloader = "
    )
    tuner.start(source)
    assert tuner.receive().job.loader.on_gpu


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_compile_on_cuda(tuner: Tuner, mode: str) -> None:
    reports = live(
        tuner,
        block("b"),
        block("c", compile_mode=mode, non_blocking=True, _max_seconds=200.0),
        block("b2"),
    )
    assert [r.error for r in reports] == [""] * 3
    assert reports[1].notes["unique_graphs"] >= 1 and reports[1].notes["graph_breaks"] == 0


BLOCKS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1))
    def forward(self, x):
        return x + self.layers(x)
model = nn.Sequential(nn.Linear(256, 256), *(Block() for _ in range(6)), nn.Linear(256, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10_000):
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def test_repeated_blocks_are_compiled_once_on_cuda(tuner: Tuner) -> None:
    tuner.start("import torch\nfrom torch import nn\n" + BLOCKS)
    assert tuner.receive().job.models[0].repeated_blocks == 6
    reports = tuner.measure(
        block("b"), block("c", compile_mode="regional", _max_seconds=200.0), block("b2")
    )
    assert [(r.error, dict(r.no_effect)) for r in reports] == [("", {})] * 3
    assert reports[1].notes["unique_graphs"] == 1 and reports[1].notes["graph_breaks"] == 0


# The job reads values before the step, in which a block may end, and again after it.
READING = CUDA_LOOP.replace(
    "optimizer.step()", "seen = read(); optimizer.step(); print(*seen, *read(), flush=True)"
).replace(
    "for epoch",
    """def read():
    grads = sum(p.grad.abs().sum() for p in model.parameters())
    return loss.item(), float(out.sum()), float(grads)
for epoch""",
)


def test_gradients_and_outputs_survive_cuda_graphs_that_are_given_back(tuner: Tuner) -> None:
    tuner.start(READING)
    tuner.receive()
    reports = tuner.measure(
        block("b"), block("c", compile_mode="reduce-overhead", _max_seconds=200.0), block("b2", 30)
    )
    assert [r.error for r in reports] == [""] * 3
    assert tuner.process is not None and tuner.process.poll() is None
    tuner.process.kill()
    out, _ = tuner.process.communicate()
    for line in out.split("\n")[:-1]:
        numbers = [float(v) for v in line.split()]
        assert torch.isfinite(torch.tensor(numbers)).all()
        assert numbers[:3] == pytest.approx(numbers[3:], rel=1e-5)


AHEAD = (
    BUSY.replace("time.sleep(0.003)", "")
    .replace("10_000", "20")
    .replace(
        "for shift in DataLoader(Slow(), batch_size=1):",
        """while True:
  for shift in DataLoader(Slow(), batch_size=1, num_workers=4):""",
    )
)


def test_workers_that_start_while_the_device_is_busy_cost_nothing(tuner: Tuner) -> None:
    """The CPU is an epoch ahead of the device when it starts the workers of the next epoch."""
    tuner.start(AHEAD, "fixed", steps=100)
    tuner.receive()
    record = tuner.receive()
    assert isinstance(record, Record) and len(record.window.turnovers_s) >= 4
    assert statistics.mean(record.window.turnovers_s) < 0.01


STAGED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, index): return torch.full((4096, 4096), float(index % 100))
model = nn.Linear(4096, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
buffer = torch.empty(4096, 4096).pin_memory()
for number, x in enumerate(DataLoader(Numbers(), batch_size=None)):
    buffer.copy_(x)
    moved = buffer.to("cuda")
    buffer.fill_(-1.0)  # for the next batch
    loss = model(moved).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(moved.eq(number % 100).all().item(), flush=True)
"""


def test_a_buffer_of_the_jobs_own_is_waited_for(tuner: Tuner) -> None:
    tuner.start(STAGED, "fixed", {"non_blocking": True}, steps=20)
    tuner.receive()
    assert isinstance(tuner.receive(), Record) and tuner.process is not None
    tuner.process.kill()
    assert set(tuner.process.communicate()[0].splitlines()) == {"True"}


COPYING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
inputs = [torch.randn(4096, 4096).pin_memory() for _ in range(4)]
class Ready(Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, index): return inputs[index % 4]
model = nn.Linear(4096, 2048).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in DataLoader(Ready(), batch_size=None):
    loss = model(x.to("cuda", non_blocking=True)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item())
"""


def test_a_batch_copied_ahead_costs_no_time(tuner: Tuner) -> None:
    tuner.start(COPYING)
    tuner.receive()
    reports = tuner.measure(block("b", 40), block("c", 40, cuda_prefetch=True), block("b2", 40))
    assert [(r.error, dict(r.no_effect)) for r in reports] == [("", {})] * 3
    copying_s = [r.window.phases_s["to_device"] for r in reports]
    assert copying_s[1] < 0.3 * copying_s[0]
    step_s = [statistics.median(r.window.times_s) for r in reports]
    assert step_s[1] < 0.9 * min(step_s[0], step_s[2])


@pytest.mark.parametrize(
    "move", ['x.to("cuda", non_blocking=True)', "x.cuda()", "(x.cuda() + 0 * x.zero_().mean())"]
)
def test_a_batch_copied_ahead_is_the_jobs_batch(tuner: Tuner, tmp_path: Path, move: str) -> None:
    source = COPYING.replace('x.to("cuda", non_blocking=True)', move).replace(
        "inputs[index % 4]", "inputs[index % 4].clone().pin_memory()"
    )
    expected = [
        float(line) for line in run_bare(tmp_path, source.replace("10_000", "40")).splitlines()
    ]
    tuner.start(source, "fixed", {"cuda_prefetch": True}, steps=40)
    tuner.receive()
    record = tuner.receive()
    assert isinstance(record, Record) and dict(record.no_effect) == {}
    assert list(record.losses) == pytest.approx(expected, rel=1e-6)


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


EVALUATED = CUDA_LOOP.replace(
    "        out = model(x)\n",
    """
        model.eval()
        with torch.no_grad(): before = model(x)  # a look at the batch that is trained on next
        model.train()
        out = model(x)
""",
).replace(
    "    for x, y in loader:",
    """
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            for _ in range(40): model(x.cuda())
    model.train()
    for x, y in loader:""",
)


def test_a_look_stays_on_the_device_timeline_and_an_evaluation_does_not(tuner: Tuner) -> None:
    tuner.start(EVALUATED, "fixed", steps=100)
    tuner.receive()
    record = tuner.receive()
    assert isinstance(record, Record) and set(record.window.samples) == {16.0}
    times_s = record.window.times_s[20:]
    # 640 calls of the model ran before these
    after = [times_s[n] for n in range(len(times_s)) if (n + 20) % 16 == 0]
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
    expected = [
        [float(v) for v in line.split()] for line in run_bare(tuner.directory, SCALED).splitlines()
    ]
    tuner.start(SCALED, "fixed", {"amp_dtype": "float16"}, steps=20, probe_steps=5)
    tuner.receive()
    found = tuner.receive()
    assert isinstance(found, Record) and found.skipped == (5,)
    assert list(found.losses[:5]) == pytest.approx([row[0] for row in expected[:5]], rel=1e-3)
    assert list(found.losses[6:]) == pytest.approx([row[0] for row in expected[6:]], rel=1e-2)
    norms = [row[1] for row in expected[:5]]
    assert list(found.gradient_norms[:5]) == pytest.approx(norms, rel=1e-2), "unscaled"


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_float16_with_a_fused_optimizer_never_waits_for_the_device(name: str) -> None:
    from autotune_trials.agent.controls.loss_scaler import LossScaler

    model = torch.nn.Linear(64, 64, device="cuda")
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, fused=True, **options)
    scaler, x, left_out = LossScaler(torch), torch.randn(8, 64, device="cuda"), []
    torch.cuda.synchronize()
    for step in range(6):
        if step >= 1:  # SGD's first step creates the momentum buffers
            torch.cuda.set_sync_debug_mode("error")
        try:
            loss = model(x).square().mean()
            if step == 3:
                loss = loss * 1e38
            scaler.before_backward([optimizer])
            scaled, gradients = scaler.scaled(loss, None)
            scaled.backward(gradients)
            scaler.after_backward([optimizer])
            scaler.before_step(optimizer)
            optimizer.step()
            scaler.after_step(optimizer)
            left_out.append(scaler.update())
            optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert (
        list(map(bool, left_out)) == [False, False, False, True, False, False]
        and scaler.scale == 2.0**15
    )
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_job_on_the_second_device_is_measured_there(tuner: Tuner) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    tuner.start(CUDA_LOOP.replace(".cuda()", ".cuda(1)"))
    assert isinstance(tuner.receive(), Hello)
    (report,) = tuner.measure(block("b", 30))
    window = report.window
    assert report.error == "" and window.peak_memory_gib > 0 and window.phases_s["backward"] > 0
    assert sum(window.phases_s.values()) == pytest.approx(sum(window.times_s), rel=1e-3)


PREFETCHED = """
import json, os, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
host, side = torch.randn(8192, 2048).pin_memory(), torch.cuda.Stream()
def fetch():
    with torch.cuda.stream(side):
        return host.to("cuda", non_blocking=True)
times, ahead = [], fetch()
while True:
    began = time.perf_counter()
    torch.cuda.current_stream().wait_stream(side)
    x, ahead = ahead, fetch()
    x.record_stream(torch.cuda.current_stream())
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - began)
    if len(times) % 20 == 0:
        with open("part.json", "w") as file: json.dump(times, file)
        os.replace("part.json", "times.json")
"""


def test_a_prefetcher_on_a_stream_of_its_own_leaves_the_time_line_alone(tuner: Tuner) -> None:
    tuner.start(PREFETCHED)
    assert isinstance(tuner.receive(), Hello)
    (report,) = tuner.measure(block("b", 200))
    tuner.close_connection()
    window = report.window
    assert min(min(times) for times in window.phase_times_s.values()) >= 0.0
    wall_s = statistics.median(json.loads((tuner.directory / "times.json").read_text()))
    assert statistics.median(window.times_s) == pytest.approx(wall_s, rel=0.05)


CAPTURING = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
x, y = torch.randn(32, 64, device="cuda"), torch.randn(32, 1, device="cuda")
def step():
    optimizer.zero_grad(set_to_none=True)
    loss = (model(x) - y).square().mean()
    loss.backward(); optimizer.step()
    return loss
"""
WHOLE = (
    CAPTURING
    + """
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3): first = float(step())
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): loss = step()
for _ in range(50): graph.replay()
print(float(loss) < first, flush=True)
"""
)
PARTIAL = (
    CAPTURING
    + """
model = torch.cuda.make_graphed_callables(model, (x,))
while True: step()
"""
)


def test_a_training_step_in_a_graph_of_the_jobs_own_is_told_and_trains_on(tuner: Tuner) -> None:
    tuner.start(WHOLE, warmup_steps=10)
    fault = tuner.receive()
    assert isinstance(fault, Fault) and fault.unhooked, fault
    tuner.close_connection()
    status, printed, errors = tuner.finish()
    assert status == 0 and printed == "True\n", errors


def test_a_model_in_a_graph_of_the_jobs_own_is_measured(tuner: Tuner) -> None:
    tuner.start(PARTIAL)
    assert isinstance(tuner.receive(), Hello)
    (report,) = tuner.measure(block("b", 30))
    assert report.error == "" and sum(report.window.times_s) > 0


def test_a_block_after_graphs_does_not_inherit_their_memory(tuner: Tuner) -> None:
    # large activations: what torch reserves for a small model varies by more than its graphs take
    large = BLOCKS.replace("randn(64,", "randn(8192,").replace(", nn.Dropout(0.1)", "")
    tuner.start("import torch\nfrom torch import nn\n" + large)
    tuner.receive()
    reports = tuner.measure(
        block("b"), block("c", compile_mode="reduce-overhead", _max_seconds=200.0), block("b2")
    )
    assert [r.error for r in reports] == [""] * 3
    assert reports[2].window.peak_memory_gib <= 1.05 * reports[0].window.peak_memory_gib


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_optimizer_that_is_offered_steps(name: str, dtype: str) -> None:
    from autotune_trials.agent.controls.optimizers import OptimizerControl

    def built() -> torch.optim.Optimizer:
        parameter = torch.nn.Parameter(torch.ones(67, device="cuda", dtype=getattr(torch, dtype)))
        parameter.grad = torch.ones_like(parameter)
        return getattr(torch.optim, name)([parameter], lr=0.1)

    tried = built()  # the control does not keep the optimizer alive
    offered = OptimizerControl(torch, tried).supported()
    assert offered[:2] == ("for-loop", "foreach")
    for implementation in offered:
        optimizer = built()
        OptimizerControl(torch, optimizer).set(implementation)
        optimizer.step()
        assert (optimizer.param_groups[0]["params"][0] < 1).all(), implementation


def test_the_probe_of_a_large_model_needs_little_memory() -> None:
    from autotune_trials.agent.facts.gradient_probe import NormProbe

    parameters = [torch.nn.Parameter(torch.ones(8192, 8192, device="cuda"))]
    probe, optimizer = NormProbe(torch, 1), torch.optim.SGD(parameters, lr=1.0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    probe.before_step(optimizer)
    probe.after_step()
    probe.end_step()
    assert not probe.failure and torch.cuda.max_memory_allocated() < 1.1 * before


def test_a_pinned_batch_is_kept_pinned() -> None:
    from autotune_trials.agent.loop.batches import copy_batch

    batch = torch.arange(6.0).pin_memory()
    copied = copy_batch(batch)
    assert copied.is_pinned() and copied.equal(batch) and copied.data_ptr() != batch.data_ptr()


def test_the_driver_knows_the_device_and_its_clocks() -> None:
    from autotune_trials.measure import nvml, throttling
    from autotune_trials.measure.energy import EnergyMeter

    device = torch.device("cuda", 0)
    assert nvml.handle(device).value
    torch.cuda.synchronize()
    assert any(throttling._reasons(device) for _ in range(50) if not time.sleep(0.1)), (
        "an idle device says that it is idle"
    )
    meter = EnergyMeter(device, rank=1)  # the first rank adds the machine's packages
    assert [counter.name for counter in meter.counters] == ["GPU"]
    time.sleep(0.5)
    (joules,) = meter.shared([0.5])
    assert 1.0 < joules < 500.0, "an idle device takes 10 to 100 W"


def test_torch_draws_nvtx_ranges() -> None:
    from autotune_trials.measure.nvtx import TorchNvtxRanges

    ranges = TorchNvtxRanges(torch)
    ranges.begin_iteration()
    ranges.switch("forward")
    ranges.end_iteration()
