"""A job that lets its GPU wait is called by that, and not by the phases it waits in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sample_results

from autotune.explain.records import Side
from autotune.results import Bottleneck
from autotune.stages.explain import with_idle_device


@pytest.mark.parametrize(
    ("own", "waiting", "idle", "expected"),
    [
        (Bottleneck.COMPUTE, 0.1, 0.8, Bottleneck.OVERHEAD),
        (Bottleneck.COMPUTE, 0.1, 0.2, Bottleneck.COMPUTE),
        (Bottleneck.COMPUTE, 0.1, None, Bottleneck.COMPUTE),  # a CPU
        (Bottleneck.COMPUTE, 0.45, 0.5, Bottleneck.COMPUTE),  # it waits for batches
        (Bottleneck.OPTIMIZER, 0.1, 0.8, Bottleneck.OPTIMIZER),
    ],
)
def test_a_gpu_that_is_idle_is_not_what_limits_the_job(
    own: Bottleneck, waiting: float, idle: float | None, expected: Bottleneck
) -> None:
    before = sample_results.observation()
    before = replace(before, bottleneck=own, anatomy=replace(before.anatomy, reader_ratio=waiting))
    after = with_idle_device(before, Side(idle_share=idle))
    assert after.bottleneck is expected
    assert (after is before) == (own is expected)
    assert own is expected or "idle for 70% of an iteration" in after.bottleneck_why
