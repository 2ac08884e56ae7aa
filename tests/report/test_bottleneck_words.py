"""The text on the bottleneck claims no more than was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_results import observation

from autotune.report.text.story import ceiling_words
from autotune.stages.observe import name_bottleneck

PARTS = replace(
    observation(0.11).anatomy,
    phases_s={"data": 0.01, "forward": 0.05, "backward": 0.04},
    batch_cost_s=0.1,
    reader_ratio=0.1,
)


@pytest.mark.parametrize("ceiling", [0.97, 1.0, 1.004])
def test_nobody_is_told_that_batches_for_nothing_would_slow_the_job_down(ceiling: float) -> None:
    kind, why = name_bottleneck(PARTS, ceiling, noise=0.03)
    assert why.endswith("; with an infinitely fast loader it would run no faster")
    assert (
        ceiling_words(
            replace(observation(0.11), ceiling=ceiling, bottleneck=kind, bottleneck_why=why)
        )
        == ""
    )


def test_the_most_a_loader_could_give_is_as_sure_as_the_machine_is_quiet() -> None:
    _, why = name_bottleneck(PARTS, 1.43, noise=0.08)
    assert why.endswith("; with an infinitely fast loader it would run 1.43× as fast (± 8%)")
    _, why = name_bottleneck(PARTS, 1.43, noise=0.16)
    assert why.endswith("it would run 1.43× as fast (± 16%, within the noise)")
    assert "1.43× as fast" in name_bottleneck(PARTS, 1.43, noise=0.004)[1]
    assert "±" not in name_bottleneck(PARTS, 1.43, noise=0.004)[1]
