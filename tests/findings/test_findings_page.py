"""docs/findings.md is made from the cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.findings import RULES, docs
from autotune_spaces.knobs import names

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"


def test_the_page_is_up_to_date() -> None:
    assert docs.main(["--check", str(PAGE)]) == 0, (
        "run: python -m autotune.findings.docs docs/findings.md"
    )


def test_an_old_page_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "findings.md"
    assert docs.main(["--check", str(page)]) == 1
    assert docs.main([str(page)]) == 0
    assert docs.main(["--check", str(page)]) == 0
    page.write_text(page.read_text().replace("batches", "baches", 1))
    assert docs.main(["--check", str(page)]) == 1
    assert "out of date" in capsys.readouterr().err


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_a_card_and_names_real_knobs(rule) -> None:
    assert f"\n## {rule.name}\n" in docs.render()
    assert len(rule.card) > 60 and rule.card.endswith(".")
    assert rule.title[0].isupper() and not rule.title.endswith(".")
    for knob in (rule.knob, *rule.also):
        assert not knob or knob in names(), knob
