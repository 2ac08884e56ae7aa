"""The mark in the environment of every process of a session, by which all of them can be found.

A mark names its tuner, so processes left behind by a killed tuner can be recognized.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
import zlib

from autotune_trials.supervisor.procfs import alive, all_pids, send, stat_of

MARK_VARIABLE = "AUTOTUNE_MARK"
SWEEP_S = 60.0  # at most, until killed processes are gone: a GPU's driver may take a while


def new_mark() -> str:
    """A new session mark: where the tuner runs, its pid and start time, plus a random part."""
    stat = stat_of(os.getpid())
    return f"{_place()}-{os.getpid()}-{stat[2] if stat else 0}-{os.urandom(4).hex()}"


def _place() -> str:
    """A number for this machine and pid namespace: machines may share a temporary directory, and
    number their namespaces alike.
    """
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return str(zlib.crc32(f"{os.uname().nodename} {namespace}".encode()))


def is_stale(mark: str) -> bool:
    """True if the tuner that made ``mark`` is gone; always False for another machine or pid
    namespace (a container).
    """
    found = re.fullmatch(r"(\d+)-(\d+)-(\d+)-[0-9a-f]+", mark)
    if found is None or found.group(1) != _place():
        return False
    stat = stat_of(int(found.group(2)))
    return stat is None or stat[0] in "ZX" or str(stat[2]) != found.group(3)


def is_of_dead_tuner(name: str, prefix: str) -> bool:
    """Whether ``name``, of a directory, is ``<prefix><mark>-…`` with a stale mark."""
    found = re.match(re.escape(prefix) + r"(\d+-\d+-\d+-[0-9a-f]+)-", name)
    return found is not None and is_stale(found.group(1))


def mark_of(pid: int) -> str:
    """The session mark a process was started with, "" if it has none or is not readable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = re.search(rb"(?:^|\0)" + MARK_VARIABLE.encode() + rb"=([^\0]*)", file.read())
    except OSError:
        return ""
    return found.group(1).decode(errors="replace") if found else ""


def marked(mark: str) -> set[int]:
    """Living processes carrying ``mark``, except this one."""
    return {pid for pid in all_pids() if pid != os.getpid() and mark_of(pid) == mark and alive(pid)}


def sweep(mark: str) -> None:
    """Kill every process that carries ``mark``, and wait until they are gone."""
    deadline = time.monotonic() + SWEEP_S
    while left := marked(mark):
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)


def sweep_stale(folders: tuple[str, ...] = ()) -> None:
    """Kill processes left behind when both a tuner and its supervisor were killed.

    Args:
        folders: parents of session socket directories; those of dead tuners
            (``autotune-<mark>-…``) are removed.
    """
    stale = {mark for mark in map(mark_of, all_pids()) if mark and is_stale(mark)}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if is_of_dead_tuner(name, "autotune-"):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    for mark in stale:
        sweep(mark)
