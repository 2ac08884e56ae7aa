"""While the loader is the bottleneck only its knobs are searched."""

from __future__ import annotations

import math

import pytest

from autotune.search.focus import at_ceiling, knobs_that_matter
from autotune.stages.kept_session import TOO_MANY_WORKERS
from autotune.stages.proposals import to_blame

NAMES = ("amp_dtype", "num_workers", "batch_size", "persistent_workers", "malloc", "data_staging")
LOADER, OTHERS = ("num_workers", "persistent_workers", "data_staging"), ("amp_dtype", "batch_size", "malloc")


@pytest.mark.parametrize(
    ("bottleneck", "now", "later"), [("loader", LOADER, OTHERS), ("epoch ends", LOADER, OTHERS), ("compute", NAMES, ()), ("optimizer", NAMES, ())]
)
def test_what_can_matter_now(bottleneck: str, now: tuple[str, ...], later: tuple[str, ...]) -> None:
    assert knobs_that_matter(bottleneck, NAMES) == (now, later)


def test_a_loader_bound_job_without_a_knob_for_its_loader_is_searched_all_the_same() -> None:
    assert knobs_that_matter("loader", OTHERS) == (OTHERS, ())


@pytest.mark.parametrize(
    ("speedup", "sd", "ceiling", "reached"),
    [(3.9, 0.002, 4.0, True), (3.9, 0.05, 4.0, False), (3.8, 0.002, 4.0, False), (5.0, 0.05, 4.0, True), (9.0, 0.0, None, False)],
)
def test_at_the_ceiling(speedup: float, sd: float, ceiling: float | None, reached: bool) -> None:
    assert at_ceiling(math.log(speedup), sd, ceiling) is reached


@pytest.mark.parametrize(
    ("config", "reason", "blamed"),
    [
        ({"num_workers": 64}, "out of memory (…)", ("num_workers",)),
        ({"num_workers": 64, "prefetch_factor": 8}, "killed 3 times in a row (…)", ("num_workers",)),
        ({"num_workers": 64, "amp_dtype": "bfloat16"}, f"64 {TOO_MANY_WORKERS} (OSError: [Errno 24] …)", ("num_workers",)),
        ({"num_workers": 4, "batch_size": 512}, "out of memory (CUDA out of memory)", ("batch_size", "micro_batch_size")),
        ({"num_workers": 4, "compile_mode": "default"}, "out of memory (CUDA out of memory)", ("batch_size", "micro_batch_size")),
    ],
)
def test_where_the_machine_ended_the_knob_that_took_too_much_is_blamed(config: dict, reason: str, blamed: tuple[str, ...]) -> None:
    assert to_blame(config, reason) == blamed
