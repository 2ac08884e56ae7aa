"""Exports findings as SARIF 2.1.0, which editors and code scanning show at the source lines."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autotune import words
from autotune.explain.records import Finding

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(findings: Sequence[Finding], version: str, workdir: Path | None = None) -> str:
    """The SARIF text for uncured findings that have a place in a source file.

    Args:
        workdir: the job's; places in its git repository, or below it, are given relative to that.
    """
    placed = [f for f in findings if f.place is not None and not f.cured]
    rules = {f.rule: {"id": f.rule, "shortDescription": {"text": f.title}} for f in placed}
    driver = {"name": "autotune", "version": version, "rules": list(rules.values())}
    top = top_of(workdir) if workdir is not None else None
    run = {"tool": {"driver": driver}, "results": [_result(f, top) for f in placed]}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def top_of(workdir: Path) -> Path:
    """The top of the git repository of ``workdir``; itself if it is in none."""
    return next((p for p in (workdir, *workdir.parents) if os.path.exists(p / ".git")), workdir)


def _uri(file: str, top: Path | None) -> str:
    path = Path(file)
    if top is not None and path.is_relative_to(top):
        path = path.relative_to(top)
    return ("file://" if path.is_absolute() else "") + quote(str(path), errors="replace")


def _result(finding: Finding, top: Path | None) -> dict[str, Any]:
    assert finding.place is not None
    # the evidence itself says what a finding costs after tuning
    cost = finding.cost_s if finding.cost_after_s is None else None
    costs = f" It costs {words.duration_words(cost)} per iteration." if cost else ""
    return {
        "ruleId": finding.rule,
        "level": "warning",
        "message": {"text": f"{finding.evidence}{costs} {finding.advice}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.place.file, top)},
                    "region": {"startLine": max(finding.place.line, 1)},
                }
            }
        ],
    }
