"""Clock and thermal limits, read from a copy of the kernel's files and from a stand-in for NVML."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune_trials.measure import nvml as driver
from autotune_trials.measure.throttling import Limits, in_words, power_capped, read


def write(root: Path, **counts: str) -> None:
    """``cpu0_core="3"`` becomes cpu0/thermal_throttle/core_throttle_count."""
    for name, count in counts.items():
        cpu, kind = name.split("_")
        folder = root / cpu / "thermal_throttle"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{kind}_throttle_count").write_text(count + "\n")


def test_what_grew_during_the_window_is_told_once_for_all_cores(tmp_path: Path) -> None:
    write(tmp_path, cpu0_core="7", cpu0_package="40", cpu1_core="0", cpu1_package="40")
    before = read(None, str(tmp_path))
    assert in_words(before, read(None, str(tmp_path))) == ""
    write(tmp_path, cpu0_core="8", cpu0_package="43", cpu1_package="43")
    assert in_words(before, read(None, str(tmp_path))) == "the CPU was thermally throttled 3 times"


def test_what_cannot_be_read_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path, cpu0_core="many", cpu1_core="1")
    (tmp_path / "cpu2" / "thermal_throttle" / "core_throttle_count").mkdir(parents=True)
    before = read(None, str(tmp_path))
    write(tmp_path, cpu0_core="5")  # readable only now: nothing to compare with
    assert in_words(before, read(None, str(tmp_path))) == ""
    assert in_words(None, read(None, str(tmp_path / "nowhere"))) == ""


class Nvml:
    """Stands in for libnvidia-ml.so.1, which knows GPU-12ab by handle 7.

    ``reasons``: its clock event reasons.
    """

    reasons = 0
    busy = (0, 0)  # the GPU and its memory, in percent

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, found: Any) -> int:
        found._obj.value = {b"GPU-12ab": 7}[uuid]
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, found: Any) -> int:
        assert handle.value == 7
        found._obj.value = self.reasons
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, found: Any) -> int:
        assert handle.value == 7
        found._obj[:] = self.busy
        return 0


GPU = torch.device("cuda", 1)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    """NVML on a machine with two GPUs; the job trains on the second."""
    library, uuids = Nvml(), {GPU: "12ab"}
    monkeypatch.setattr(ctypes, "CDLL", lambda name: {"libnvidia-ml.so.1": library}[name])
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuids[device])
    )
    yield library
    driver.library.cache_clear()
    driver.handle.cache_clear()


def test_reasons_of_the_device_are_put_in_words_and_idleness_is_none(
    nvml: Nvml, tmp_path: Path
) -> None:
    nvml.reasons = 0x01 | 0x02  # idle; clocks set by the user
    assert in_words(read(GPU, str(tmp_path)), read(GPU, str(tmp_path))) == ""
    nvml.reasons = 0x08 | 0x40
    held_down = "the GPU's clock was reduced by hardware slowdown and hardware thermal slowdown"
    assert in_words(Limits(), read(GPU, str(tmp_path))) == held_down
    assert read(None, str(tmp_path)).reasons == 0


def test_a_power_cap_is_told_and_disturbs_nothing(nvml: Nvml, tmp_path: Path) -> None:
    nvml.reasons = 0x04
    capped = read(GPU, str(tmp_path))
    assert (
        power_capped(capped, Limits())
        and power_capped(None, capped)
        and not power_capped(None, Limits())
    )
    assert in_words(capped, capped) == ""


def test_the_gpus_own_share_is_read_and_not_its_memorys(nvml: Nvml) -> None:
    nvml.busy = 40, 7
    assert driver.busy_share(GPU) == 0.4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_without_a_driver_nothing_is_told(tmp_path: Path) -> None:
    assert driver.busy_share(GPU) == 0.0
    assert read(GPU, str(tmp_path)) == Limits() == read(GPU, str(tmp_path))
