"""findings.json: what was found in the job, on its own, for the tracking server and for scripts."""

from __future__ import annotations

import json
from pathlib import Path

from autotune.report.result_file import finite
from autotune.results import Result
from autotune_spaces.codec import encode
from autotune_trials.paths import publish

FILE_NAME = "findings.json"


def write_findings(result: Result, path: Path) -> bool:
    """Write the findings, those that could not be judged, and how many rules were; False where no
    rule was asked.

    The fields are those of ``explanation`` in result.json.

    Raises:
        OSError: the directory cannot be written.
    """
    explanation = result.explanation
    if not explanation.rules and not explanation.findings:
        return False
    data = {
        "rules": explanation.rules,
        "findings": encode(explanation.findings),
        "not_judged": encode(explanation.not_judged),
    }
    publish(path, json.dumps(finite(data), indent=2, default=str, allow_nan=False) + "\n")
    return True
