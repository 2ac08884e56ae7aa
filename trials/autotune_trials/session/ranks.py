"""Combines the messages of a job's ranks: which error came first, and where all windows end.

Pure functions of messages and text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from autotune_trials.protocol.messages import Extent, JobError, Pace, SessionConfig

# The pace is reported again after so many times as many iterations: of what a job does between
# epochs the first iterations show little.
PACE_GROWTH = 4
# Errors of a rank whose peer is gone: from gloo, NCCL, the store and torch itself.
PEER_GONE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|remote process (?:exited|has"
    r" terminated)|connectFullMesh failed"
    r"|NCCL (?:communicator|error).*(?:abort|remote)|DistNetworkError|recvValue failed|Timed out"
    r" waiting \d+ms for (?:send|recv) operation"
    r"|Socket Timeout|Application timeout caused pair closure",
    re.IGNORECASE,
)


def is_symptom(error: JobError) -> bool:
    """Whether the error only shows that another rank is gone."""
    return bool(PEER_GONE.search(_message(error.text)))


def _message(text: str) -> str:
    """The lines after the last frame of a traceback; the last line if a frame ends ``text``."""
    lines = text.strip().splitlines()
    frames = [at for at, line in enumerate(lines) if line[:1].isspace()]
    return "\n".join(lines[frames[-1] + 1 if frames else 0 :] or lines[-1:])


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def first_cause(errors: Iterable[JobError]) -> JobError | None:
    """The error that caused the others; None if all of them are symptoms.

    Ranks do the same work, so when several run out of memory together, one may fail in another way
    first: an "oom" therefore takes precedence.
    """
    causes = sorted((e for e in errors if not is_symptom(e)), key=lambda e: e.at_s)
    return next((e for e in causes if e.kind == "oom"), causes[0] if causes else None)


def common_extent(paces: Sequence[Pace], config: SessionConfig) -> Extent:
    """Where every rank ends its window, or reports its pace again: ``steps``, extended to fill
    min_seconds or cut to keep max_seconds of wall time, at the pace of the slowest rank.
    """
    iteration_s = max(max(p.iteration_s + p.away_s for p in paces), 1e-6)
    recorded = max(1, *(p.iterations for p in paces))
    steps = max(config.steps, math.ceil(config.min_seconds / iteration_s))
    steps = min(steps, max(config.max_steps, config.steps))
    if config.max_seconds:
        steps = min(steps, math.floor(config.max_seconds / iteration_s))
    steps, again = max(steps, recorded), PACE_GROWTH * recorded
    return Extent(steps, again if again < steps else 0)
