"""Process knobs in a real job under the real agent: in force from its start, checked, shared
between sessions, and gone afterwards.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from session_paths import PYTHONPATH
from session_waits import wait_for

from autotune.executors.base import PREPARATION_S, FixedRun, SessionFailed
from autotune.executors.local import LocalExecutor
from autotune.job.spec import JobSpec, SearchSpace, SideEffects
from autotune_spaces.base import NotApplicable
from autotune_spaces.knobs import create
from autotune_spaces.machine import probe
from autotune_trials.supervisor import process_tags

pytestmark = pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to write to"
)

# Trains on a file, and writes down what it sees at its first and its last step.
JOB = """
import gc, json, os, sys, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __init__(self, path): self.path = path
    def __len__(self): return 64
    def __getitem__(self, i):
        with open(os.path.join(self.path, "numbers.bin"), "rb") as file:
            file.seek(32 * i)
            return torch.frombuffer(bytearray(file.read(32)), dtype=torch.float32), torch.tensor(sorted(os.sched_getaffinity(0)))

path = sys.argv[sys.argv.index("--data") + 1]
if "--own-cores" in sys.argv:
    os.sched_setaffinity(0, range(os.cpu_count()))
if "--own-gc" in sys.argv:
    gc.disable()
held = [[i] for i in range(50_000)]
loader = DataLoader(Numbers(path), batch_size=8, num_workers=1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(10_000):
    for x, cores in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        with open("seen.tmp", "w") as file:
            json.dump({
                "pid": os.getpid(), "path": path, "cores": sorted(os.sched_getaffinity(0)), "worker_cores": cores[0].tolist(),
                "threads": torch.get_num_threads(), "gc": gc.get_threshold(), "frozen": gc.get_freeze_count(),
                "maps": [l.split()[-1] for l in open("/proc/self/maps") if "malloc" in l], "preload": os.environ.get("LD_PRELOAD", ""),
            }, file)
        os.rename("seen.tmp", "seen.json")
"""
STAND_IN = "#include <stddef.h>\nint autotune_stand_in(void) { return 1; }\n"


def jemalloc(folder: Path) -> Path:
    """A folder with libjemalloc.so.2: a real one where some package has brought it, else a library
    that is no allocator at all and only proves that it arrives."""
    import importlib.util

    folder.mkdir()
    place = folder / "libjemalloc.so.2"
    found = create("malloc").survey(_start(folder)).get("jemalloc")
    ray = importlib.util.find_spec("ray")
    bundled = (
        Path(ray.submodule_search_locations[0], "core", "libjemalloc.so")
        if ray and ray.submodule_search_locations
        else Path("/none")
    )
    if found or bundled.exists():
        shutil.copy(found or bundled, place)
    elif shutil.which("gcc"):
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(place)],
            input=STAND_IN,
            text=True,
            check=True,
        )
    else:
        pytest.skip("no jemalloc here, and no gcc to make a stand-in")
    return folder


def _start(folder: Path):  # type: ignore[no-untyped-def]
    from autotune_spaces.base import Start

    return Start(("python",), dict(os.environ), str(folder))


said: list[str] = []  # by the executors of one test


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., LocalExecutor]]:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "train" / "numbers.bin").write_bytes(
        os.urandom(64 * 32).replace(b"\x7f", b"\x00").replace(b"\xff", b"\x00")
    )
    opened: list[LocalExecutor] = []
    said.clear()

    def make(
        *words: str, command: tuple[str, ...] = ("env", "-u", "OMP_NUM_THREADS"), **env: str
    ) -> LocalExecutor:
        knobs = (
            create("gc"),
            create("cpu_affinity"),
            create("malloc"),
            create("data_staging", {"path": "data/train"}),
        )
        spec = JobSpec(
            "job",
            (*command, sys.executable, "job.py", "--data", "data/train", *words),
            tmp_path,
            {"PYTHONPATH": PYTHONPATH, **env},
            SearchSpace("test", knobs),
            hang_timeout_s=60.0,
            startup_timeout_s=120.0,
            side_effects=SideEffects(keep=("seen.json",)),
        )
        executor = LocalExecutor(spec, tmp_path / "run", said.append)
        opened.append(executor)
        return executor

    yield make
    for executor in opened:
        executor.close()


def seen(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "seen.json").read_text())


def left_in_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("autotune-")}


def test_all_of_them_are_in_force_in_the_job(make, tmp_path: Path) -> None:
    before = left_in_memory()
    one = min(os.sched_getaffinity(0))
    executor = make(LD_LIBRARY_PATH=str(jemalloc(tmp_path / "lib")))
    config = {"gc": "freeze", "cpu_affinity": str(one), "malloc": "jemalloc", "data_staging": "shm"}
    record = executor.run_fixed(FixedRun(config, seed=0, steps=24))
    found = seen(tmp_path)
    assert dict(record.no_effect) == {}
    assert found["cores"] == [one]
    assert found["worker_cores"] == [one]
    assert found["threads"] == 1, "torch takes as many threads as it has cores"
    assert found["frozen"] > 50_000
    assert found["path"].startswith("/dev/shm/autotune-") and found["path"].endswith("/train")
    assert str(tmp_path / "lib" / "libjemalloc.so.2") in found["maps"]
    assert record.notes[PREPARATION_S] > 0
    assert said == ["staging 0.0 MiB of data to /dev/shm: data/train, 1 file"], (
        "before it is copied, and once"
    )
    assert len(left_in_memory() - before) == 1
    executor.close()
    assert left_in_memory() == before


def test_a_job_left_alone_is_left_alone(make, tmp_path: Path) -> None:
    import gc

    before = left_in_memory()
    record = make().run_fixed(FixedRun({}, seed=0, steps=8))
    found = seen(tmp_path)
    assert found["cores"] == sorted(os.sched_getaffinity(0))
    assert (found["path"], found["preload"], found["frozen"]) == (
        "data/train",
        os.environ.get("LD_PRELOAD", ""),
        0,
    )
    assert found["gc"] == list(gc.get_threshold())
    assert PREPARATION_S not in record.notes
    assert left_in_memory() == before


def test_what_the_job_undoes_is_said(make, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: there is no other set of cores to go to")
    one = str(min(os.sched_getaffinity(0)))
    executor = make(
        "--own-cores",
        command=("env", "-u", "LD_PRELOAD"),
        LD_LIBRARY_PATH=str(jemalloc(tmp_path / "lib")),
    )
    record = executor.run_fixed(
        FixedRun({"cpu_affinity": one, "malloc": "jemalloc"}, seed=0, steps=8)
    )
    assert "it chooses its cores itself" in record.no_effect["cpu_affinity"]
    assert "drops LD_PRELOAD" in record.no_effect["malloc"]


def test_the_jobs_own_settings_are_told_and_gc_is_withdrawn(make) -> None:
    with make("--own-gc").open_live({}) as session:
        facts, where = session.hello.job, session.hello.machine
        assert facts.own_settings["gc"] == "gc.disable()"
        assert facts.own_settings["cpus"]
        with pytest.raises(NotApplicable, match=r"gc\.disable\(\)"):
            create("gc").domain(where, facts)
        assert 0 < where.available_gib <= where.memory_gib


def test_one_copy_serves_all_sessions(make, tmp_path: Path) -> None:
    executor = make()
    config = {"data_staging": "shm"}
    argv, _ = executor._with_process_knobs(config)
    copy = Path(argv[argv.index("--data") + 1])
    inode = (copy / "numbers.bin").stat().st_ino
    first_s = executor._preparation.cost_s(executor._process_choices(config))
    assert executor._with_process_knobs(config)[0] == argv
    assert (copy / "numbers.bin").stat().st_ino == inode
    assert executor._preparation.cost_s(executor._process_choices(config)) >= first_s, (
        "what it costs where nothing is copied yet"
    )
    assert (copy / "numbers.bin").read_bytes() == (
        tmp_path / "data" / "train" / "numbers.bin"
    ).read_bytes()
    assert (copy.stat().st_mode & 0o77, copy.parents[1].stat().st_mode & 0o77) == (
        copy.stat().st_mode & 0o77,
        0,
    ), "only this user gets in"


def test_without_room_the_trial_fails_with_the_figures(
    make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune_spaces.knobs.data_staging.shm_gib", lambda: 1e-6)
    executor, before = make(), left_in_memory()
    with pytest.raises(
        SessionFailed,
        match=r"data_staging=shm cannot be prepared: data/train: .* /dev/shm has 0\.0 MiB free",
    ):
        executor.open_live({"data_staging": "shm"})
    executor.close()
    assert left_in_memory() == before


def test_the_survey_and_the_domain_agree(make) -> None:
    executor = make()
    surveys = executor.survey()
    assert surveys["data_staging"] == {"paths": ["data/train"], "bytes": 2048, "trouble": ""}
    from autotune_spaces.facts import JobFacts

    facts = JobFacts(1, "cpu", None, (), (), surveys=surveys)
    where = dataclasses.replace(probe(), shm_gib=1.0, available_gib=4.0)
    assert create("data_staging", {"path": "data/train"}).domain(where, facts).values == (
        "off",
        "shm",
    )


KILLED = """
import sys, time
from autotune_trials.session.knob_files import Preparation
folder = Preparation().folder()
open(folder + "/data", "w").close()
print(folder, flush=True)
time.sleep(99)
"""


def test_what_a_killed_tuner_left_goes_when_the_next_one_starts(make) -> None:
    tuner = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    assert tuner.stdout is not None
    folder = tuner.stdout.readline().strip()
    make()
    assert os.path.exists(folder + "/data"), "of a tuner that lives"
    tuner.send_signal(signal.SIGKILL)
    tuner.wait()
    tuner.stdout.close()
    make()
    wait_for(lambda: not os.path.exists(folder))


def test_the_mark_is_of_the_process_that_made_it() -> None:
    from autotune_trials.session.knob_files import Preparation

    with Preparation() as preparation:
        assert not preparation.used
        folder = preparation.folder()
        assert preparation.folder() == folder
        process_tags.sweep_stale(("/dev/shm",))
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)
