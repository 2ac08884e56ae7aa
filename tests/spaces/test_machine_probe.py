""":func:`probe` describes this machine correctly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from autotune_spaces import machine
from autotune_spaces.codec import decode, encode
from autotune_spaces.facts import Machine
from autotune_spaces.machine import cores, probe


def test_this_machine() -> None:
    found = probe()
    assert 1 <= found.cores <= len(os.sched_getaffinity(0))
    assert found.memory_gib > 0.1
    assert found.torch_version == str(torch.__version__)
    assert found.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert found.shm_gib >= 0
    if found.cxx_compiler:
        assert os.access(found.cxx_compiler, os.X_OK)
    assert decode(Machine, encode(found)) == found


def test_the_gpu_is_the_one_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a machine with two GPUs, of which the first is the current one."""
    cards: dict[object, SimpleNamespace] = {
        0: SimpleNamespace(name="small", total_memory=2**30, major=8, minor=0),
        1: SimpleNamespace(name="large", total_memory=80 * 2**30, major=9, minor=0),
    }
    for name, answer in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": cards.__getitem__,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    assert probe().device_name == "small"
    assert probe(start_cuda=False).device == "cpu", "a CPU job does not start CUDA"
    found = probe(torch.device("cuda", 1))
    assert (found.device_name, found.device_memory_gib, found.compute_capability) == (
        "large",
        80.0,
        (9, 0),
    )
    assert found.device_index == 1


def test_a_cudnn_that_does_not_suit_every_gpu_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises where it is asked for the version, e.g. beside a GPU older than Turing."""

    def unsuitable() -> int:
        raise RuntimeError("cuDNN version is not compatible with devices with SM < 7.5")

    card = SimpleNamespace(name="large", total_memory=2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.backends.cudnn, "version", unsuitable)
    assert probe(torch.device("cuda", 0)).cudnn_version == 0


def test_affinity_counts() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}}); from autotune_spaces.machine import"
        " probe; print(probe().cores)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.parametrize(("name", "variable"), [("cxx_compiler", "CXX"), ("c_compiler", "CC")])
def test_compiler_is_the_one_torch_would_take(name: str, variable: str, tmp_path: Path) -> None:
    code = f"from autotune_spaces.machine import {name}; print({name}())"
    env = {**os.environ, variable: str(tmp_path / "no-such-compiler")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "", done.stderr


def test_cores_do_not_count_less_where_openmp_binds_the_training_thread(tmp_path: Path) -> None:
    session = tmp_path / "session.json"
    session.write_text(json.dumps({"mode": "launch", "directory": str(tmp_path)}))
    trials = Path(__file__).parents[2] / "trials"
    inject = trials / "autotune_trials" / "agent" / "bootstrap" / "inject"
    code = (
        "import torch; torch.randn(1 << 20).sin(); from autotune_spaces.machine import cores;"
        " print(cores())"
    )
    env = {**os.environ, "PYTHONPATH": str(inject), "AUTOTUNE_SESSION": str(session)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "OMP_PROC_BIND": "true"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == str(cores()), done.stderr


def test_a_limit_of_cgroup_version_1_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memory" / "docker" / "abc"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(4 << 30))
    (folder / "memory.usage_in_bytes").write_text(str(3 << 30))
    (folder / "memory.stat").write_text(
        "active_file 1073741824\ninactive_file 0\n"
        "total_active_file 1073741824\ntotal_inactive_file 0\n"
    )
    texts = {
        "/proc/self/cgroup": "9:memory:/docker/abc\n0::/\n",
        "/proc/meminfo": "MemTotal: 268435456 kB\nMemAvailable: 209715200 kB\n",
    }
    read = machine._read
    monkeypatch.setattr(machine, "_read", lambda p: texts.get(str(p)) or read(p))
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.available_gib() == pytest.approx(2.0)
