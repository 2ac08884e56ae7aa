"""Clock and thermal limits, read from a copy of the kernel's files and from a stand-in for NVML."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from autotune_trials.measure import throttling
from autotune_trials.measure.throttling import Limits, in_words, read


def write(root: Path, **counts: str) -> None:
    """``cpu0_core="3"`` becomes cpu0/thermal_throttle/core_throttle_count."""
    for name, count in counts.items():
        cpu, kind = name.split("_")
        folder = root / cpu / "thermal_throttle"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{kind}_throttle_count").write_text(count + "\n")


def test_what_grew_during_the_window_is_told_once_for_all_cores(tmp_path: Path) -> None:
    write(tmp_path, cpu0_core="7", cpu0_package="40", cpu1_core="0", cpu1_package="40")
    before = read(False, str(tmp_path))
    assert in_words(before, read(False, str(tmp_path))) == ""
    write(tmp_path, cpu0_core="8", cpu0_package="43", cpu1_package="43")
    assert in_words(before, read(False, str(tmp_path))) == "the CPU was throttled for heat 3 times"


def test_what_cannot_be_read_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path, cpu0_core="many", cpu1_core="1")
    (tmp_path / "cpu2" / "thermal_throttle" / "core_throttle_count").mkdir(parents=True)
    before = read(False, str(tmp_path))
    write(tmp_path, cpu0_core="5")  # readable from now on: nothing to compare it with
    assert in_words(before, read(False, str(tmp_path))) == ""
    assert in_words(None, read(False, str(tmp_path / "nowhere"))) == ""


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """pynvml and a torch with one GPU; ``reasons`` is what NVML gives."""
    state = SimpleNamespace(reasons=0)
    module = ModuleType("pynvml")
    module.nvmlInit = lambda: None  # type: ignore[attr-defined]
    module.nvmlDeviceGetHandleByUUID = lambda uuid: {"GPU-12ab": "handle"}[uuid]  # type: ignore[attr-defined]
    module.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: {"handle": state.reasons}[handle]  # type: ignore[attr-defined]
    cuda = SimpleNamespace(current_device=lambda: 0, get_device_properties=lambda index: SimpleNamespace(uuid="12ab"))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(throttling, "_known", [])
    return state


def test_reasons_of_the_device_are_put_in_words_and_idleness_is_none(nvml: SimpleNamespace, tmp_path: Path) -> None:
    nvml.reasons = 0x01 | 0x02  # idle, clocks set by the user
    assert in_words(read(True, str(tmp_path)), read(True, str(tmp_path))) == ""
    nvml.reasons = 0x04 | 0x40
    assert in_words(Limits(), read(True, str(tmp_path))) == "the GPU's clock was held down by its power cap and its temperature (hardware)"
    assert read(False, str(tmp_path)).reasons == 0


def test_without_nvml_nothing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(throttling, "_known", [])
    assert read(True, str(tmp_path)) == Limits() == read(True, str(tmp_path))
