"""Stacks of the processes of a hung job, and which process the others wait for."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from autotune_trials.agent.bootstrap.stack_dump import STACKS_SIGNAL
from autotune_trials.diagnosis import classify
from autotune_trials.paths import SessionPaths
from autotune_trials.supervisor import process_tags, procfs

PATIENCE_S = 1.0  # longest wait for all stacks to be written
# Innermost frame of a rank in a collective call, in the backward that runs one, or waiting for its
# GPU.
WAITING = re.compile(r"/torch/(?:distributed|autograd|cuda|nn/parallel|_ops)[/.]", re.IGNORECASE)


def save_stacks(paths: SessionPaths, mark: str, ranks: Mapping[int, int]) -> dict[str, list[str]]:
    """Have every Python process of the session write its stacks; return the main thread's stack of
    every rank, keyed by "rank N".

    If no rank is known yet, those of all processes, the highest pid first: a launcher is older than
    the processes it starts.

    Args:
        mark: the session's mark; processes without it are not signalled.
        ranks: rank -> process, as far as known.
    """
    pids = {
        p for p in classify.markers_of(paths).get("python", ()) if process_tags.mark_of(p) == mark
    }
    # the stacks file shows that a handler is installed; without one the signal would kill
    pids = {p for p in pids if procfs.alive(p) and paths.stacks(p).exists()}
    procfs.send(pids, STACKS_SIGNAL)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and any(not paths.stacks(p).stat().st_size for p in pids):
        time.sleep(0.02)
    time.sleep(0.05 if pids else 0.0)
    named = {f"rank {rank}": pid for rank, pid in sorted(ranks.items()) if pid in pids}
    named = named or {f"process {pid}": pid for pid in sorted(pids, reverse=True)}
    return {who: main_thread(classify.read_tail(paths.stacks(pid))) for who, pid in named.items()}


def main_thread(text: str) -> list[str]:
    """The main thread's lines in a faulthandler dump, which lists the main thread last."""
    return text[max(0, text.rfind("hread 0x") - 1) :].splitlines()


def waits_for_others(lines: Sequence[str]) -> bool:
    """Whether the innermost frame (most recent call first) is a collective call, the backward that
    runs one, or a wait for the GPU.
    """
    frames = [line for line in lines if re.match(r'\s*File "', line)]
    return bool(frames) and bool(WAITING.search(frames[0]))


def busy(stacks: Mapping[str, Sequence[str]]) -> list[str]:
    """Of several processes that stand still, those that do not wait for others, as far as stacks
    show it: with NCCL, a rank waits wherever it reads from its GPU, perhaps in a line of the job's
    own.
    """
    return [who for who, lines in stacks.items() if lines and not waits_for_others(lines)]


def stacks_in_words(stacks: Mapping[str, Sequence[str]], most_lines: int) -> str:
    """Text of all main-thread stacks, busy processes first; a single one comes without its name."""
    if len(stacks) < 2:
        return "\n".join(line for lines in stacks.values() for line in list(lines)[:most_lines])
    first = busy(stacks)
    each = max(6, most_lines // len(stacks))
    parts = []
    for who in sorted(stacks, key=lambda who: who not in first):
        doing = " (waits for others)" if waits_for_others(stacks[who]) else ""
        parts.append("\n".join([f"{who}{doing}:", *list(stacks[who])[:each]]))
    return "\n".join(parts)
