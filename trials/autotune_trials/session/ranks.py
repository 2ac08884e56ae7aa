"""What the ranks of one job say, put together: which error was the first, and where all windows
end.

Pure functions of messages and text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from autotune_trials.protocol.messages import Extent, JobError, Pace, SessionConfig

# How a rank ends whose neighbour has gone: gloo, NCCL, the store, and torch's own words for it.
PEER_GONE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|remote process (?:exited|has"
    r" terminated)|connectFullMesh failed"
    r"|NCCL (?:communicator|error).*(?:abort|remote)|DistNetworkError|recvValue failed|Timed out"
    r" waiting \d+ms for (?:send|recv) operation"
    r"|Socket Timeout|Application timeout caused pair closure",
    re.IGNORECASE,
)


def is_symptom(error: JobError) -> bool:
    """The rank only felt that another one had gone."""
    return bool(PEER_GONE.search(last_line(error.text)))


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def first_cause(errors: Iterable[JobError]) -> JobError | None:
    """The error that all others follow from; None if all of these are only felt.

    Ranks do the same work, so of several that run out of memory together one may fail in another
    way: memory it is then.
    """
    causes = sorted((e for e in errors if not is_symptom(e)), key=lambda e: e.at_s)
    return next((e for e in causes if e.kind == "oom"), causes[0] if causes else None)


def common_extent(paces: Sequence[Pace], config: SessionConfig) -> Extent:
    """Where every rank ends its window: ``steps``, more to fill min_seconds, fewer to keep
    max_seconds, at the slowest one's pace.
    """
    iteration_s = max(max(p.iteration_s for p in paces), 1e-6)
    steps = max(config.steps, math.ceil(config.min_seconds / iteration_s))
    steps = min(steps, max(config.max_steps, config.steps))
    if config.max_seconds:
        steps = min(steps, math.floor(config.max_seconds / iteration_s))
    return Extent(max(steps, *(p.iterations for p in paces), 1))
