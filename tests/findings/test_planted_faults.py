"""Every planted fault is found at its line with its cost, and nothing else; its clean twin has no
findings.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_faults import PLANTED, TOLERANCE, Planted, known_rules, run


def each() -> list[object]:
    marks = {False: [pytest.mark.slow], True: []}
    gpu = {False: [], True: [pytest.mark.gpu]}
    return [pytest.param(p, id=p.program, marks=marks[p.quick] + gpu[p.gpu]) for p in PLANTED]


@pytest.mark.parametrize("planted", each())
def test_the_fault_is_found_at_its_line_with_its_cost_and_nothing_else(
    planted: Planted, tmp_path: Path
) -> None:
    assert planted.rule in known_rules()
    found = run(planted, tmp_path, clean=False)
    assert [f.rule for f in found.judgement.findings] == [planted.rule], found.told()
    (finding,) = found.judgement.findings
    if planted.placed:
        assert finding.place is not None, found.told()
        assert (Path(finding.place.file).name, finding.place.line) == (
            planted.source.name,
            planted.line,
        ), found.told()
    if planted.costed:
        assert finding.cost_s == pytest.approx(found.planted_s, rel=TOLERANCE), found.told()
    assert all(text in finding.evidence for text in planted.says), found.told()


@pytest.mark.parametrize("planted", each())
def test_the_clean_twin_gets_no_finding(planted: Planted, tmp_path: Path) -> None:
    found = run(planted, tmp_path, clean=True)
    assert not found.judgement.findings, found.told()


def test_every_pair_has_its_line() -> None:
    assert all(p.source.exists() and (not p.placed or p.line) for p in PLANTED)
