"""A judgement for machines: JUnit XML for a CI's test page, SARIF 2.1.0 for its code scanning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from autotune.explain.records import Finding
from autotune.judging.conditions import Condition
from autotune.judging.records import Judgement
from autotune.report import words

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def junit(it: Judgement, conditions: Sequence[Condition]) -> str:
    """One test case for the speed, one for the loss: failed where a condition holds, an error where one is open."""
    suite = ElementTree.Element("testsuite", name="autotune judge", tests="2", time=f"{it.wall_s:.1f}")
    counts = {"failure": 0, "error": 0}
    for name, said, reason in (
        ("speed", it.speed, it.speed_reason),
        ("loss", it.loss, it.loss_verdict.reason),
    ):
        case = ElementTree.SubElement(suite, "testcase", classname="autotune.judge", name=name)
        own = [c for c in conditions if (c.kind == "loss-changed") == (name == "loss")]
        kind = "failure" if any(c.holds(it) for c in own) else ""
        kind = kind or ("error" if said == "undecided" and (own or not conditions) else "")
        if kind:
            counts[kind] += 1
            ElementTree.SubElement(case, kind, message=f"{name} {said}").text = reason
        ElementTree.SubElement(case, "system-out").text = f"{said}: {reason}"
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def sarif(findings: Sequence[Finding], version: str) -> str:
    """The findings that have a place in a source file."""
    placed = [f for f in findings if f.place is not None and not f.cured]
    rules = {f.rule: {"id": f.rule, "shortDescription": {"text": f.title}} for f in placed}
    driver = {"name": "autotune", "version": version, "rules": list(rules.values())}
    run = {"tool": {"driver": driver}, "results": [_result(f) for f in placed]}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(finding: Finding) -> dict[str, Any]:
    assert finding.place is not None
    cost = finding.cost_s
    costs = f" It costs {words.duration_words(cost)} per iteration." if cost else ""
    return {
        "ruleId": finding.rule,
        "level": "warning",
        "message": {"text": f"{finding.evidence}{costs} {finding.advice}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": finding.place.file},
                    "region": {"startLine": max(finding.place.line, 1)},
                }
            }
        ],
    }
