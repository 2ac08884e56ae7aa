"""Jobs that fill their GPU: their own memory is no reason to refuse them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from replayed import Loss, Machine, context_of, run, table

from autotune.results import Observation
from autotune.stages.measuring.kept_session import BlockFailed
from autotune.stages.measuring.series import LiveSeries
from autotune.stages.observe import observe
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Block, BlockReport, Window

GPU = {"device": "cuda", "device_memory_gib": 80.0, "device_count": 1, "compute_capability": [9, 0]}
BFLOAT16, FUSED, WORKERS = (
    {"amp_dtype": "bfloat16"},
    {"optimizer_impl": "fused"},
    {"num_workers": 2},
)


class Device(Machine):
    """A replayed GPU of 80 GiB.

    ``reserved_gib``: the allocator's peak with a knob; "": for the unchanged job.
    """

    def __init__(self, reserved_gib: Mapping[str, float]) -> None:
        super().__init__(table(machine=GPU))
        self.reserved_gib = reserved_gib

    def report(self, block: Block, config: Config) -> BlockReport:
        report = super().report(block, config)
        assert report.window is not None
        reserved = self.reserved_gib[next(iter(config), "")]
        return replace(report, window=replace(report.window, peak_memory_gib=reserved))


def measured(folder: Path, machine: Machine, *configs: Config) -> Observation:
    """Observe the job, then measure ``configs`` in another session.

    Raises:
        BlockFailed: of one of them.
    """
    with context_of(folder, machine) as context:
        seen = observe(context)
        own = seen.anatomy
        with LiveSeries(context, own.iteration_s, own.iterations, own.peak_memory_gib) as live:
            for block in live.measure(configs):
                if block.failure is not None:
                    raise block.failure
    return seen


def test_a_job_that_reserves_95_percent_is_measured_and_so_is_what_takes_no_more(
    tmp_path: Path,
) -> None:
    device = Device({"": 76.0, "num_workers": 76.3, "optimizer_impl": 76.0})
    seen = measured(tmp_path, device, {}, WORKERS, FUSED)
    assert seen.anatomy.peak_memory_gib == 76.0


def test_what_takes_more_than_such_a_job_is_infeasible(tmp_path: Path) -> None:
    with pytest.raises(BlockFailed, match="uses 98% of the device's memory") as failed:
        measured(tmp_path, Device({"": 76.0, "amp_dtype": 78.4}), BFLOAT16)
    assert failed.value.kind == "infeasible"


def test_a_job_with_room_may_be_given_up_to_the_limit(tmp_path: Path) -> None:
    measured(tmp_path / "room", Device({"": 40.0, "amp_dtype": 71.0}), BFLOAT16)
    with pytest.raises(BlockFailed, match="92%"):
        measured(tmp_path / "none", Device({"": 40.0, "amp_dtype": 73.6}), BFLOAT16)


class PowerCapped(Machine):
    """Replays a GPU that runs at its power cap in every window."""

    def window(self, times_s: Sequence[float], samples: float) -> Window:
        return replace(super().window(times_s, samples), power_capped=True)


def test_a_gpu_at_its_power_cap_is_told_and_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, PowerCapped(table(Loss())), shown="auto")
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("the GPU runs at its power cap") == 1
    assert '"disturbed"' not in (tmp_path / "run" / "journal.jsonl").read_text()
