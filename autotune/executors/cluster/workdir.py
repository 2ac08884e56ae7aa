"""Gets the job's directory to the nodes: by Ray's runtime environment or a shared file system."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.job.sending import NEVER

HOPELESS_BYTES = 4 << 30  # Ray accepts 500 MiB, compressed
# set if this process is itself the entry point of a submitted job
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def runtime_environment(workdir: Path, run_dir: Path) -> dict[str, Any]:
    """What :func:`ray.init` needs so that ``workdir`` gets to every node.

    {}: it is there already, shipped with a submitted job.

    Raises:
        InputError: it is far too large.
    """
    if shipped_with_job():
        return {}
    check_size(workdir)
    excludes = list(NEVER)
    if run_dir.is_relative_to(workdir) and run_dir != workdir:
        excludes.append(f"/{run_dir.relative_to(workdir)}/")
    return {"working_dir": str(workdir), "excludes": excludes}


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


def shipped_with_job() -> bool:
    try:
        config = json.loads(os.environ.get(JOB_CONFIG) or "{}")
    except ValueError:
        return False
    environment = config.get("runtime_env") if isinstance(config, Mapping) else None
    return bool(isinstance(environment, Mapping) and environment.get("working_dir"))


def enter_again(directory: Path) -> None:
    """Change to ``directory``, where this process started as a submitted job, by its name.

    Ray unpacks a submission again for each of its nodes. Several nodes on one machine share the
    place for that: the directory this process was in is then gone, and another one has its name.
    """
    if shipped_with_job():
        os.chdir(directory)


def digest_of(workdir: Path) -> str:
    """Tells directories of the same name apart: a digest of the files directly in it.

    Names, sizes and times count. Hidden files and our own output change meanwhile, and do not. "":
    it cannot be read.
    """
    try:
        entries = sorted(
            (entry.name, entry.stat().st_size, int(entry.stat().st_mtime))
            for entry in os.scandir(workdir)
            if entry.is_file() and not entry.name.startswith((".", "mlflow"))
        )
    except OSError:
        return ""
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def too_large(error: Exception, workdir: Path) -> InputError | None:
    """Ray's refusal to ship a directory, in words for the user; None if it is another error."""
    found = re.search(
        r"Package size \([^)]*\) exceeds the maximum size of [\d.]+\s?\w+", str(error)
    )
    return _cannot_be_shipped(found[0], workdir) if found else None


def check_size(workdir: Path, most_bytes: int = HOPELESS_BYTES) -> None:
    """Refuse a directory that is far too large: Ray would pack it before it looks at the size.

    Not checked if .gitignore or .rayignore may leave files out.

    Raises:
        InputError
    """
    if any((workdir / name).exists() for name in (".gitignore", ".rayignore")):
        return
    total, hidden = 0, {pattern.strip("/") for pattern in NEVER if pattern.endswith("/")}
    for folder, folders, names in os.walk(workdir):
        folders[:] = [name for name in folders if name not in hidden]
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
        if total > most_bytes:
            raise _cannot_be_shipped(f"it holds more than {most_bytes / 2**30:.0f} GiB", workdir)


def _cannot_be_shipped(why: str, workdir: Path) -> InputError:
    return InputError(
        f"the job's directory cannot be shipped to the nodes: {why}",
        where=str(workdir),
        expected=(
            "at most 500 MiB, with only code and configuration; keep data on storage that the nodes"
            " can reach"
        ),
        remedy=(
            "list what the nodes do not need in .gitignore or .rayignore, or put the directory on a"
            " shared file system and set executor: {ray: {workdir: shared}}"
        ),
    )
