"""Why a session failed, judged by its exit status, logs and markers. Pure functions of text and
files.

    exit 0, step marker      ended      the job finished by itself
    exit 0, no step marker   unhooked   the agent never saw an optimizer step
    "out of memory" …        oom
    SIGKILL                  oom, if the kernel's OOM killer ran during the session or its count
                             is unavailable; else killed
    any other exit           crash
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from autotune_trials.api import MARKING
from autotune_trials.paths import MARKERS, SessionPaths
from autotune_trials.session.ranks import PEER_GONE

TAIL_BYTES = 32 << 10
TAIL_LINES = 30
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError\b|can(?:no|')t allocate"
    r" memory|std::bad_alloc|_ALLOC_FAILED"
    r"|out of shared memory|</torch_\w+>: No space left",  # /dev/shm
    re.IGNORECASE,
)
WORKERS_TOO_MANY = re.compile(  # more DataLoader workers than memory or the file limit allows
    r"loader settings num_workers=(?P<workers>[1-9]\d*).*?: (?P<error>[\w.]*(?:Error|Exception):"
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
DETACHING = "sudo su docker podman apptainer singularity ssh kubectl srun sbatch".split()


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


def log_tail(paths: SessionPaths, lines: int = TAIL_LINES) -> str:
    """The most useful part of a failed job's log: its last traceback, else its last lines."""
    text = read_tail(paths.stderr)
    shown = (
        last_traceback(text)
        or text.strip().splitlines()
        or read_tail(paths.stdout).strip().splitlines()
    )
    return "\n".join(line[:500] for line in shown[-lines:])


def last_traceback(text: str) -> list[str]:
    """The lines of the last informative traceback.

    A launcher's traceback only says that a child failed, and that of a rank whose peer died only
    that the peer is gone. Ranks write at the same time; their lines are separated by the prefix
    that torch and torchrun add.
    """
    blocks: list[list[str]] = []
    # rank (from the prefix) -> the traceback being read
    open_: dict[str, list[str] | None] = {}
    for raw in text.splitlines():
        found = RANK_PREFIX.match(raw)
        rank, line = (found.group(1), raw[found.end() :]) if found else ("", raw)
        block = open_.get(rank)
        # "Original": from a DataLoader worker
        if re.match(r"(Original )?Traceback \(most recent call last\)", line):
            open_[rank] = block = [line]
            blocks.append(block)
        elif block is not None:
            block.append(line)
            if line and not line[0].isspace():  # "ValueError: …" ends it
                open_[rank] = None
        elif re.match(r'\s+File "', line):  # a SyntaxError has no "Traceback" line
            open_[rank] = block = [line]
            blocks.append(block)
    blocks = [b for b in blocks if "Traceback" in b[0] or b[-1].startswith(SYNTAX_ERRORS)]
    said = [b for b in blocks if not any(word in b[-1] for word in LAUNCHER_ERRORS)]
    telling = [b for b in said if not PEER_GONE.search(b[-1])]
    return (telling or said or blocks or [[]])[-1]


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
    status: int,
    argv: Sequence[str],
    workdir: Path,
    paths: SessionPaths,
    doing: str,
    oom_kills: int | None = None,
) -> Diagnosis:
    """Why the command ended, judged by its exit status (negative: a signal) and its logs.

    ``doing``: the condition it ended before, e.g. "the measurement was done". ``oom_kills``: OOM
    kills by the kernel during the session; None: unknown.
    """
    if status == 0:
        if "step" not in markers_of(paths):
            return unhooked(argv, workdir, paths, "the command ended (exit code 0)")
        return Diagnosis(
            "ended",
            f"the job finished by itself (exit code 0) before {doing}",
            log_tail=log_tail(paths),
        )
    return of_logs(
        workdir,
        paths,
        _status_in_words(status),
        oom_kills,
        killed=status in (-signal.SIGKILL, 128 + signal.SIGKILL),
    )


def of_logs(
    workdir: Path,
    paths: SessionPaths,
    happened: str,
    oom_kills: int | None = None,
    killed: bool = False,
) -> Diagnosis:
    """Tell out of memory, killed from outside and crash apart by the logs. ``killed``: SIGKILL that
    was not ours.
    """
    text = read_tail(paths.stderr) + "\n" + read_tail(paths.stdout, 4 << 10)
    traceback = last_traceback(text)
    where, tail = user_line(traceback, workdir), log_tail(paths)
    # a traceback says what it died of: a job may survive an OOM, and log it, long before
    ending = traceback[-1] if len(traceback) > 1 else ""
    said = _last_line("\n".join(traceback) if ending else text, OUT_OF_MEMORY)
    if said or (not ending and "oom" in markers_of(paths)):
        return Diagnosis(
            "oom", (said or f"{happened}, after running out of memory")[:500], where, tail
        )
    if killed or (said := _last_line(text, KILLED)) or "killed" in markers_of(paths):
        said = said or (
            "killed (SIGKILL)" if killed else _last_line(text, WORKERS_GONE) or happened
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
        traceback[-1] if len(traceback) > 1 else (tail.splitlines() or ["it printed nothing"])[-1]
    )
    if PEER_GONE.search(reason) or len(traceback) < 2:
        reason = lost_rank(text) or reason
    return Diagnosis("crash", f"{happened}: {reason[:500]}", where, tail)


def _last_line(text: str, pattern: re.Pattern[str]) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if pattern.search(line)), "")


def _status_in_words(status: int) -> str:
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = ""
    if status < 0:
        return f"ended by {name or f'signal {number}'}"
    return f"exit code {status}" + (f" ({name})" if name and status > 128 else "")


def unhooked(argv: Sequence[str], workdir: Path, paths: SessionPaths, happened: str) -> Diagnosis:
    """Why no optimizer step was seen, judged by the last marker left, and what to do about it."""
    markers = markers_of(paths)
    furthest = next((m for m in reversed(MARKERS) if m in markers and m != "loader"), "")
    cause, remedy = _CAUSES.get(furthest, ("", ""))
    if not furthest:
        cause, remedy = _why_no_python(argv, workdir)
    text = f"{happened}, and no optimizer step was seen: {cause}.\n{remedy}"
    trouble = read_tail(paths.agent_log).strip()
    if trouble:
        text += f"\nagent.log ends with: {trouble.splitlines()[-1][:300]}"
    return Diagnosis("unhooked", text, log_tail=log_tail(paths))


_CAUSES = {
    "python": (
        "Python ran, but never imported torch",
        (
            "Only PyTorch jobs can be tuned without help. If another program does the training,"
            f" give that one as the command; otherwise {MARKING}"
        ),
    ),
    "torch": (
        "torch was imported, but neither backward() nor an optimizer was called",
        (
            "Check that the command trains (not only evaluates or prepares data); if it trains in"
            f" another way, {MARKING}"
        ),
    ),
    "backward": (
        (
            "backward() was called, but no torch.optim optimizer stepped, and no other parameter"
            " update was seen"
        ),
        MARKING[0].upper() + MARKING[1:],
    ),
}


def _why_no_python(argv: Sequence[str], workdir: Path) -> tuple[str, str]:
    """Cause and remedy when no Python process of the command loaded the agent."""
    flag = _isolating_flag(argv)
    if flag:
        return (
            (
                f"{flag} makes Python ignore PYTHONPATH or sitecustomize, which autotune uses to"
                " load its agent"
            ),
            f"Remove {flag.split()[0]} from the command, or {MARKING}",
        )
    script = shutil.which(argv[0], path=None) or str(workdir / argv[0])
    line = shebang(script)
    if line and (flag := _isolating_flag(line)):
        return (
            (
                f"{argv[0]} starts with #!{' '.join(line)}, and {flag} makes Python ignore"
                " PYTHONPATH or sitecustomize"
            ),
            f"Run it as `python {argv[0]} …`, or {MARKING}",
        )
    names = [os.path.basename(word) for word in argv]
    detaching = next((n for n in names if n in DETACHING), "") or (
        "env -i" if _clears_environment(names) else ""
    )
    if detaching:
        return (
            (
                f"{detaching} starts the job without the environment variables that load"
                " autotune's agent"
            ),
            f"Tune the command that {detaching} runs, where it runs, or {MARKING}",
        )
    return (
        (
            "no Python process of the command loaded the agent: the command is not a Python"
            " program, starts Python with -I, -E or -S or without its environment, or continues in"
            " the background"
        ),
        f"Give the training command itself, in the foreground, or {MARKING}",
    )


class PythonArguments(NamedTuple):
    """The arguments after `python` in a command; "" for those that are absent."""

    script: str = ""
    # as written ("-Es"): makes Python ignore PYTHONPATH (-I, -E) or sitecustomize (-S)
    option: str = ""
    flag: str = ""  # its letter: "E"


def python_arguments(arguments: Iterable[str]) -> PythonArguments:
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-"):
            return PythonArguments(word)
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(rest, None)
        elif not word.startswith("--"):
            letters = re.split(r"[cmXW]", word[1:])[0]
            if found := next((letter for letter in letters if letter in "IES"), ""):
                return PythonArguments("", word, found)
            # -c, -m and - end Python's own options
            if word == "-" or word[1 + len(letters) :][:1] in ("c", "m"):
                break
    return PythonArguments()


def _isolating_flag(argv: Sequence[str]) -> str:
    """``-I`` or ``-Es (E)`` if this command starts a Python that does not load the agent."""
    for at, word in enumerate(argv):
        if re.fullmatch(r"python[\d.]*|pypy[\d.]*", os.path.basename(word)):
            _, option, flag = python_arguments(argv[at + 1 :])
            if flag:
                return option if option == f"-{flag}" else f"{option} ({flag})"
    return ""


def _clears_environment(names: Sequence[str]) -> bool:
    return "env" in names and any(
        n in ("-i", "--ignore-environment", "-") for n in names[names.index("env") :]
    )


def shebang(path: str) -> list[str]:
    """The words of a script's shebang line, [] if there is none."""
    try:
        with open(path, "rb") as file:
            line = file.readline(512)
    except OSError:
        return []
    return line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
