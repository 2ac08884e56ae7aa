"""Exports findings as SARIF 2.1.0, which editors and code scanning show at the source lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from autotune import words
from autotune.explain.records import Finding

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(findings: Sequence[Finding], version: str) -> str:
    """The SARIF text for uncured findings that have a place in a source file."""
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
                    "artifactLocation": {"uri": quote(finding.place.file, errors="replace")},
                    "region": {"startLine": max(finding.place.line, 1)},
                }
            }
        ],
    }
