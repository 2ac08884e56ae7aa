"""How a submitted run reports its own end: in the last line of its log.

Ray reports it, too, but its report can be lost. If a second process of the cluster begins to watch
a run (the first request for a log starts one) at the moment the run ends, it takes the run for one
that never started and overwrites its exit code with that (``JobManager._monitor_job_internal`` of
Ray 2.60, https://github.com/ray-project/ray/issues/34794).
"""

from __future__ import annotations

import re

SUBMISSION = "AUTOTUNE_SUBMISSION"  # the ID, in the environment of the submitted command
LOST = "failed to get job supervisor"  # what Ray writes in that case


def last_words(id: str, exit_code: int | str) -> str:
    """The line with which a submitted run ends its log."""
    return f"autotune: {id} ended with exit code {exit_code}"


def exit_code_in(log: str, id: str) -> int | None:
    """The exit code that a run's log ends with; None if it was killed before it could say so."""
    found = re.findall(rf"^{re.escape(last_words(id, ''))}(\d+)$", log, re.MULTILINE)
    return int(found[-1]) if found else None
