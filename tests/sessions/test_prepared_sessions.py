"""Process knobs in a real job with the real agent: in force from its start, and verified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from session_paths import PYTHONPATH

from autotune.executors.base import FixedRun, SessionFailed
from autotune.executors.local import LocalExecutor
from autotune.job.spec import JobSpec, SideEffects
from autotune_spaces.base import NotApplicable, SearchSpace
from autotune_spaces.knobs import create

# Writes what it sees at every step.
JOB = """
import gc, json, os, sys, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.ones(8), torch.tensor(sorted(os.sched_getaffinity(0)))

if "--own-cores" in sys.argv:
    os.sched_setaffinity(0, range(os.cpu_count()))
if "--own-gc" in sys.argv:
    gc.disable()
held = [[i] for i in range(50_000)]
loader = DataLoader(Numbers(), batch_size=8, num_workers=1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(10_000):
    for x, cores in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        with open("seen.tmp", "w") as file:
            json.dump({
                "cores": sorted(os.sched_getaffinity(0)), "worker_cores": cores[0].tolist(),
                "threads": torch.get_num_threads(), "gc": gc.get_threshold(), "frozen": gc.get_freeze_count(),
                "maps": [l.split()[-1] for l in open("/proc/self/maps") if "malloc" in l], "preload": os.environ.get("LD_PRELOAD", ""),
            }, file)
        os.rename("seen.tmp", "seen.json")
"""
STAND_IN = "#include <stddef.h>\nint autotune_stand_in(void) { return 1; }\n"


def jemalloc(folder: Path) -> Path:
    """A folder with libjemalloc.so.2: a real one if some package contains it, else a library
    without an allocator that only shows that it was loaded.
    """
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


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., LocalExecutor]]:
    (tmp_path / "job.py").write_text(JOB)
    opened: list[LocalExecutor] = []

    def make(
        *words: str, command: tuple[str, ...] = ("env", "-u", "OMP_NUM_THREADS"), **env: str
    ) -> LocalExecutor:
        knobs = (create("gc"), create("cpu_affinity"), create("malloc"))
        spec = JobSpec(
            "job",
            (*command, sys.executable, "job.py", *words),
            tmp_path,
            {"PYTHONPATH": PYTHONPATH, **env},
            SearchSpace("test", knobs),
            hang_timeout_s=60.0,
            startup_timeout_s=120.0,
            side_effects=SideEffects(keep=("seen.json",)),
        )
        executor = LocalExecutor(spec, tmp_path / "run")
        opened.append(executor)
        return executor

    yield make
    for executor in opened:
        executor.close()


def seen(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "seen.json").read_text())


def test_all_of_them_are_in_force_in_the_job(make, tmp_path: Path) -> None:
    one = min(os.sched_getaffinity(0))
    executor = make(LD_LIBRARY_PATH=str(jemalloc(tmp_path / "lib")))
    config = {"gc": "freeze", "cpu_affinity": str(one), "malloc": "jemalloc"}
    record = executor.run_fixed(FixedRun(config, seed=0, steps=24))
    found = seen(tmp_path)
    assert dict(record.no_effect) == {}
    assert found["cores"] == [one]
    assert found["worker_cores"] == [one]
    assert found["threads"] == 1, "torch takes as many threads as it has cores"
    assert found["frozen"] > 50_000
    assert str(tmp_path / "lib" / "libjemalloc.so.2") in found["maps"]


def test_a_job_left_alone_is_left_alone(make, tmp_path: Path) -> None:
    import gc

    make().run_fixed(FixedRun({}, seed=0, steps=8))
    found = seen(tmp_path)
    assert found["cores"] == sorted(os.sched_getaffinity(0))
    assert (found["preload"], found["frozen"]) == (os.environ.get("LD_PRELOAD", ""), 0)
    assert found["gc"] == list(gc.get_threshold())


@pytest.mark.slow
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
    assert "it sets its CPU affinity itself" in record.no_effect["cpu_affinity"]
    assert "drops LD_PRELOAD" in record.no_effect["malloc"]


@pytest.mark.slow
def test_the_jobs_own_settings_are_told_and_gc_is_withdrawn(make) -> None:
    with make("--own-gc").open_live() as session:
        facts, where = session.hello.job, session.hello.machine
        assert facts.own_settings["gc"] == "gc.disable()"
        assert facts.own_settings["cpus"]
        with pytest.raises(NotApplicable, match=r"gc\.disable\(\)"):
            create("gc").domain(where, facts)
        assert 0 < where.available_gib <= where.memory_gib


def test_what_cannot_be_set_here_fails_the_trial_with_the_reason(make, tmp_path: Path) -> None:
    if "tcmalloc" in create("malloc").survey(_start(tmp_path)):
        pytest.skip("tcmalloc is installed here")
    executor = make()
    with pytest.raises(SessionFailed, match="malloc=tcmalloc cannot be set here: libtcmalloc was"):
        executor.run_fixed(FixedRun({"malloc": "tcmalloc"}, seed=0, steps=8))
