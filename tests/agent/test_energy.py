"""Energy counters, as exposed by the kernel."""

from __future__ import annotations

import math
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from autotune.executors.base import FixedRun
from autotune.executors.local import LocalExecutor
from autotune.job.spec import JobSpec
from autotune_spaces.base import SearchSpace
from autotune_trials.agent.core import window_recorder as windows_of
from autotune_trials.agent.core.iteration import Iteration
from autotune_trials.agent.dataloader.reader_meter import Spent
from autotune_trials.measure import energy
from autotune_trials.measure.clock import NAMES
from autotune_trials.measure.energy import POWERCAP_VARIABLE, EnergyMeter
from autotune_trials.protocol.messages import Block

PROGRAMS = Path(__file__).parents[1] / "programs"
WATTS = 40.0
RANGE_UJ = 1_000_000_000


class Counters:
    """A copy of /sys/class/powercap."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add("intel-rapl:0", "package-0", 5_000_000)
        self.add("intel-rapl:0:0", "core", 1)
        self.add("intel-rapl:0:1", "dram", 7_000_000)
        self.add("intel-rapl-mmio:0", "package-0", 1)  # a duplicate of the package

    def add(self, folder: str, name: str, microjoules: int) -> None:
        (self.root / folder).mkdir(parents=True)
        (self.root / folder / "name").write_text(name + "\n")
        (self.root / folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        self.set(folder, microjoules)

    def set(self, folder: str, microjoules: int) -> None:
        (self.root / folder / "energy_uj").write_text(f"{microjoules}\n")


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counters:
    monkeypatch.setenv(POWERCAP_VARIABLE, str(tmp_path))
    monkeypatch.setattr(energy, "EVERY_S", 0.0)
    return Counters(tmp_path)


def test_packages_and_memory_are_added_up(counters: Counters) -> None:
    meter = EnergyMeter(None)
    assert [counter.name for counter in meter.counters] == ["package-0", "dram"]
    counters.set("intel-rapl:0", 6_000_000)
    counters.set("intel-rapl:0:1", 7_500_000)
    counters.set("intel-rapl:0:0", 900_000_000)
    assert meter.iteration(1e6) == [pytest.approx(1.5)]
    assert meter.iteration(1e6) == [0.0]


@pytest.mark.parametrize(("local_rank", "rank"), [("0", 2), ("1", 3), ("", 0), ("", 1)])
def test_of_several_ranks_with_gpus_the_first_counts_the_packages(
    local_rank: str, rank: int, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that a program spawns itself have no LOCAL_RANK."""
    monkeypatch.setattr(energy, "_gpu", lambda device: [energy.Counter("GPU", lambda: 0.0)])
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    meter = EnergyMeter(torch.device("cuda"), rank)
    packages = ["package-0", "dram"] if int(local_rank or rank) == 0 else []
    assert [counter.name for counter in meter.counters] == [*packages, "GPU"]


def test_without_the_gpus_counter_the_packages_alone_do_not_count(
    counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as on a MIG slice: the energy of a job would be that of its CPU."""
    monkeypatch.setattr(energy, "_gpu", lambda device: [])
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert EnergyMeter(torch.device("cuda")).counters == []


def test_a_counter_that_begins_again(counters: Counters) -> None:
    counters.set("intel-rapl:0", RANGE_UJ - 1_000_000)
    meter = EnergyMeter(None)
    counters.set("intel-rapl:0", 2_000_000)
    assert meter.iteration(1e6) == [pytest.approx(3.0)]


def test_what_is_read_is_shared_out(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "EVERY_S", 3600.0)
    meter = EnergyMeter(None)
    meter.restart()
    assert [meter.iteration(1e6) for _ in range(4)] == [[]] * 4
    counters.set("intel-rapl:0", 7_000_000)
    assert meter.rest() == [pytest.approx(0.5)] * 4
    assert meter.rest() == []


def test_what_is_no_training_takes_its_share(
    counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(energy, "perf_counter", lambda: now_s)
    monkeypatch.setattr(energy, "EVERY_S", 3600.0)
    meter = EnergyMeter(None)
    assert meter.iteration(1.0) == []
    counters.set("intel-rapl:0", 15_000_000)
    now_s = 10.0  # 2 s of training, 8 s of evaluation
    assert meter.iteration(1.0, read=True) == [pytest.approx(1.0)] * 2


def test_counters_that_may_not_be_read_are_none(counters: Counters) -> None:
    for folder in counters.root.iterdir():
        (folder / "energy_uj").unlink()
        (folder / "energy_uj").mkdir()
    assert EnergyMeter(None).counters == []


def test_a_counter_that_is_lost_leaves_none(counters: Counters) -> None:
    """The remaining counter alone would show less energy than before."""
    meter = EnergyMeter(None)
    counters.set("intel-rapl:0:1", 9_000_000)
    (counters.root / "intel-rapl:0" / "energy_uj").unlink()
    assert sum(meter.iteration(1.0, read=True)) == 0.0 and meter.counters == []


def test_without_counters_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POWERCAP_VARIABLE, str(tmp_path / "nowhere"))
    meter = EnergyMeter(None)
    assert meter.counters == [] and sum(meter.iteration(1.0, read=True)) == 0.0


class Gpu:
    """A GPU whose energy and clock are made up, with a window on it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.busy_until_s = self.joules = 0.0
        monkeypatch.setenv(POWERCAP_VARIABLE, str(tmp_path / "nowhere"))
        monkeypatch.setattr(energy, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(energy, "_gpu", lambda _: [energy.Counter("GPU", lambda: self.joules)])
        monkeypatch.setattr(windows_of, "forget_peak", lambda *_: None)
        monkeypatch.setattr(windows_of, "peak_gib", lambda *_: 0.0)
        device = SimpleNamespace(type="cuda", index=0)
        source = SimpleNamespace(
            reader_spent=Spent,
            batches_drawn=lambda: (1, 0),
            settings_in_force=lambda: None,
            epoch_iterations=lambda: None,
        )
        self.recorder = windows_of.WindowRecorder(
            torch, device, source, self.finish, keep_interrupted=True, energy=EnergyMeter(device)
        )

    def pass_time(self, seconds: float, watts: float = 300.0) -> None:
        self.now_s += seconds
        self.joules += watts * seconds

    def finish(self) -> None:
        self.pass_time(max(0.0, self.busy_until_s - self.now_s))

    def iteration(self, seconds: float) -> None:
        iteration = Iteration()
        iteration.spent = [0.0, 0.0, seconds / 3, seconds / 1.5, *[0.0] * (len(NAMES) - 4)]
        self.recorder.add(iteration)


def test_on_a_gpu_energy_is_shared_by_the_devices_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU queues an iteration in 2 ms, the device works on it for 30, at 300 W."""
    gpu = Gpu(tmp_path, monkeypatch)
    gpu.busy_until_s = 0.5  # with work from before the window
    gpu.recorder.open()
    for number in range(8):
        gpu.pass_time(0.002)
        gpu.busy_until_s = max(gpu.busy_until_s, gpu.now_s) + 0.03
        gpu.iteration(0.03)
        if number == 3:  # the job waits for the tuner
            gpu.recorder.stand_still()
            gpu.pass_time(60.0)
            gpu.busy_until_s = gpu.now_s
            gpu.recorder.go_on()
    assert gpu.recorder.close().joules == pytest.approx([9.0] * 8, rel=0.02)


def test_a_gpu_that_idles_while_the_job_compiles_saves_its_later_iterations_no_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(tmp_path, monkeypatch)
    gpu.recorder.open()
    gpu.pass_time(20.0, watts=60.0)  # compiling for the second batch's shape
    gpu.iteration(20.0)
    for _ in range(32):
        gpu.pass_time(0.125)
        gpu.iteration(0.125)
    joules = gpu.recorder.close().joules
    assert joules == pytest.approx([20.0 * 60.0, *[0.125 * 300.0] * 32])


@contextmanager
def taking(counters: Counters, watts: float) -> Iterator[None]:
    """The machine uses this power, whatever it does."""
    over, began = threading.Event(), time.monotonic()

    def count() -> None:
        while not over.wait(0.002):
            # atomic, as in the kernel's files
            new = counters.root / "new"
            new.write_text(f"{int(watts * 1e6 * (time.monotonic() - began))}\n")
            new.rename(counters.root / "intel-rapl:0" / "energy_uj")

    counters.set("intel-rapl:0", 0)
    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
def test_windows_of_a_real_job_hold_what_it_took(
    counters: Counters, tmp_path: Path, wanted: bool
) -> None:
    folder = tmp_path / "job"
    shutil.copytree(PROGRAMS, folder)
    spec = JobSpec(
        "job",
        (sys.executable, "validation.py"),
        folder,
        {"OMP_NUM_THREADS": "1", POWERCAP_VARIABLE: str(counters.root)},
        SearchSpace("none", ()),
        objective="energy" if wanted else "throughput",
    )
    with taking(counters, WATTS), closing(LocalExecutor(spec, tmp_path / "run")) as executor:
        windows = [executor.run_fixed(FixedRun({}, seed=0, steps=400)).window]
        with executor.open_live() as live:
            (report,) = live.measure([Block("b", (), 200)])
        windows.append(report.window)
    for window in windows:
        if not wanted:
            assert window.joules == () and window.energy_counters == ()
            continue
        assert len(window.joules) == len(window.times_s)
        assert window.energy_counters == ("package-0", "dram")
        assert math.fsum(window.joules) == pytest.approx(
            WATTS * math.fsum(window.times_s), rel=0.25
        )
