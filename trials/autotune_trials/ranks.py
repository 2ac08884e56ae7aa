"""What the ranks of one job say, put together: which error was the first, where all windows end, who keeps the others waiting.

Pure functions of messages and text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from autotune_trials.protocol import Extent, JobError, Pace, SessionConfig

# How a rank ends whose neighbour has gone: gloo, NCCL, the store, and torch's own words for it.
PEER_GONE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|remote process (?:exited|has terminated)|connectFullMesh failed"
    r"|NCCL (?:communicator|error).*(?:abort|remote)|DistNetworkError|recvValue failed|Timed out waiting \d+ms for (?:send|recv) operation"
    r"|Socket Timeout|Application timeout caused pair closure",
    re.IGNORECASE,
)
WAITING = re.compile(r"/torch/(?:distributed|autograd|nn/parallel|_ops)", re.IGNORECASE)


def is_symptom(error: JobError) -> bool:
    """The rank only felt that another one had gone."""
    return bool(PEER_GONE.search(last_line(error.text)))


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def first_cause(errors: Iterable[JobError]) -> JobError | None:
    """The error that all others follow from; None if all of these are only felt.

    Ranks do the same work, so of several that run out of memory together one may fail in another way: memory it is then.
    """
    causes = sorted((e for e in errors if not is_symptom(e)), key=lambda e: e.at_s)
    return next((e for e in causes if e.kind == "oom"), causes[0] if causes else None)


def common_extent(paces: Sequence[Pace], config: SessionConfig) -> Extent:
    """Where every rank ends its window: ``steps``, more to fill min_seconds, fewer to keep max_seconds, at the slowest one's pace."""
    iteration_s = max(max(p.iteration_s for p in paces), 1e-6)
    steps = max(config.steps, math.ceil(config.min_seconds / iteration_s))
    steps = min(steps, max(config.max_steps, config.steps))
    if config.max_seconds:
        steps = min(steps, math.floor(config.max_seconds / iteration_s))
    return Extent(max(steps, *(p.iterations for p in paces), 1))


def main_thread(text: str) -> list[str]:
    """The main thread's lines in a dump of faulthandler, which writes it last."""
    return text[max(0, text.rfind("hread 0x") - 1) :].splitlines()


def waits_for_others(lines: Sequence[str]) -> bool:
    """The innermost frame of a stack (most recent call first) is a collective call, or the backward that runs one."""
    frames = [line for line in lines if re.match(r'\s*File "', line)]
    return bool(frames) and bool(WAITING.search(frames[0]))


def culprit(stacks: Mapping[str, Sequence[str]]) -> str:
    """Of processes that all stand still, the one that the others wait for; the first if that cannot be told."""
    busy = [who for who, lines in stacks.items() if lines and not waits_for_others(lines)]
    return busy[0] if busy else next(iter(stacks))


def stacks_in_words(stacks: Mapping[str, Sequence[str]], most_lines: int) -> str:
    """The main thread of every process, the culprit's first; one alone without its name."""
    if len(stacks) < 2:
        return "\n".join(line for lines in stacks.values() for line in list(lines)[:most_lines])
    first = culprit(stacks)
    each = max(6, most_lines // len(stacks))
    parts = []
    for who in sorted(stacks, key=lambda who: who != first):
        doing = " (waits for others)" if waits_for_others(stacks[who]) else ""
        parts.append("\n".join([f"{who}{doing}:", *list(stacks[who])[:each]]))
    return "\n".join(parts)
