"""The knobs of DistributedDataParallel: for which jobs they are offered, and that they reach the
module whoever builds it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from machines import CPU, DDP, DDP_JOB, JOB, UNUSED_JOB, job

from autotune_spaces.base import NotApplicable
from autotune_spaces.knobs import create, get

KNOBS = ("ddp_bucket_cap_mb", "gradient_as_bucket_view", "static_graph")


def ddp(**changes: Any) -> Any:
    return job(DDP_JOB, ddp=(dataclasses.replace(DDP, **changes),))


def reason(knob: str, facts: Any) -> str:
    with pytest.raises(NotApplicable) as caught:
        get(knob).domain(CPU, facts)
    return str(caught.value)


@pytest.mark.parametrize("knob", KNOBS)
def test_jobs_without_it_are_told_what_they_have_instead(knob: str) -> None:
    assert "one process" in reason(knob, JOB)
    assert "2 processes, but not with DistributedDataParallel" in reason(
        knob, job(JOB, world_size=2)
    )
    assert "FSDP" in reason(knob, job(JOB, world_size=2, sharded=True))


@pytest.mark.parametrize("knob", KNOBS)
def test_modules_built_with_unlike_arguments_are_left_as_they_are(knob: str) -> None:
    unlike = job(
        DDP_JOB, ddp=(DDP, dataclasses.replace(DDP, site="train.py:12", bucket_cap_mb=5.0))
    )
    assert "train.py:9, train.py:12" in reason(knob, unlike)


@pytest.mark.parametrize(
    ("gradients_mib", "sizes"),
    [
        (3.0, ("unset", 1, 5)),
        (30.0, ("unset", 1, 5, 10, 50)),
        (2000.0, ("unset", 1, 5, 10, 50, 100, 200, 400)),
    ],
)
def test_bucket_sizes_end_where_one_bucket_holds_all_gradients(
    gradients_mib: float, sizes: tuple[Any, ...]
) -> None:
    assert get("ddp_bucket_cap_mb").domain(CPU, ddp(gradients_mib=gradients_mib)).values == sizes


def test_the_jobs_own_bucket_size_is_the_baseline() -> None:
    domain = get("ddp_bucket_cap_mb").domain(CPU, ddp(bucket_cap_mb=80.0))
    assert domain.default == 80 and type(domain.default) is int and "unset" in domain.values
    assert "first bucket" in reason("ddp_bucket_cap_mb", ddp(gradients_mib=0.4))
    assert "bucket_cap_mb_list" in reason("ddp_bucket_cap_mb", ddp(own_buckets=True))


def test_what_the_job_has_set_itself_is_left_alone() -> None:
    assert "train.py:9" in reason("gradient_as_bucket_view", ddp(gradient_as_bucket_view=True))
    assert "train.py:9" in reason(
        "static_graph", ddp(static_graph=True, find_unused_parameters=True)
    )


def test_a_static_graph_is_offered_only_where_it_saves_something_and_nothing_speaks_against_it() -> (
    None
):
    assert get("static_graph").domain(CPU, UNUSED_JOB).values == (False, True)
    assert "no search" in reason("static_graph", DDP_JOB)
    assert "differ from iteration to iteration" in reason(
        "static_graph", ddp(find_unused_parameters=True, seen_static=False)
    )
    assert "differ" in str(
        pytest.raises(
            NotApplicable,
            create("static_graph", values=[True]).domain,
            CPU,
            ddp(find_unused_parameters=True, seen_static=False),
        ).value
    )


BUILT = """
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from autotune_spaces.knobs import at_import
from autotune_spaces.knobs import get
plain = nn.parallel.DistributedDataParallel.__init__
at_import(torch, os.environ); at_import(torch, os.environ)
import inspect
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
DDP = nn.parallel.DistributedDataParallel
class Mine(DDP):
    def __init__(self, module):
        super().__init__(module, None, None, 0, bucket_cap_mb=3, static_graph=False)
class Job: torch, device = torch, "cpu"
rows = []
for build in (lambda: DDP(nn.Linear(8, 8)), lambda: DDP(nn.Linear(8, 8), None, None, 0, True), lambda: Mine(nn.Linear(8, 8))):
    built = build()
    Job.replicas = [built]
    for _ in range(3):
        built(torch.ones(2, 8)).sum().backward()
    effects = {n: get(n).effect(Job, v) for n, v in (("ddp_bucket_cap_mb", 50), ("gradient_as_bucket_view", True), ("static_graph", True))}
    grad = built.module.weight.grad
    rows.append([built.bucket_bytes_cap, built.gradient_as_bucket_view, built.static_graph, grad._is_view(), effects])
print(json.dumps({"rows": rows, "signature": str(inspect.signature(DDP.__init__)) == str(inspect.signature(plain))}))
try:
    DDP(nn.Linear(8, 8), no_such_argument=1)
except TypeError as error:
    print(error)
"""


@pytest.mark.slow
def test_arguments_take_the_place_of_those_of_any_caller(tmp_path: Any) -> None:
    chosen = {"ddp_bucket_cap_mb": 50, "gradient_as_bucket_view": True, "static_graph": True}
    variables = {
        name: text
        for knob, value in chosen.items()
        for name, text in get(knob).environment(value).items()
    }
    environ = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", BUILT, str(tmp_path / "store")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told, wrong = done.stdout.splitlines()
    found = json.loads(told)
    nothing = dict.fromkeys(chosen)
    assert found["rows"] == [[50 * 2**20, True, True, True, nothing]] * 3
    assert found["signature"]
    assert "no_such_argument" in wrong


@pytest.mark.slow
def test_unset_is_torchs_own_size(tmp_path: Any) -> None:
    variables = get("ddp_bucket_cap_mb").environment("unset")
    code = BUILT.replace('("ddp_bucket_cap_mb", 50)', '("ddp_bucket_cap_mb", "unset")')
    environ = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    rows = json.loads(done.stdout.splitlines()[0])["rows"]
    assert [row[0] for row in rows] == [25 * 2**20] * 3
    for *_, effects in rows:
        assert effects["ddp_bucket_cap_mb"] is None
        assert "built with False" in effects["gradient_as_bucket_view"]


def shares(*samples: int, **loader: Any) -> Any:
    facts = dataclasses.replace(JOB.loader, rank_samples=samples, **loader)
    return job(DDP_JOB, loader=facts)


def test_a_batch_size_at_which_ranks_have_unlike_numbers_of_batches_is_left_out() -> None:
    knob = create("batch_size", values=[25, 33, 50])
    assert knob.domain(CPU, shares(100, 99, batch_size=32)).values == (25, 32, 50)
    assert "some ranks have 3 batches per epoch and others 4" in str(
        knob.unusable(33, CPU, shares(100, 99, batch_size=32))
    )
    assert knob.domain(CPU, shares(100, 100, batch_size=32)).values == (25, 32, 33, 50)
    # the job already has unequal ranks
    assert knob.domain(CPU, shares(100, 99, batch_size=33)).values == (25, 33, 50)
    assert 33 in knob.domain(CPU, shares(100, 99, batch_size=32, drop_last=True)).values


def test_no_batch_is_larger_than_the_smallest_share() -> None:
    sizes = get("batch_size").domain(CPU, shares(4000, 140, batch_size=32, samples=8000)).values
    assert max(sizes) == 128
