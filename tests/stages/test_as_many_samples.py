"""A candidate with another batch size runs over as many samples as the unchanged job."""

from __future__ import annotations

import pytest

from autotune.stages.measuring.fresh import as_many_samples


def consumed(steps: int, size: int, epoch: int) -> int:
    samples = position = 0
    for _ in range(steps):
        batch = min(size, epoch - position)
        samples, position = samples + batch, (position + batch) % epoch
    return samples


@pytest.mark.parametrize(("epoch", "own"), [(65, 32), (100, 32), (520, 128), (1030, 256), (96, 32)])
@pytest.mark.parametrize("factor", [2, 4, 8])
def test_epochs_that_end_with_a_smaller_batch_count(epoch: int, own: int, factor: int) -> None:
    size = own * factor
    steps = as_many_samples(240, own, size, epoch)
    assert consumed(steps, size, epoch) >= consumed(240, own, epoch)
    assert consumed(steps - 2, size, epoch) < consumed(240, own, epoch), "and no more"


def test_full_batches_count_by_their_size() -> None:
    assert as_many_samples(240, 32, 64, None) == 120
    assert as_many_samples(7, 32, 64, None) == 4
