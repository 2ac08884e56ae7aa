"""How a submitted run says itself how it ended: in the last line of its log.

Ray says it too, but its word can be lost: a second process of the cluster that begins to watch a
run (the first question about a log makes it) in the moment in which the run ends takes it for one
that never started, and writes that over its exit code (``JobManager._monitor_job_internal`` of Ray
2.60, https://github.com/ray-project/ray/issues/34794).
"""

from __future__ import annotations

import re

SUBMISSION = "AUTOTUNE_SUBMISSION"  # the ID, in the environment of the submitted command
LOST = "failed to get job supervisor"  # what Ray has written there


def last_words(id: str, exit_code: int | str) -> str:
    """The line that a submitted run ends its log with."""
    return f"autotune: {id} ended with exit code {exit_code}"


def exit_code_in(log: str, id: str) -> int | None:
    """The exit code that a run's log ends with; None if it was killed before it could say so."""
    found = re.findall(rf"^{re.escape(last_words(id, ''))}(\d+)$", log, re.MULTILINE)
    return int(found[-1]) if found else None
