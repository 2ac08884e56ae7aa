"""NCCL's variables: for which jobs they are offered, and that the job has what was requested."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from machines import CPU, CUDA, CUDA_JOB, DDP_JOB, NCCL_JOB, job, machine

from autotune_spaces.base import NotApplicable
from autotune_spaces.knobs import create, get

NODE = machine(CUDA, device_count=8, nccl_version=(2, 28, 9))


def values(where: Any = NODE, what: Any = NCCL_JOB, asked: Any = None) -> tuple[Any, ...]:
    return create("nccl", None, asked).domain(where, what).values


def reason(where: Any = NODE, what: Any = NCCL_JOB, asked: Any = None) -> str:
    with pytest.raises(NotApplicable) as caught:
        values(where, what, asked)
    return str(caught.value)


def test_only_jobs_whose_ranks_talk_through_nccl_have_it() -> None:
    assert values() == ("default", "ring", "ring-simple", "no-nvls")
    assert "trains on cpu" in reason(CPU, DDP_JOB)
    assert "one process" in reason(what=CUDA_JOB)
    assert "(cuda:gloo)" in reason(what=job(NCCL_JOB, backend="cuda:gloo"))


def test_what_the_job_sets_stays() -> None:
    own = job(NCCL_JOB, own_settings={"NCCL_PROTO": "LL128"})
    assert reason(what=own) == reason(what=own, asked=["ring"])
    assert "NCCL_PROTO=LL128 itself" in reason(what=own)


def test_trees_are_for_several_machines_and_a_nccl_that_knows_them() -> None:
    """An older NCCL cannot choose an algorithm for a single collective, and broadcasts have no
    tree.
    """
    several = job(NCCL_JOB, world_size=16)
    assert "tree" in values(what=several)
    one_gpu_each = machine(NODE, device_count=1)
    for ranks, tried in ((8, True), (16, False)):
        told = job(several, local_world_size=ranks)
        assert ("tree" in values(one_gpu_each, told)) is tried
    assert "tree" not in values(machine(NODE, nccl_version=(2, 21, 5)), several)
    assert "2.21.5" in reason(machine(NODE, nccl_version=(2, 21, 5)), several, ["tree"])
    assert values(asked=["tree"]) == ("default", "tree")


def test_nvls_is_of_hopper() -> None:
    ampere = machine(NODE, compute_capability=(8, 0), device_name="NVIDIA A100")
    assert values(ampere) == ("default", "ring", "ring-simple")
    assert "NVIDIA A100" in reason(ampere, asked=["no-nvls"])


@pytest.mark.parametrize("value", ["ring", "ring-simple", "no-nvls", "tree"])
def test_it_is_read_back_where_the_job_runs(value: str) -> None:
    code = f"from autotune_spaces.knobs import get; print(get('nccl').effect(None, {value!r}))"

    def told(**variables: str) -> str:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    settings = get("nccl").environment(value)
    assert told(**settings) == "None"
    assert "is unset in the job" in told()  # a launcher that drops variables
    assert "is other in the job" in told(**dict.fromkeys(settings, "other"))
