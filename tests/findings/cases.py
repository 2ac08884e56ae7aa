"""Constructed cases for the rules: a profiled side, built from single figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.explain.records import Operator, Side
from autotune.findings import Case
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine, OptimizerFacts
from autotune_trials.protocol.evidence import Evidence, Place

STEPS = 60
HERE = Place("/home/me/train.py", 41, "<module>", "loader = DataLoader(data, batch_size=64)")


def place_data(line: int = 41) -> dict[str, Any]:
    """A place in plain data, as the agent sends it."""
    return {
        "file": "/home/me/train.py",
        "line": line,
        "function": "main",
        "code": f"line {line}",
        "own": True,
    }


def machine(**changes: Any) -> Machine:
    facts: dict[str, Any] = {
        "cores": 8,
        "memory_gib": 32.0,
        "shm_gib": 8.0,
        "device": "cpu",
        "device_name": "a CPU",
        "torch_version": "2.13.0",
        "python_version": "3.11.2",
    }
    return Machine(**{**facts, **changes})


def gpu_machine(**changes: Any) -> Machine:
    facts = {
        "device": "cuda",
        "device_name": "a GPU",
        "device_count": 1,
        "device_memory_gib": 80.0,
        "compute_capability": (9, 0),
    }
    return machine(**{**facts, **changes})


def job(**changes: Any) -> JobFacts:
    loader = LoaderFacts(
        dataset="Pictures",
        site="train.py:41",
        key="train.py:41#0",
        batch_size=64,
        num_workers=0,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory=False,
        drop_last=False,
        iterable=False,
        length=100,
        samples=6400,
        custom_batch_sampler=False,
    )
    facts: dict[str, Any] = {
        "pid": 1,
        "device": "cpu",
        "loader": loader,
        "models": (),
        "optimizers": (
            OptimizerFacts("AdamW", "default", ("for-loop", "foreach", "fused"), (1e-3,), 1000),
        ),
    }
    return JobFacts(**{**facts, **changes})


def phases(
    data: float = 0.001,
    forward: float = 0.03,
    backward: float = 0.06,
    optimizer: float = 0.008,
    other: float = 0.001,
    to_device: float = 0.0,
) -> dict[str, tuple[float, ...]]:
    """Watched times of STEPS equal iterations; by default healthy ones of 100 ms."""
    each = {
        "data": data,
        "to_device": to_device,
        "forward": forward,
        "backward": backward,
        "optimizer": optimizer,
        "other": other,
    }
    return {phase: (seconds,) * STEPS for phase, seconds in each.items()}


def evidence(times: Mapping[str, tuple[float, ...]] | None = None, **changes: Any) -> Evidence:
    times = times if times is not None else phases()
    facts: dict[str, Any] = {
        "times_s": tuple(map(sum, zip(*times.values(), strict=True))),
        "phase_times_s": times,
        "loader": {"place": place_data(), "num_workers": 0},
        "optimizers": ({"class": "SGD", "tensors": 2, "place": None},),
    }
    return Evidence(**{**facts, **changes})


def case(
    name: str = "baseline", seen: Evidence | None = None, side: Side | None = None, **changes: Any
) -> Case:
    facts: dict[str, Any] = {"machine": machine(), "job": job(), "defaults": {"num_workers": 0}}
    return Case(
        name=name,
        side=side or Side(profiled_steps=12),
        evidence=seen or evidence(),
        **{**facts, **changes},
    )


def gpu_case(
    name: str = "baseline", seen: Evidence | None = None, side: Side | None = None, **changes: Any
) -> Case:
    return case(
        name, seen, side, **{"machine": gpu_machine(), "job": job(device="cuda"), **changes}
    )


def operator(
    name: str, self_time_s: float, share: float = 0.1, calls: int = 12, **changes: Any
) -> Operator:
    mean_s = self_time_s / calls
    facts: dict[str, Any] = {
        "shapes": "",
        "dtypes": "float",
        "total_time_s": self_time_s,
        "mean_s": mean_s,
        "min_s": mean_s,
        "max_s": mean_s,
    }
    return Operator(
        name=name, calls=calls, self_time_s=self_time_s, share=share, **{**facts, **changes}
    )
