"""How much memory a configuration may use."""

from __future__ import annotations

from autotune.job.spec import Constraints
from autotune.stages.measuring.memory_limits import beyond_limits
from autotune_spaces.facts import Machine
from autotune_trials.protocol.messages import Window


def said(limits: Constraints, device: str, peak_gib: float, own_gib: float = 0.0) -> str:
    machine = Machine(2, 8.0, 1.0, device, "", "2.13", "3.11", device_memory_gib=80.0)
    window = Window((), (), {}, peak_memory_gib=peak_gib)
    return beyond_limits(limits, machine, device, window, own_gib)


def test_the_device_is_filled_to_the_share_that_is_allowed() -> None:
    limits = Constraints(device_memory_fraction=0.9)
    assert said(limits, "cuda", 70.0) == ""
    assert said(limits, "cuda", 78.4) == (
        "uses 98% of the device's memory, more than device_memory_fraction allows"
    )


def test_a_job_that_takes_more_by_itself_may_go_on_doing_so() -> None:
    assert said(Constraints(device_memory_fraction=0.5), "cuda", 70.0, own_gib=69.5) == ""


def test_host_memory_is_limited_where_it_is_asked_for() -> None:
    assert said(Constraints(), "cpu", 500.0) == ""
    assert said(Constraints(host_memory_gib=8.0), "cpu", 9.0) == (
        "uses 9.0 GiB, more than host_memory_gib allows"
    )
