"""The directories that runs, profiles and judgements are recorded in: whether one can be, what one
holds and how far that got, and moving one aside.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from autotune.errors import InputError
from autotune.journal import Journal

RUNS = Path("autotune-runs")  # in the current directory
PROFILE_SUMMARY = "summary.json"  # only in directories that `autotune profile` made
MIN_FREE_MIB = 64  # journal, logs and two traces of a small run
RESULT = "result.json"
JOURNAL = "journal.jsonl"
JUDGEMENT = "judgement.json"
OUTPUT_FILES = (
    RESULT,
    JUDGEMENT,
    "tuned.yaml",
    "report.html",
    "loss.png",
    "waterfall.png",
    "findings.json",
    "history.json",
    "sessions",
    "records",
    "traces",
)
DirectoryKind = Literal["run", "profile", "judgement", ""]
NOT_TUNED = {
    "profile": "this is a profile; it has no tuned settings",
    "judgement": "this is a judgement; it has no tuned settings",
}
# the file written last, and the one to look at
PAGES = {"profile": (PROFILE_SUMMARY, "profile.html"), "judgement": (JUDGEMENT, JUDGEMENT)}


def check_run_dir(path: Path, option: str = "--run-dir") -> None:
    """Check whether a run can be recorded in ``path``. Creates nothing that stays.

    Args:
        option: the command's option for choosing another directory.

    Raises:
        InputError: it is a file, cannot be written to, or its disk is full.
    """
    place, remedy = path.absolute(), f"choose another with {option}"
    if os.path.exists(place) and not os.path.isdir(place):
        raise InputError(
            "it is a file", where=str(path), expected="a directory for the run", remedy=remedy
        )
    while not os.path.exists(place):  # Path.exists() raises where a folder may not be searched
        place = place.parent
    if not os.path.isdir(place):
        raise InputError(
            f"{place} is a file", where=str(path), expected="a directory for the run", remedy=remedy
        )
    try:
        # Checking permissions is not enough: root has them even where nothing can be written.
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"autotune")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(path, place, 0, option) from None
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot write in {place}: {reason}",
            where=str(path),
            expected="a directory to write to",
            remedy=remedy,
        ) from None
    free_mib = shutil.disk_usage(place).free / 2**20
    if free_mib < MIN_FREE_MIB:
        raise _disk_full(path, place, free_mib, option)


def _disk_full(path: Path, place: Path, free_mib: float, option: str) -> InputError:
    found = f"{free_mib:.0f} MiB free on the disk of {place}"
    return InputError(
        found,
        where=str(path),
        expected=f"at least {MIN_FREE_MIB} MiB",
        remedy=f"free some space, or choose another with {option}",
    )


def directory_kind(directory: Path) -> DirectoryKind:
    """What was recorded in ``directory``, finished or not; "": nothing of ours."""
    # not Path.is_file(), which raises where a folder may not be searched
    if os.path.isfile(directory / PROFILE_SUMMARY):
        return "profile"
    if os.path.isfile(directory / JUDGEMENT):
        return "judgement"
    if not os.path.isfile(directory / JOURNAL):
        return "run" if os.path.isfile(directory / RESULT) else ""
    return _kind_of(next(_entries(directory / JOURNAL), None)) or "run"


def _kind_of(first: Mapping[str, Any] | None) -> DirectoryKind:
    """What a journal with this ``first`` entry belongs to; "" if it has none yet."""
    if first is None:
        return ""
    if first["kind"] == "study":
        return "run" if "name" in first["data"] else "judgement"
    return "profile"


def find_directory(run: str | Path, file: str) -> Path | None:
    """The directory that ``run`` means: a path, or a name under ``autotune-runs/``; None: neither.

    Of two, the one with ``file`` in it, else the one with a run: a job's folder may have its name.
    """
    places = [d for d in (Path(run), RUNS / run) if os.path.isdir(d)]
    return max(
        places,
        key=lambda d: 2 if os.path.isfile(d / file) else bool(directory_kind(d)),
        default=None,
    )


def find_result(run: str) -> Path:
    """The result.json that ``run`` means.

    Args:
        run: a run's directory, its name under ``autotune-runs/``, or a result.json.

    Raises:
        InputError: there is no such run, or it has no result yet; then it says how far the run got.
    """
    given = Path(run)
    if os.path.isfile(given):
        return given
    directory = find_directory(run, RESULT)
    if directory is None:
        raise no_run("there is no such run", run)
    if os.path.isfile(directory / RESULT):
        return directory / RESULT
    refuse_untuned(directory, "a run's directory")
    if not directory_kind(directory):
        raise no_run("there is no run in this directory", run)
    raise InputError(
        f"this run has no result yet: {progress_words(directory / JOURNAL)}",
        where=str(directory),
        expected=f"{RESULT}, which a run writes at its end",
        remedy=(
            "if it is not running now, `autotune run JOB.yaml --run-dir"
            f" {shlex.quote(str(directory))}` with its job file continues where it stopped"
        ),
    )


def refuse_untuned(directory: Path, expected: str) -> None:
    """Refuse a directory that holds a profile or a judgement.

    Raises:
        InputError: ``directory`` does.
    """
    it = directory_kind(directory)
    if it in NOT_TUNED:
        last, page = PAGES[it]
        made = f"it is in {directory / page}; " if (directory / last).is_file() else ""
        raise InputError(
            NOT_TUNED[it],
            where=str(directory),
            expected=expected,
            remedy=f"{made}`autotune run JOB.yaml` tunes the job",
        )


def progress_words(journal: Path) -> str:
    """How far a run's journal got, in words. Reads without the lock: the run may be active."""
    from autotune.words import duration_words, plural

    kinds: dict[str, int] = {}
    elapsed_s = 0.0
    for entry in _entries(journal):
        kinds[entry["kind"]] = kinds.get(entry["kind"], 0) + 1
        elapsed_s = float(entry["elapsed_s"])
    if "observation" not in kinds:
        return "the job has not been fully observed yet"
    said = f"the job was observed and {plural(kinds.get('trial', 0), 'trial')} finished"
    if "search-done" in kinds:
        said += ", finalists are being confirmed in fresh processes"
    return f"{said}, after {duration_words(elapsed_s)}"


def move_aside(directory: Path, option: str = "--run-dir") -> None:
    """Rename an earlier command's directory to the first free ``<name>.1``, ``.2`` …

    Nothing is deleted.

    Args:
        option: the command's option for choosing another directory.

    Raises:
        InputError: the run is still active, what its last trial changed cannot be restored, or the
            directory is not ours.
    """
    from autotune.executors.side_effects import restore_leftovers

    if not directory.exists() or not any(directory.iterdir()):
        return
    if not directory_kind(directory):
        raise InputError(
            "it is neither empty nor a run's directory",
            where=str(directory),
            expected="an empty directory, a new one, or one of an earlier run",
            remedy=f"choose another with {option}",
        )
    if (directory / JOURNAL).exists():
        with closing(Journal(directory / JOURNAL, lambda before: before)):
            # a judgement keeps each side's sessions in a directory of its own
            for place in (directory, *(found.parent for found in directory.glob("*/sessions"))):
                restore_leftovers(place)
    number = 1
    while (target := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    try:
        directory.rename(target)
    except OSError as error:
        raise InputError(
            f"it cannot be renamed to {target.name}: {error.strerror}",
            where=str(directory),
            expected="a directory inside one that can be written to",
            remedy=f"choose another with {option}",
        ) from None


def require_run_directory(directory: Path, kind: DirectoryKind) -> None:
    """Refuse a directory in which a run would overwrite the user's own files, or read the records
    of another command.

    Args:
        kind: what the command would write there.

    Raises:
        InputError: there is no run in it, but a file with the name of a run's; or it is of another
            kind.
    """
    foreign = [name for name in OUTPUT_FILES if (directory / name).exists()]
    if foreign and not (directory / JOURNAL).exists():
        raise InputError(
            f"it is no run's directory, and a run would overwrite its {foreign[0]}",
            where=str(directory),
            expected="an empty directory, a new one, or one of an earlier run",
            remedy="choose another with --run-dir",
        )
    begun = (directory / JOURNAL).exists()
    found = _kind_of(next(_entries(directory / JOURNAL), None)) if begun else ""
    if found not in ("", kind):
        raise InputError(
            f"it is the directory of a {found}",
            where=str(directory),
            expected=f"an empty directory, a new one, or one of an earlier {kind}",
            remedy="choose another with --run-dir; --fresh moves this one aside",
        )


def require_outside_workdir(directory: Path, workdir: Path, option: str = "--run-dir") -> None:
    """Refuse a run directory that holds the job's own directory.

    What trials write in a run directory is the run's: it is not put back, and ``--fresh`` moves it.

    Raises:
        InputError: ``workdir`` is ``directory``, or below it.
    """
    if Path(os.path.realpath(workdir)).is_relative_to(os.path.realpath(directory)):
        raise InputError(
            "it contains the job's working directory",
            where=str(directory),
            expected="a directory of its own for the run",
            remedy=f"choose another with {option}; one below the working directory is fine",
        )


def no_run(found: str, run: str, file: str = RESULT) -> InputError:
    """The error for a ``run`` that does not exist; it lists those that do."""
    names = sorted(
        p.parent.name for p in RUNS.glob(f"*/{JOURNAL}") if directory_kind(p.parent) == "run"
    )
    here = f"runs here: {', '.join(names[:10])}{' …' if len(names) > 10 else ''}"
    return InputError(
        found,
        where=run,
        expected=f"a run's directory, its name under {RUNS}/, or a {file}",
        remedy=here if names else "`autotune run job.yaml` creates one",
    )


def _entries(journal: Path) -> Iterator[dict[str, Any]]:
    """Read the journal without its lock, up to the first damaged line."""
    with open(journal, "rb") as file:
        for line in file:
            try:
                entry = json.loads(line)
                entry["kind"], entry["elapsed_s"], entry["data"]
            except (ValueError, TypeError, KeyError):
                return  # the torn last line of a killed run
            yield entry
