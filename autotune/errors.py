"""Every error a user can see, and its exit code.

    AutotuneError
    ├── InputError          2   job.yaml, flags, paths, tracking URI: what, where, expected, what to do
    ├── BaselineError       3   the job itself fails before anything was changed
    ├── HookError           4   the agent cannot hook into the job, or sees no optimizer step
    ├── ClusterLost         5   the cluster went away in the middle of a run: saved, rerun to resume
    └── Interrupted       130   Ctrl-C or SIGTERM: saved, rerun to resume

Exit code 0 is a finished run, whatever its verdict; 1 is a bug in autotune.
"""

from __future__ import annotations

import re


class AutotuneError(Exception):
    """An error with an exit code and advice.

    Args:
        found: what is wrong, in one sentence.
        where: file and line, flag or path.
        expected: what would have been right.
        remedy: what to do now.
    """

    exit_code = 1

    def __init__(
        self, found: str, *, where: str = "", expected: str = "", remedy: str = ""
    ) -> None:
        super().__init__(found)
        self.found, self.where, self.expected, self.remedy = found, where, expected, remedy

    def __str__(self) -> str:
        head = f"{self.where}: {self.found}" if self.where else self.found
        lines = [head]
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.remedy:
            lines.append(f"  what to do: {self.remedy}")
        return "\n".join(lines)


class InputError(AutotuneError):
    exit_code = 2


class BaselineError(AutotuneError):
    exit_code = 3


class HookError(AutotuneError):
    exit_code = 4


class ClusterLost(AutotuneError):
    exit_code = 5


class Interrupted(AutotuneError):
    exit_code = 130


def request_failure(error: BaseException) -> str:
    """Why a request failed, in a few words: HTTP's libraries wrap the reason several times."""
    text = " ".join(str(error).split()) or type(error).__name__
    for pattern in (
        r"\[Errno -?\d+\] ([^'\")]+)",
        r"(certificate verify failed[^()]*)",
        r"((?:Read|Connect\w*) .*?timed? ?out)",
        r"(timed out)",
        r"Caused by (.*)",
    ):
        if match := re.search(pattern, text, re.IGNORECASE):
            return match[1].strip()
    return text


def last_line(error: BaseException) -> str:
    """The last line of an error's text, which may be a whole traceback of another process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" .")]
    return lines[-1] if lines else type(error).__name__
