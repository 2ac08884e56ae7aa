"""While the loader is the bottleneck only its knobs are searched."""

from __future__ import annotations

import pytest

from autotune.search.focus import at_ceiling, knobs_that_matter
from autotune.stages.kept_session import TOO_MANY_WORKERS
from autotune.stages.proposals import to_blame

NAMES = ("amp_dtype", "num_workers", "batch_size", "persistent_workers", "malloc", "data_staging")
LOADER, OTHERS = ("num_workers", "persistent_workers", "data_staging"), ("amp_dtype", "batch_size", "malloc")


@pytest.mark.parametrize(
    ("bottleneck", "share", "now", "later"),
    [
        ("loader", 0.05, LOADER, OTHERS),
        ("epoch ends", 0.25, LOADER, OTHERS),
        ("loader", None, LOADER, OTHERS),
        ("loader", 0.98, OTHERS, LOADER),
        ("compute", 0.99, OTHERS, LOADER),  # batches for nothing would make it no faster
        ("compute", 0.90, NAMES, ()),
        ("compute", None, NAMES, ()),
        ("optimizer", 0.90, NAMES, ()),
    ],
)
def test_what_can_matter_now(bottleneck: str, share: float | None, now: tuple[str, ...], later: tuple[str, ...]) -> None:
    assert knobs_that_matter(bottleneck, NAMES, share) == (now, later)


def test_a_loader_bound_job_without_a_knob_for_its_loader_is_searched_all_the_same() -> None:
    assert knobs_that_matter("loader", OTHERS, 0.3) == (OTHERS, ())


@pytest.mark.parametrize(("speedup", "ceiling", "reached"), [(3.9, 4.0, True), (3.8, 4.0, False), (5.0, 4.0, True), (9.0, None, False)])
def test_at_the_ceiling(speedup: float, ceiling: float | None, reached: bool) -> None:
    assert at_ceiling(speedup, ceiling) is reached


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
