"""The named bottleneck agrees with the ceiling, whatever the two measurements say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.results import Anatomy
from autotune.verdict.bottleneck import name_bottleneck


def parts(
    data: float = 0.0,
    *,
    optimizer: float = 0.05,
    other: float = 0.0,
    epoch_end_s: float = 0.0,
    epoch: int | None = 5,
) -> Anatomy:
    """An iteration of one second, ``data`` of it waiting; the rest is compute."""
    phases = {
        "data": data,
        "forward": 0.5 * (1 - data - optimizer - other),
        "backward": 0.5 * (1 - data - optimizer - other),
        "optimizer": optimizer,
        "other": other,
    }
    return Anatomy(
        phases,
        1.0,
        1.0,
        1.0,
        1.0,
        16.0,
        data,
        1.0,
        data,
        96,
        12,
        turnover_s=epoch_end_s,
        epoch_iterations=epoch,
    )


@pytest.mark.parametrize(
    ("found", "ceiling", "noise", "kind"),
    [
        (parts(0.6), 2.4, 0.02, "loader"),
        (parts(0.6), None, 0.0, "loader"),
        (parts(0.05), 1.03, 0.02, "compute"),
        (parts(0.05), None, 0.0, "compute"),
        (parts(0.05, optimizer=0.4), 1.03, 0.02, "optimizer"),
        (parts(0.05, other=0.5), 1.03, 0.02, "overhead"),
        (parts(0.05, epoch_end_s=15.0), 4.06, 0.02, "epoch ends"),  # 3 s per iteration of 1 s
        (parts(0.05, epoch_end_s=15.0), None, 0.0, "epoch ends"),
        # 0.2 s per iteration, and more waiting for batches
        (parts(0.3, epoch_end_s=1.0), 1.7, 0.02, "loader"),
        (parts(0.05, epoch_end_s=15.0, epoch=100), 1.2, 0.02, "compute"),  # epochs are long
        # the two contradict each other: the ceiling decides
        (parts(0.03), 2.1, 0.02, "loader"),
        (parts(0.03, optimizer=0.4), 2.1, 0.02, "loader"),
        (parts(0.5), 1.0, 0.02, "compute"),
        (parts(0.5), 0.8, 0.02, "compute"),
        (parts(0.5, optimizer=0.3), 1.0, 0.02, "optimizer"),
        (parts(0.3), 1.1, 0.01, "compute"),
        # the ceiling cannot be distinguished from the noise: the time decides ...
        (parts(0.25), 1.3, 0.18, "loader"),
        (parts(0.25), 1.05, 0.18, "loader"),
        (parts(0.05), 1.3, 0.18, "compute"),
        # ... unless the gain it promises would have been visible
        (parts(0.7), 1.05, 0.18, "compute"),
    ],
)
def test_what_limits_the_job(
    found: Anatomy, ceiling: float | None, noise: float, kind: str
) -> None:
    assert name_bottleneck(found, ceiling, noise)[0] == kind


@pytest.mark.parametrize("data", [0.0, 0.1, 0.19, 0.21, 0.5, 0.9])
@pytest.mark.parametrize("epoch_end_s", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("ceiling", [0.9, 1.0, 1.1, 1.24, 1.26, 2.0, 4.06])
def test_on_a_quiet_machine_the_loader_is_named_just_where_the_ceiling_says_so(
    data: float, epoch_end_s: float, ceiling: float
) -> None:
    kind, why = name_bottleneck(parts(data, epoch_end_s=epoch_end_s), ceiling, 0.005)
    assert (kind in ("loader", "epoch ends")) == (ceiling >= 1.25)
    assert (f"{ceiling:.2f}×" in why) or ceiling < 1.005


def test_the_sentence_says_what_was_seen_and_what_contradicts_it() -> None:
    _, why = name_bottleneck(parts(0.05, epoch_end_s=15.0), 4.06, 0.005, restarts_workers=True)
    assert (
        why == "75% of the time is lost at epoch ends, 15 s every 5 iterations, where its workers"
        " are restarted; with an infinitely fast loader it would run 4.06× as fast"
    )
    assert "workers" not in name_bottleneck(parts(0.05, epoch_end_s=15.0), 4.06, 0.005)[1]
    _, why = name_bottleneck(parts(0.5), 1.0, 0.005)
    assert why.endswith(
        "50% of it is spent on the loader, but the loader is not the limit: with an"
        " infinitely fast one it would run no faster"
    )
    _, why = name_bottleneck(parts(0.3), 3.8, 0.005)
    assert why == (
        "30% of the time is spent waiting for the next batch, and preparing batches slows the rest"
        " down; with an infinitely fast loader it would run 3.80× as fast"
    )
    _, why = name_bottleneck(parts(0.03), 2.1, 0.005)
    assert (
        why
        == "only 3% of the time is spent on the loader, but preparing batches slows the rest down;"
        " with an infinitely fast loader it would run 2.10× as fast"
    )


def test_a_ceiling_within_the_noise_is_said_to_be_that() -> None:
    assert "1.20× as fast (± 18%, within the noise)" in name_bottleneck(parts(0.05), 1.2, 0.18)[1]
    assert "within" not in name_bottleneck(parts(0.5), 2.0, 0.18)[1]


def test_records_of_earlier_versions_know_no_epochs() -> None:
    assert (
        name_bottleneck(replace(parts(0.05, epoch_end_s=15.0), epoch_iterations=None), None)[0]
        == "compute"
    )
