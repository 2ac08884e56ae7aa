"""A setting that speeds up the job but breaks its training is never adopted, and does not prevent
harmless ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Job, make_job

BREAKERS = {
    "lr": "{via: '--lr-factor {}', values: [1, 2], default: 1, numerics: rounding}",
    "skip": "{via: '--skip {}', values: [0, 4], default: 0, numerics: rounding}",
    "dropout": "{via: '--dropout {}', values: [0.1, 0.0], default: 0.1, numerics: rounding}",
    "weights": (
        "{via: '--weights {}', values: [float32, bfloat16], default: float32, numerics: rounding}"
    ),
}
HARMLESS = "{via: '--cache {}', values: ['off', 'on'], default: 'off', numerics: exact}"
USELESS = "{via: '--useless {}', values: [0, 1, 2], default: 0, numerics: exact}"


def job(folder: Path, knobs: dict[str, str]) -> Job:
    space = "{" + ", ".join(f"{name}: {how}" for name, how in knobs.items()) + "}"
    text = (
        "name: job\ncommand: {command}\ntraces: none\ntracking: {{uri: null}}\nsearch_space:"
        f" {space.replace('{', '{{').replace('}', '}}')}\n"
    )
    return make_job(
        folder,
        "python breakers.py",
        text + "budget: {{minutes: 10}}\nenv: {{OMP_NUM_THREADS: 1}}\n",
    )


def tuned(job: Job) -> dict:
    done = job.run(timeout_s=1500)
    assert done.returncode == 0, done.stderr
    return job.result


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_fourth_step_skipped_is_not_adopted(tmp_path: Path) -> None:
    result = tuned(job(tmp_path / "job", {"skip": BREAKERS["skip"]}))
    assert result["verdict"] == "keep-baseline"
    assert result["knobs"] == {}
    assert result["confirmation"]["adopted"], "it is faster; only the loss speaks against it"
    assert result["loss"]["verdict"] == "changed", result["loss"]["reason"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", [n for n in BREAKERS if n != "skip"])
def test_a_breaker_alone_is_not_adopted(tmp_path: Path, name: str) -> None:
    result = tuned(job(tmp_path / "job", {name: BREAKERS[name]}))
    assert result["knobs"] == {}
    assert result["loss"]["verdict"] == "changed", result["loss"]["reason"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_of_four_breakers_and_one_harmless_flag_the_harmless_one_is_adopted(tmp_path: Path) -> None:
    result = tuned(job(tmp_path / "job", {**BREAKERS, "cache": HARMLESS}))
    assert result["knobs"] == {"cache": "on"}
    assert result["loss"]["verdict"] == "unchanged"
    assert result["speedup"]["low"] > 1


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_where_nothing_matters_the_baseline_is_kept(tmp_path: Path) -> None:
    result = tuned(job(tmp_path / "job", {"useless": USELESS}))
    assert result["verdict"] == "keep-baseline"
    assert result["knobs"] == {}
