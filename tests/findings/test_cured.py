"""A real program, unchanged and with the knob that cures it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cases import job, machine
from planted_faults import PLANTED, Run, run

from autotune.explain.records import Side
from autotune.findings import Case, judge


def case(name: str, found: Run, **config: int) -> Case:
    assert found.record.evidence is not None
    return Case(name, Side(config=config), found.record.evidence, machine(), job())


@pytest.mark.slow
def test_workers_cure_slow_samples(tmp_path: Path) -> None:
    planted = next(p for p in PLANTED if p.program == "slow_samples")
    folders = [tmp_path / name for name in ("before", "after")]
    for folder in folders:
        folder.mkdir()
    before = run(planted, folders[0], clean=False)
    after = run(replace(planted, knobs={"num_workers": 4}), folders[1], clean=False)
    told = judge(
        {"baseline": case("baseline", before), "winner": case("winner", after, num_workers=4)}
    )
    (finding,) = [f for f in told.findings if f.rule == planted.rule]
    assert finding.cured, finding.evidence
    assert finding.how_cured == "by num_workers=4"
    assert after.record.evidence is not None and after.record.evidence.loader["num_workers"] == 4
