"""Pinned batches, if there is a CUDA device."""

from __future__ import annotations

import pytest
from loader_kit import Numbers
from torch.utils.data import DataLoader

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_workers_left")]


@pytest.mark.parametrize("workers", [0, 2])
def test_pinning_is_switched_under_the_loop(hook, workers):
    hooks, heard = hook()
    seen, pinned = [], []
    for number, batch in enumerate(DataLoader(Numbers(64), batch_size=4, num_workers=workers)):
        seen += batch.tolist()
        pinned.append(batch.is_pinned())
        hooks.choice.credit_backward()
        if number in (3, 7):
            hooks.training.set(pin_memory=True if number == 3 else None)
    assert seen == list(range(64)) and not heard.faults
    assert pinned == [False] * 4 + [True] * 4 + [False] * 8


def test_cached_batches_stay_pinned(hook):
    hooks, _ = hook()
    hooks.serving.set_stretch(True)
    for number, batch in enumerate(
        DataLoader(Numbers(64), batch_size=4, num_workers=1, pin_memory=True)
    ):
        assert batch.is_pinned() and batch.device.type == "cpu"
        hooks.choice.credit_backward()
        hooks.loop_state.iterations += 1
        hooks.serving.serve_cached(True)
        if number == 20:
            break
    assert number == 20, "more than the loader's own 16"
