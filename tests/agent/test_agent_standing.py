"""Static facts of a profiled job: where things were built, their settings, and an optimizer trial
that does not touch the original.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_tuner import Tuner

from autotune_trials.agent.controls.optimizers import OptimizerControl
from autotune_trials.agent.observers import optimizer_trial
from autotune_trials.agent.observers.compiles import guard, one_line, user_line

JOB = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
def build():
    return DataLoader(data, batch_size=16)  # loader
model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)], nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)  # optimizer
steps = 0
while True:
    for x, y in build():
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        steps += 1
        assert all(int(s["step"]) == steps for s in optimizer.state.values()), "somebody else has stepped"
"""


def line_of(mark: str) -> int:
    return next(n for n, text in enumerate(JOB.splitlines(), 1) if text.endswith(f"# {mark}"))


def test_places_settings_and_a_trial_that_leaves_no_trace(tuner: Tuner) -> None:
    tuner.start(JOB, mode="profile", steps=6, watch_steps=8, watch_seconds=0.0, profile_steps=2)
    tuner.receive()
    record = tuner.receive()
    assert not record.ended_early, tuner.log
    seen = record.evidence
    (optimizer,) = seen.optimizers
    assert (optimizer["class"], optimizer["tensors"]) == ("AdamW", 42)
    assert (Path(optimizer["place"]["file"]).name, optimizer["place"]["line"]) == (
        "train.py",
        line_of("optimizer"),
    )
    assert (
        optimizer["best"] in ("foreach", "fused")
        and 0 < optimizer["best_s"] < optimizer["own_s"] < 1
    )
    assert (seen.loader["place"]["line"], seen.loader["num_workers"]) == (line_of("loader"), 0)
    assert seen.loader["place"]["code"] == "return DataLoader(data, batch_size=16)  # loader"
    assert seen.models[0]["dtypes"] == ["float32"]
    assert "settings" not in seen.blind, seen.blind
    assert (seen.breaks, seen.communication_s) == ((), ())
    assert len(seen.times_s) == 8


def small_adam(**settings: Any) -> Any:
    import torch

    parameters = [torch.nn.Parameter(torch.ones(8)) for _ in range(30)]
    for parameter in parameters:
        parameter.grad = torch.ones(8)
    return torch.optim.Adam(parameters, **settings)


def trial(optimizer: Any, *, scaler: bool = False) -> dict[str, Any]:
    import torch

    agent = SimpleNamespace(torch=torch, traits=SimpleNamespace(scaler=scaler))
    return optimizer_trial.try_out(agent, OptimizerControl(torch, optimizer))


def test_a_trial_calls_no_hook_and_moves_no_parameter() -> None:
    optimizer = small_adam()
    called: list[object] = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    told = trial(optimizer)
    assert set(told) == {"own_s", "best_s", "best"}
    assert not called and not optimizer.state
    assert all((p == 1).all() for g in optimizer.param_groups for p in g["params"])


def test_a_trial_needs_room_and_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert trial(torch.optim.Adam([torch.nn.Parameter(torch.ones(8))])) == {}, (
        "one parameter is no loop"
    )
    assert trial(small_adam(differentiable=True)) == {}, "there is nothing to choose"
    monkeypatch.setattr(optimizer_trial, "_free_gib", lambda *_: 0.0)
    assert "not enough free memory" in trial(small_adam())["untried"]


def test_of_sharded_parameters_only_the_ranks_own_part_needs_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (8,))
        parameters = [
            torch.nn.Parameter(DTensor.from_local(torch.ones(8), mesh, [Shard(0)], run_check=False))
            for _ in range(30)
        ]
        room = 2 * optimizer_trial.COPIES * 30 * 8 * 4 / optimizer_trial.ROOM / 2**30
        monkeypatch.setattr(optimizer_trial, "_free_gib", lambda *_: room)
        assert set(trial(torch.optim.AdamW(parameters))) == {"own_s", "best_s", "best"}
    finally:
        torch.distributed.destroy_process_group()


def test_fused_sgd_is_not_tried_beside_the_jobs_own_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may leave momenta unwritten there."""
    import torch

    seconds = {None: 3.0, "foreach": 2.0, "fused": 1.0}
    monkeypatch.setattr(optimizer_trial, "_step_s", lambda torch, optimizer, name: seconds[name])
    parameters = [p for group in small_adam().param_groups for p in group["params"]]
    sgd = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    assert trial(sgd)["best"] == trial(small_adam(), scaler=True)["best"] == "fused"
    assert trial(sgd, scaler=True)["best"] == "foreach"


REASON = """1/0: self.n == 1                                      # return self.b(h)+self.n  # gb.py:18 in resume (HINT: torch.compile considers …
User stack trace:
  File "/home/me/train.py", line 18, in forward
    return self.b(h)+self.n"""


def test_dynamos_words_are_cut_to_what_matters() -> None:
    assert guard(REASON) == "self.n == 1"
    assert user_line(REASON) == ("/home/me/train.py", 18, "forward")
    assert user_line("0/0: size mismatch") is None
    text = (
        "Attempted to call function marked as skipped\n  Explanation: Dynamo does not know it.\n "
        " Hint: a long one\n\n https://x"
    )
    assert (
        one_line(text) == "Attempted to call function marked as skipped. Dynamo does not know it."
    )
    assert one_line("") == ""
