"""A profile calls a job that lets its GPU wait by that, and not by the phases it waits in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sample_results

from autotune.explain.records import Side
from autotune.results import Bottleneck
from autotune.stages.explain import with_idle_device


@pytest.mark.parametrize(
    ("own", "idle", "expected"),
    [
        (Bottleneck.COMPUTE, 0.8, Bottleneck.OVERHEAD),
        (Bottleneck.OPTIMIZER, 0.8, Bottleneck.OVERHEAD),
        (Bottleneck.COMPUTE, 0.2, Bottleneck.COMPUTE),
        (Bottleneck.COMPUTE, None, Bottleneck.COMPUTE),  # a CPU
        (Bottleneck.LOADER, 0.8, Bottleneck.LOADER),  # it waits for batches
    ],
)
def test_a_gpu_that_is_idle_is_not_what_limits_the_job(
    own: Bottleneck, idle: float | None, expected: Bottleneck
) -> None:
    before = replace(sample_results.observation(), bottleneck=own)
    after = with_idle_device(before, Side(idle_share=idle))
    assert after.bottleneck is expected
    assert (after is before) == (own is expected)
    assert own is expected or "idle for 80% of an iteration" in after.bottleneck_why
