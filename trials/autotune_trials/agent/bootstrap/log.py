"""agent.log and the markers: what the agent writes to the session directory. Never raises."""

from __future__ import annotations

import os
import sys
import traceback

_left: set[tuple[int, str]] = set()


def directory() -> str:
    """The session directory, or "" outside a session."""
    return os.path.dirname(os.environ.get("AUTOTUNE_SESSION", ""))


def write(text: str) -> None:
    """Append ``text`` to agent.log, marked with the process id."""
    if not directory():
        return
    try:
        with open(os.path.join(directory(), "agent.log"), "a", encoding="utf-8") as log:
            log.write(f"[{os.getpid()}] {text}\n")
    except OSError:
        pass  # the tuner reports a full disk; the job goes on


def write_exception(where: str) -> str:
    """Log the exception being handled; returns its traceback as text."""
    text = traceback.format_exc()
    write(f"{where}\n{text}")
    return text


def reason(where: str) -> str:
    """Log the exception being handled; returns its last line."""
    return write_exception(where).strip().splitlines()[-1]


def tell(text: str) -> None:
    """Under ``autotune launch``, where nobody reads the log, print ``text`` on standard error."""
    try:
        if launched():
            print(f"autotune: {text}", file=sys.stderr)
    except Exception:  # the job has closed or replaced stderr
        pass


def launched() -> bool:
    """Whether this is ``autotune launch``. Also True without a session file: a tuner keeps its own."""
    import json

    try:
        with open(os.environ["AUTOTUNE_SESSION"], encoding="utf-8") as file:
            return bool(json.load(file)["mode"] == "launch")
    except Exception:  # no file, or not one of ours: see above
        return True


def leave_marker(what: str) -> None:
    """Create the empty file that says this process reached ``what`` (once per process)."""
    key = (os.getpid(), what)
    if key in _left or not directory():
        return
    _left.add(key)
    try:
        folder = os.path.join(directory(), "markers")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{what}-{os.getpid()}"), "a"):
            pass
    except OSError:
        pass
