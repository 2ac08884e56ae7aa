"""Gets the job's directory to the nodes: by Ray's runtime environment or a shared file system."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.executors.side_effects import is_one_of, open_files
from autotune.job.package import shipped_with_job, survey

REMEDY = (
    "list what the nodes do not need in .rayignore, or put the directory on a shared file system"
    " and set executor: {ray: {workdir: shared}}"
)


def runtime_environment(
    workdir: Path, run_dir: Path, archive: Path, warn: Callable[[str], None] = print
) -> dict[str, Any]:
    """What :func:`ray.init` needs so that ``workdir`` gets to every node.

    {}: it is there already, shipped with a submitted job.

    Args:
        archive: the file to write it to, which Ray uploads.

    Raises:
        InputError: it cannot be shipped.
    """
    from pathspec.patterns.gitwildmatch import GitWildMatchPattern

    if shipped_with_job():
        return {}
    own = run_dir.is_relative_to(workdir) and run_dir != workdir
    name = GitWildMatchPattern.escape(str(run_dir.relative_to(workdir))) if own else ""
    try:
        package = survey(workdir, [f"/{name}/"] if own else [])
        package.write(archive)
    except InputError as error:
        if error.remedy:  # names options that only `autotune submit` has
            error.remedy = REMEDY
        raise
    for name in package.linked_folders:
        warn(f"not shipped to the nodes: {workdir / name}, because it is a link to a folder")
    return {"working_dir": str(archive)}


def inside_shipped(workdir: Path) -> str:
    """Path of the job's directory within what is shipped.

    Raises:
        InputError: it is not part of it.
    """
    if not shipped_with_job():
        return "."
    try:
        return str(workdir.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        raise InputError(
            "the job's directory is not part of what was submitted, so the nodes do not have it",
            where=str(workdir),
            expected=f"a directory below {Path.cwd()}",
            remedy="submit from a directory that contains it, or set workdir: shared",
        ) from None


def enter_again(directory: Path) -> None:
    """Change to ``directory``, where this process started as a submitted job, by its name.

    Ray unpacks a submission again for each of its nodes. Several nodes on one machine share the
    place for that: the directory this process was in is then gone, and another one has its name.
    """
    if shipped_with_job():
        os.chdir(directory)


def files_in(workdir: Path) -> dict[str, tuple[int, int]] | None:
    """Name -> size and time of the files directly in ``workdir``, which tell directories of the
    same name apart. Hidden files and our own output change meanwhile, and are left out. None: it
    cannot be read.
    """
    try:
        return {
            entry.name: (entry.stat().st_size, int(entry.stat().st_mtime))
            for entry in os.scandir(workdir)
            if entry.is_file() and not entry.name.startswith((".", "mlflow"))
        }
    except OSError:
        return None


def same_files(workdir: Path, there: Mapping[str, tuple[int, int]] | None) -> bool:
    """Whether ``there``, the files in a directory of this name on another node, are those here.
    Files that this process has open do not count: its own output may be redirected to one.
    """
    here, mine = files_in(workdir), open_files()
    if here is None or there is None:
        return False
    return all(
        here.get(name) == there.get(name) or is_one_of(workdir / name, mine)
        for name in here.keys() | there.keys()
    )
