"""Why a session failed, judged by its exit status, logs and markers. Pure functions of text and
files.

    exit 0              ended   the job finished by itself (unhooked.py: if it never trained)
    "out of memory" …   oom     in the exception that ends the log, or in an error at its end
    SIGKILL             oom, if the kernel's OOM killer ran during the session or its count is
                        unavailable; else killed
    any other exit      crash
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import LOADER_SETTINGS
from autotune_trials.session.ranks import PEER_GONE

TAIL_BYTES = 32 << 10
TAIL_LINES = 30
MESSAGE_LINES = 10  # kept of an exception's message, after its first line
# A job survived a traceback that more lines follow. Long messages, launchers and trackers say less.
AFTERMATH_LINES = 100
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError\b|can(?:no|')t allocate"
    r" memory|std::bad_alloc|_ALLOC(?:ATION)?_FAILED"
    r"|out of shared memory|</torch_\w+>: No space left",  # /dev/shm
    re.IGNORECASE,
)
# an error, not advice: "lower the batch size if you run out of memory"
ERROR = re.compile(
    r"Error\b|\berror: |\bERROR\b|std::bad_alloc|_ALLOC(?:ATION)?_FAILED|[Tt]ried to allocate"
    r"|[Cc]an(?:no|')t allocate|[Cc]uda failure"
)
WORKERS_TOO_MANY = re.compile(  # more DataLoader workers than memory or the file limit allows
    rf"{LOADER_SETTINGS} num_workers=(?P<workers>[1-9]\d*).*?: (?P<error>[\w.]*(?:Error|Exception):"
    r" .*(?:Too many open files|ancdata|No space left"
    r"|[Cc]annot allocate memory|Resource temporarily unavailable|unable to (?:mmap|(?:open|allocate)"
    r" shared memory|resize file|write to file)"
    r"|Bus error|out of shared memory|Pin memory thread exited).*)"
)
# messages about a DataLoader worker; from torchrun about a rank
KILLED = re.compile(r"killed by signal: Killed|exitcode: -9\b|Signal 9 \(SIGKILL\)")
WORKERS_GONE = re.compile(r"DataLoader worker \(pid\(s\) .* exited unexpectedly")
# [rank1]: by torch, [default1]: by torchrun --tee
RANK_PREFIX = re.compile(r"^(?:\[[a-z]+(\d+)\]:\s?)+")
LAUNCHER_ERRORS = """
    ChildFailedError CalledProcessError SignalException ProcessRaisedException
""".split()
SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
# "Original": from a DataLoader worker
TRACEBACK = re.compile(r"(?:Original |Exception Group )?Traceback \(most recent call last\)")
# left of an exception group's lines, and between the exceptions in it
GROUP_MARGIN = re.compile(r" +(?:\||\+[+-]*(?: \d+ -+)?) ?")
GROUP_MEMBER = re.compile(r" \d+ -")
CHAINED = re.compile(r"The above exception was the direct cause|During handling of the above")
# before a traceback that ends nothing
IGNORED = re.compile(r"Exception ignored (?:in|while|on)\b|Error in atexit\b")
# what launchers, trackers, torch's C++ code, loggers and Python's warnings add after an exception
ADDED = re.compile(
    r"\[?[EFIW]\d{4} |wandb: |frame #\d+: |\[?(?:DEBUG|INFO|WARNING|ERROR)\b|\[?\d{4}-\d\d-\d\d[ T]"
    r"|\S+:\d+: \w*Warning: "
)


@dataclass(frozen=True)
class Diagnosis:
    kind: str
    detail: str
    where: str = ""  # "file.py:12" in the user's code
    log_tail: str = ""


# ------------------------------------------------------------------------------------------ reading


def read_tail(path: Path, limit: int = TAIL_BYTES) -> str:
    """The last ``limit`` bytes of a log as text; "" if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def log_tail(paths: SessionPaths, uncaught: bool = True) -> str:
    """The most useful part of a failed job's log: the traceback it ends with, else its last lines.

    ``uncaught``: as for :func:`ending`.
    """
    return _shown(ending_of(paths, uncaught))


def _shown(end: Ending) -> str:
    return "\n".join(line[:500] for line in (end.traceback or end.lines)[-TAIL_LINES:])


class Ending(NamedTuple):
    traceback: list[str]  # [] if it ends with other lines
    # the exception and its message: the last lines of the traceback; [] if that only says that
    # another process failed
    error: list[str]
    lines: list[str]  # what may say why the job ended


def ending_of(paths: SessionPaths, uncaught: bool = True) -> Ending:
    """What a session's log ends with; stdout counts if there is no traceback in stderr."""
    stderr = ending(read_tail(paths.stderr), uncaught)
    stdout = ending(read_tail(paths.stdout, 4 << 10), uncaught)
    if stderr.traceback or stdout.traceback:
        return stderr if stderr.traceback else stdout
    return Ending([], [], stdout.lines + stderr.lines)


def ending(text: str, uncaught: bool = True) -> Ending:
    """What a log ends with.

    A launcher's traceback only says that a child failed, and that of a rank whose peer died only
    that the peer is gone. The job survived a traceback that much else follows or, unless
    ``uncaught`` (the exit status may be that of an uncaught exception), anything else.
    """
    tracebacks, others = _read(text)
    own = [t for t in tracebacks if not _is_launchers(t.error)]
    telling = [t for t in own if not PEER_GONE.search("\n".join(t.error))]
    if not tracebacks:
        return Ending([], [], others[-TAIL_LINES:])
    last = (telling or own or tracebacks)[-1]
    after = others[last.others :]
    if len(own) == len(tracebacks):  # no launcher says that what it started has failed
        rest = after if uncaught else last.error[1:] + after
        said = [line for line in rest if not (line[0].isspace() or ADDED.match(line))]
        if len(said) > (AFTERMATH_LINES if uncaught else 0):
            return Ending([], [], rest[-TAIL_LINES:])
    if telling:
        return Ending(last.lines, last.error, last.lines + after)
    return Ending(last.lines, [], text.splitlines())


@dataclass(eq=False)
class _Traceback:
    """A traceback in a log, together with those it is chained to."""

    lines: list[str]
    error: list[str] = field(default_factory=list)  # [] while its frames are read
    others: int = 0  # how many lines outside tracebacks come before its exception
    ignored: bool = False  # ends nothing
    goes_on: bool = False  # the next traceback belongs to it
    complete: bool = False  # its message has ended


def _read(text: str) -> tuple[list[_Traceback], list[str]]:
    """The tracebacks in a log, in the order of their ends, and its other lines that are not blank.

    Ranks write at the same time; their lines are separated by the prefix that torch and torchrun
    add.
    """
    found: list[_Traceback] = []
    others: list[str] = []
    latest: dict[str, _Traceback] = {}  # by rank
    ignored = in_group = False
    for raw in text.splitlines():
        prefix = RANK_PREFIX.match(raw)
        rank, line = (prefix[1], raw[prefix.end() :]) if prefix else ("", raw)
        before, mark, rest = line.partition("Traceback (most recent call last)")
        line = mark + rest if mark and "%|" in before else line  # after tqdm's bar
        margin = GROUP_MARGIN.match(line)
        in_group = margin is not None and (in_group or "Exception Group" in line)
        line = line[margin.end() :] if margin and in_group else line
        block = latest.get(rank)
        if block and in_group and margin and GROUP_MEMBER.search(margin[0]):
            block.error, block.complete = [], False  # that of the group's next member is awaited
        elif TRACEBACK.match(line):
            if block and block.goes_on and not ignored:
                block.lines.append(line)
                block.error, block.complete, block.goes_on = [], False, False
            else:
                latest[rank] = _Traceback([line], ignored=ignored)
        elif block and not block.error:
            block.lines.append(line)
            if line and not line[0].isspace():  # "ValueError: …" after the frames
                if TRACEBACK.match(block.lines[0]) or line.startswith(SYNTAX_ERRORS):
                    block.error, block.others = [line], len(others)
                    found = [*(t for t in found if t is not block), block]
                else:  # only stacks
                    others += filter(str.strip, latest.pop(rank).lines)
        elif re.match(r'\s+File "', line):  # a SyntaxError has no "Traceback" line
            latest[rank] = _Traceback([line])
        elif block and not block.complete and _is_message(line, block.error):
            block.lines.append(line)
            block.error.append(line)
        else:
            if block:
                block.complete = True
            if block and CHAINED.match(line):
                block.lines.append(line)
                block.goes_on = True
            elif line.strip() and not IGNORED.match(line):
                others.append(line)
        ignored = bool(IGNORED.match(line))
    for block in latest.values():
        if not block.error:
            others += filter(str.strip, block.lines)
    return [t for t in found if t.error and not t.ignored], others


def _is_message(line: str, error: Sequence[str]) -> bool:
    """Whether ``line`` continues the message of an exception, ``error`` being what was read of it."""
    return (
        bool(line.strip())
        and len(error) <= MESSAGE_LINES
        and not (ADDED.match(line) or IGNORED.match(line) or _is_launchers(error))
    )


def _is_launchers(error: Sequence[str]) -> bool:
    return any(word in error[0] for word in LAUNCHER_ERRORS)


def in_one_line(error: Sequence[str]) -> str:
    """The exception's first line, with the lines that clearly go on with it: indented ones, and what
    follows a colon. Others may be what the job printed next.
    """
    said = [*error[:1]]
    for line in error[1:]:
        if not (line[0].isspace() or said[-1].endswith(":")):
            break
        said.append(line)
    return " ".join(line.strip() for line in said)


def lost_rank(text: str) -> str:
    """``rank 1 ended by SIGSEGV`` if torchrun reports a signal, other than the one it ends the ranks
    with, else "".

    The root cause goes first; but torchrun may see a rank that only lost its peer before the peer.
    """
    before, summary, root = text.rpartition("Root Cause")
    others = before.rpartition("Failures:")[2] if "Failures:" in before else ""
    exits = re.compile(r"rank\s*:\s*(\d+)[^\[]*?exitcode\s*:\s*(-\d+)")
    for rank, status in exits.findall(root) + exits.findall(others) if summary else ():
        if int(status) != -signal.SIGTERM:
            return f"rank {rank} {_status_in_words(int(status))}"
    return ""


def user_line(lines: Iterable[str], workdir: Path) -> str:
    """``file.py:12`` of the last traceback line in the user's code, "" if there is none."""
    found = ""
    for line in lines:
        match = re.match(r'\s*File "([^"]+)", line (\d+)', line)
        if match and _is_users(match.group(1), workdir):
            path = match.group(1)
            shown = (
                os.path.relpath(path, workdir) if path.startswith(str(workdir) + os.sep) else path
            )
            found = f"{shown}:{match.group(2)}"
    return found


def _is_users(path: str, workdir: Path) -> bool:
    if path.startswith("<") or re.search(
        r"/(site|dist)-packages/|/autotune_(trials|spaces)/", path
    ):
        return False
    return path.startswith(str(workdir)) or not re.search(r"/lib(64)?/python3[.\d]*/", path)


def markers_of(paths: SessionPaths) -> dict[str, set[int]]:
    """Map each marker to the pids of the processes that left it."""
    found: dict[str, set[int]] = {}
    try:
        names = os.listdir(paths.markers)
    except OSError:
        return found
    for name in names:
        what, _, pid = name.rpartition("-")
        if pid.isdigit():
            found.setdefault(what, set()).add(int(pid))
    return found


# ------------------------------------------------------------------------------------------ judging


def of_exit(
    status: int, workdir: Path, paths: SessionPaths, doing: str, oom_kills: int | None = None
) -> Diagnosis:
    """Why the command ended, judged by its exit status (negative: a signal) and its logs.

    ``doing``: the condition it ended before, e.g. "the measurement was done". ``oom_kills``: OOM
    kills by the kernel during the session; None: unknown.
    """
    if status == 0:
        return Diagnosis(
            "ended",
            f"the job finished by itself (exit code 0) before {doing}",
            log_tail=log_tail(paths, uncaught=False),
        )
    return of_logs(
        workdir,
        paths,
        _status_in_words(status),
        oom_kills,
        killed=status in (-signal.SIGKILL, 128 + signal.SIGKILL),
        # an exception exits with 1; 255 is sys.exit(-1)
        uncaught=status == 1 or status < 0 or 128 < status < 255,
    )


def of_logs(
    workdir: Path,
    paths: SessionPaths,
    happened: str,
    oom_kills: int | None = None,
    killed: bool = False,
    uncaught: bool = True,
) -> Diagnosis:
    """Tell out of memory, killed from outside and crash apart by the logs. ``killed``: SIGKILL that
    was not ours. ``uncaught``: the job may have ended with an uncaught exception.
    """
    end = ending_of(paths, uncaught)
    where, tail = user_line(end.traceback, workdir), _shown(end)
    # an exception says what the job died of: it may have survived an OOM, and logged it, before
    told = end.error[1:] if end.error else end.lines
    told = end.error[:1] + [line for line in told if ERROR.search(line)]
    said = _last_line(told, OUT_OF_MEMORY)
    if said or (not end.error and "oom" in markers_of(paths)):
        return Diagnosis(
            "oom", (said or f"{happened}, after running out of memory")[:500], where, tail
        )
    if killed or (said := _last_line(end.lines, KILLED)) or "killed" in markers_of(paths):
        said = said or (
            "killed (SIGKILL)" if killed else _last_line(end.lines, WORKERS_GONE) or happened
        )
        if oom_kills == 0:
            return Diagnosis(
                "killed",
                f"{said[:400]}; neither autotune nor the kernel's OOM killer did it",
                where,
                tail,
            )
        return Diagnosis("oom", f"{said[:400]}; the host probably ran out of memory", where, tail)
    reason = (
        in_one_line(end.error)
        or lost_rank(read_tail(paths.stderr))
        or (tail.splitlines() or ["it printed nothing"])[-1]
    )
    return Diagnosis("crash", f"{happened}: {reason[:500]}", where, tail)


def _last_line(lines: Sequence[str], pattern: re.Pattern[str]) -> str:
    return next((line.strip() for line in reversed(lines) if pattern.search(line)), "")


def _status_in_words(status: int) -> str:
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = ""
    if status < 0:
        return f"ended by {name or f'signal {number}'}"
    return f"exit code {status}" + (f" ({name})" if name and status > 128 else "")
