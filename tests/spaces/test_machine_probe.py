""":func:`probe` describes this machine correctly."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from autotune_spaces.codec import decode, encode
from autotune_spaces.facts import Machine
from autotune_spaces.machine import probe


def test_this_machine() -> None:
    machine = probe()
    assert 1 <= machine.cores <= len(os.sched_getaffinity(0))
    assert machine.memory_gib > 0.1
    assert machine.torch_version == str(torch.__version__)
    assert machine.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert machine.shm_gib >= 0
    if machine.cxx_compiler:
        assert os.access(machine.cxx_compiler, os.X_OK)
    assert decode(Machine, encode(machine)) == machine


def test_the_gpu_is_the_one_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a machine with two GPUs, of which the first is the current one."""
    cards: dict[object, SimpleNamespace] = {
        0: SimpleNamespace(name="small", total_memory=2**30, major=8, minor=0)
    }
    cards[torch.device("cuda", 1)] = SimpleNamespace(
        name="large", total_memory=80 * 2**30, major=9, minor=0
    )
    for name, answer in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": cards.__getitem__,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    assert probe().device_name == "small"
    found = probe(torch.device("cuda", 1))
    assert (found.device_name, found.device_memory_gib, found.compute_capability) == (
        "large",
        80.0,
        (9, 0),
    )


def test_affinity_counts() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}}); from autotune_spaces.machine import"
        " probe; print(probe().cores)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1", done.stderr


def test_compiler_is_the_one_torch_would_take(tmp_path) -> None:  # type: ignore[no-untyped-def]
    code = "from autotune_spaces.machine import cxx_compiler; print(cxx_compiler())"
    env = {**os.environ, "CXX": str(tmp_path / "no-such-compiler")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "", done.stderr
