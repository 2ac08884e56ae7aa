"""Which attention kernel a job runs: seen, switched, reverted. A CPU has two, flash and math."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiers import slow
from tiny_tuner import Tuner, block
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from autotune_spaces.knobs import create
from autotune_trials.agent.controls.attention import AttentionControl
from autotune_trials.agent.core.events import Events
from autotune_trials.protocol.messages import Record, SessionMode

# Each iteration prints the kernel that ran, as torch's profiler saw it.
ATTENDING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
loader = DataLoader(TensorDataset(torch.randn(64, 8, 32), torch.randn(64, 8, 32)), batch_size=8)
model = nn.TransformerEncoderLayer(32, 4, dim_feedforward=32, dropout=0.0, batch_first=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for x, y in loader:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            out = model(x)
        kernels = [event.key for event in seen.key_averages()]
        print("flash" if any("flash_attention" in k for k in kernels) else "math", flush=True)
        loss = (out - y).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def switches() -> tuple[list[int], bool, bool, bool]:
    cuda = torch.backends.cuda
    return (
        torch._C._get_sdp_priority_order(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )


@pytest.fixture
def restored() -> Iterator[tuple[list[int], bool, bool, bool]]:
    """torch's settings before the test, and again after it."""
    before = switches()
    yield before
    torch._C._set_sdp_priority_order(before[0])
    torch.backends.cuda.enable_flash_sdp(before[1])


def ran(tuner: Tuner) -> list[str]:
    """The kernels of a live job, consecutive repetitions removed. Ends the job."""
    assert tuner.process is not None
    tuner.process.kill()
    lines = tuner.process.communicate()[0].split("\n")[:-1]
    return [line for i, line in enumerate(lines) if i == 0 or line != lines[i - 1]]


def test_a_running_job_is_switched_and_given_back(tuner: Tuner) -> None:
    tuner.start(ATTENDING)
    hello = tuner.receive()
    assert hello.job.attention == ("flash",)
    assert create("sdpa_backend").domain(hello.machine, hello.job).values == ("default", "math")
    reports = tuner.measure(block("b"), block("c", sdpa_backend="math"), block("b2"))
    assert [(r.error, r.no_effect) for r in reports] == [("", {})] * 3
    assert ran(tuner) == ["flash", "math", "flash"]


@pytest.mark.slow
def test_a_fresh_run_has_it_from_the_first_iteration(tuner: Tuner) -> None:
    tuner.start(ATTENDING, "fixed", {"sdpa_backend": "math"}, steps=12)
    tuner.receive()
    record = tuner.receive()
    assert isinstance(record, Record) and not record.no_effect
    assert ran(tuner)[0] == "math"


@pytest.mark.slow
def test_compiled_code_is_switched_too(tuner: Tuner, tmp_path: Path) -> None:
    """Neither dynamo's guards nor the key of torch's compile cache include the attention kernel."""
    tuner.start(ATTENDING, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")})
    tuner.receive()
    compiled = {"compile_mode": "default", "_max_settle": 20, "_max_seconds": 200.0}
    reports = tuner.measure(
        block("c", **compiled), block("d", **compiled, sdpa_backend="math"), block("c2", **compiled)
    )
    assert [(r.error, r.no_effect) for r in reports] == [("", {})] * 3
    assert ran(tuner) == ["flash", "math", "flash"]


BY_HAND = """
class ByHand(nn.Linear):
    def forward(self, x):
        q = super().forward(x)
        return (q @ q.transpose(1, 2)).softmax(-1) @ q
model = ByHand(32, 32)
optimizer"""


@pytest.mark.parametrize("change", [("dropout=0.0", "dropout=0.1"), slow(("\noptimizer", BY_HAND))])
def test_a_job_that_runs_no_fused_kernel_is_seen_to(tuner: Tuner, change: tuple[str, str]) -> None:
    tuner.start(ATTENDING.replace(*change, 1))
    assert tuner.receive().job.attention == ()


def control(torch: Any) -> AttentionControl:
    live: Any = SimpleNamespace(
        torch=torch, config=SimpleNamespace(mode=SessionMode.FIXED), events=Events()
    )
    return AttentionControl(live)


def test_the_preferred_kernel_goes_first_and_the_others_stay(
    restored: tuple[list[int], bool, bool, bool],
) -> None:
    attention = control(torch)
    assert not attention.prefer("cudnn", "", 0) and switches() == restored, (
        "on no device yet, nothing is known of its order"
    )
    assert attention.prefer("cudnn", "cpu", 0) and not attention.prefer("cudnn", "cpu", 0)
    assert switches() == ([3, *(n for n in restored[0] if n != 3)], True, True, True)
    assert attention.prefer("math", "cpu", 1)
    assert switches() == (restored[0], False, False, False)
    assert attention.prefer(None, "cpu", 2) and switches() == restored


def test_an_order_that_torch_sets_at_its_first_choice_is_the_jobs_own(
    restored: tuple[list[int], bool, bool, bool],
) -> None:
    """``hopper`` simulates torch on a GPU where its first choice puts cuDNN first."""
    own = [3, 1, 2, 0, 4]
    hopper = SimpleNamespace(
        _C=torch._C,
        empty=lambda *size, device: torch.empty(*size),
        _fused_sdp_choice=lambda *_: torch._C._set_sdp_priority_order(own),
    )
    attention = control(hopper)
    attention.prefer("efficient", "cuda", 0)
    assert switches()[0] == [2, 3, 1, 0, 4]
    attention.prefer(None, "cuda", 0)
    assert switches()[0] == own


def test_kernels_hidden_by_compiled_code_are_unknown() -> None:
    attention = control(torch)
    q = torch.randn(1, 2, 8, 8, requires_grad=True)
    attention.look([scaled_dot_product_attention(q, q, q), nn.Linear(8, 8)(q)])
    assert attention.seen == {"flash"}

    class CompiledFunction(torch.autograd.Function):  # torch's name for compiled code
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    attention.look(CompiledFunction.apply(q))
    assert attention.seen is None
