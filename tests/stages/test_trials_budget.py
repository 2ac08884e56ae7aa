"""Time and results decide how many configurations are tried, unless the user gives a number."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from replay import Loss
from replayed import Machine, job, run, table


@pytest.mark.parametrize("limit", [3, None])
def test_the_number_of_trials_ends_a_search_only_where_it_is_given(
    tmp_path: Path, limit: int | None
) -> None:
    spec = job(
        tmp_path,
        "{intra_op_threads: [1, 2, 3], optimizer_impl: [foreach, fused]}",
        f"budget: {{trials: {limit or 'null'}}}\n",
    )
    assert spec.budget.trials == limit and spec.budget.tried(100_000) is (limit is not None)
    speeds = {
        "intra_op_threads": {"1": 0.95, "2": 0.9, "3": 0.85},
        "optimizer_impl": {"foreach": 0.95, "fused": 0.9},
    }
    result = run(tmp_path, Machine(table(Loss(), factors=speeds)), spec)
    assert len(result.trials) == 3 if limit else len(result.trials) > 3


@pytest.mark.parametrize("search", ["model", "tpe"])
def test_a_given_number_leaves_some_for_fresh_processes(tmp_path: Path, search: str) -> None:
    spec = job(
        tmp_path,
        "{intra_op_threads: [1, 2, 3], optimizer_impl: [foreach, fused], malloc: [jemalloc]}",
        f"budget: {{trials: 4}}\nsearch: {search}\n",
    )
    planted = table(
        Loss(),
        factors={"malloc": {"jemalloc": 0.8}},
        job={"surveys": {"malloc": {"jemalloc": "/usr/lib/libjemalloc.so.2"}}},
    )
    result = run(tmp_path, Machine(planted), spec)
    assert [t.origin for t in result.trials].count("process") == 1
    assert dict(result.knobs) == {"malloc": "jemalloc"}


@pytest.mark.parametrize("search", ["tpe", "random"])
def test_a_sampler_leaves_the_proof_its_minutes_of_a_short_budget(
    tmp_path: Path, search: str
) -> None:
    tried = {}
    for minutes in (0.3, 3):
        spec = job(
            tmp_path / str(minutes),
            "{num_workers: [1, 2, 3, 4, 5], amp_dtype: [bfloat16], optimizer_impl: [fused]}",
            f"budget: {{minutes: {minutes}}}\nsearch: {search}\n",
        )
        machine = Machine(table(Loss()))
        clock = partial(lambda of, _: of.elapsed_s, machine)
        result = run(tmp_path / str(minutes), machine, spec, clock=clock)
        assert result.verdict == "tuned"
        tried[minutes] = len(result.trials)
    assert tried[0.3] < tried[3]
