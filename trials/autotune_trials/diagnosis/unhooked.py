"""Why no optimizer step of a command was ever seen, and what to do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autotune_trials.api import MARKING
from autotune_trials.diagnosis.classify import Diagnosis, log_tail, markers_of, read_tail
from autotune_trials.paths import MARKERS, SessionPaths

DETACHING = "sudo su docker podman apptainer singularity ssh kubectl srun sbatch".split()
_CAUSES = {
    "python": (
        "Python ran, but never imported torch",
        (
            "Only PyTorch jobs can be tuned. If another program does the training, give that one as"
            " the command."
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


def explain(argv: Sequence[str], paths: SessionPaths, happened: str) -> Diagnosis:
    """Judge by the last marker that the command left before ``happened``."""
    markers = markers_of(paths)
    furthest = next((m for m in reversed(MARKERS) if m in markers and m != "loader"), "")
    cause, remedy = _CAUSES.get(furthest, ("", ""))
    if not furthest:
        cause, remedy = _why_no_python(argv)
    text = f"{happened}, and no optimizer step was seen: {cause}.\n{remedy}"
    trouble = read_tail(paths.agent_log).strip()
    if trouble:
        text += f"\nagent.log ends with: {trouble.splitlines()[-1][:300]}"
    return Diagnosis("unhooked", text, log_tail=log_tail(paths))


def _why_no_python(argv: Sequence[str]) -> tuple[str, str]:
    """Cause and remedy when no Python process of the command loaded the agent."""
    flag = _isolating_flag(argv)
    if flag:
        return (
            (
                f"{flag} makes Python ignore PYTHONPATH or sitecustomize, which autotune uses to"
                " load its agent"
            ),
            f"Remove {flag.split()[0]} from the command.",
        )
    names = [os.path.basename(word) for word in argv]
    detaching = next((n for n in names if n in DETACHING), "")
    if detaching:
        return (
            (
                f"{detaching} starts the job without the environment variables that load"
                " autotune's agent"
            ),
            f"Tune the command that {detaching} runs, where it runs.",
        )
    return (
        (
            "no Python process of the command loaded the agent: the command is not a Python"
            " program, starts Python with -I, -E or -S or without its environment, or continues in"
            " the background"
        ),
        "Give the training command itself, in the foreground.",
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
