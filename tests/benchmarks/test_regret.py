"""The harness of benchmarks/regret finds the planted best and resumes where it stopped, and its
jobs are plain scripts.
"""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path

import pytest

REGRET = Path(__file__).resolve().parents[2] / "benchmarks" / "regret"
DOMAINS = {
    "num_workers": [0, 1, 2],
    "persistent_workers": [False, True],
    "amp_dtype": ["off", "bfloat16"],
    "channels_last": [False, True],
}
DEFAULTS = {
    "num_workers": 0,
    "persistent_workers": False,
    "amp_dtype": "off",
    "channels_last": False,
}


@pytest.fixture
def harness(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(REGRET))
    before = set(sys.modules)
    import records

    monkeypatch.setattr(records, "RESULTS", tmp_path)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(REGRET)):
            del sys.modules[name]


class Planted:
    """Processes with known costs: bfloat16 helps only with channels_last, workers only if
    persistent.
    """

    def __init__(self) -> None:
        from jobs_table import job_file
        from processes import Space
        from records import Records

        from autotune.job.load import load_job

        self.records, self.made = Records("planted"), 0
        self.space = Space(DOMAINS, DEFAULTS, load_job(job_file("conv"), check=False))

    def run(self, config, seconds, label):
        self.made += 1
        cost = 1e-3
        if config.get("amp_dtype") == "bfloat16":
            cost *= 0.6 if config.get("channels_last") else 1.1
        if config.get("num_workers"):
            cost *= 0.7 if config.get("persistent_workers") else 1.2
        return {
            "config": config,
            "cost_s": cost * (1 + 0.002 * math.sin(self.made)),
            "wall_s": 10.0,
            "error": "",
        }


def test_the_best_is_found_across_interactions(harness):
    from best import climb, halving
    from processes import Series

    planted = Planted()
    series = Series(planted, "best", math.inf, 3.0)
    [start, *_] = halving(series, planted.space)
    found = climb(series, planted.space, start)
    assert (found["amp_dtype"], found["channels_last"], found["persistent_workers"]) == (
        "bfloat16",
        True,
        True,
    )


@pytest.mark.parametrize("method", ["tpe", "random", "ofat", "tpe-confirmed"])
def test_a_rival_carries_on_from_what_was_measured(harness, method):
    from methods import rival

    first, again = Planted(), Planted()
    answer = rival(first, method, 10, seed=0)
    assert first.made >= 40 and answer["wall_s"] <= 600
    again = Planted()  # a new process: the records are read
    assert rival(again, method, 10, seed=0)["config"] == answer["config"] and again.made == 0


def test_regret_is_none_for_the_best_and_what_is_missed_for_the_rest(harness):
    from regret_page import Scored, lines
    from score import score

    planted = Planted()
    best = {"amp_dtype": "bfloat16", "channels_last": True}
    planted.records.append(
        "space", domains={}, defaults={}, machine="2 cores", bottleneck="compute", iteration_s=0.01
    )
    planted.records.append("best", config=best, speedup=1.6, runs=9, wall_s=90, finished=True)
    planted.records.append(
        "answer",
        "tpe/10/0",
        method="tpe",
        minutes=10,
        config={},
        wall_s=600,
        trials=60,
        incumbents=[[5.0, {}]],
    )
    planted.records.append(
        "answer",
        "ours/10/0",
        method="ours",
        minutes=10,
        config=best,
        wall_s=300,
        trials=9,
        verdict="keep-baseline",
    )
    score(planted, rounds=4, incumbents=True)
    scored = Scored(planted.records)
    assert scored.regret(best) == 0 and scored.regret({}) == pytest.approx(0.4, abs=0.01)
    assert any(
        "| ours | 10 | 1 | 0.0% | 1 of 1 |" in line for line in lines({"planted": planted.records})
    )


def test_jobs_know_nothing_of_autotune_and_have_one_step(harness):
    from jobs_table import scripts

    assert len(scripts()) >= 13
    for path in scripts().values():
        text = path.read_text(encoding="utf-8")
        assert (
            ast.get_docstring(ast.parse(text)) and "autotune" not in text.partition("\nimport ")[2]
        )
        assert text.count("optimizer.step()") == 1 and '"--epochs"' in text
