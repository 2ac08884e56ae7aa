"""Packs the folder of a job.yaml for other machines, leaving out what the job does not need.

Not sent: version control, environments, caches and results of earlier runs
(:data:`NEVER`), what ``.gitignore`` and ``.rayignore`` files name, and what
``--exclude`` names, all in .gitignore syntax. Equal content gives an equal archive, so the cluster,
which names archives by their hash, receives it once and unpacks it in one place.
"""

from __future__ import annotations

import json
import os
import stat
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import InputError

LIMIT_MIB = 500  # Ray keeps packages in the head's memory and refuses 512 MiB
NEVER = """
    .git .hg/ .svn/ __pycache__/ *.py[cod] .venv/ venv/ .tox/ node_modules/ .ipynb_checkpoints/
    .mypy_cache/ .pytest_cache/ .ruff_cache/ autotune-runs/ mlruns/ mlartifacts/ mlflow.db* wandb/
    .env .env.* !.env.example .netrc .pypirc .git-credentials .ssh/ .aws/ .kaggle/ id_rsa id_dsa
    id_ecdsa id_ed25519 *.key *.p12 *.pem
""".split()
IGNORE_FILES = (".gitignore", ".rayignore")
# set if this process is itself the entry point of a submitted job
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
SAME_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip file can hold


@dataclass(frozen=True)
class Package:
    root: Path
    files: tuple[str, ...]  # relative to root, sorted; empty folders, too, as name/
    size_bytes: int
    linked_folders: tuple[str, ...] = ()  # not followed, so not included

    @property
    def size_mib(self) -> float:
        return self.size_bytes / 2**20

    def write(self, archive: Path) -> None:
        """Write the archive.

        Raises:
            InputError: a file cannot be read, or has disappeared meanwhile.
        """
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
            for name in self.files:
                path = self.root / name
                try:
                    mode = stat.S_IMODE(path.stat().st_mode)
                    content = b"" if name.endswith("/") else path.read_bytes()
                except OSError as error:
                    raise _unreadable(path, error) from None
                entry = zipfile.ZipInfo(name, SAME_DATE)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = mode << 16
                out.writestr(entry, content)


def survey(root: Path, exclude: Sequence[str] = (), *, gitignore: bool = True) -> Package:
    """The files of ``root`` that would be sent.

    Args:
        exclude: more patterns, relative to ``root``.
        gitignore: whether to leave out what .gitignore files name. (.rayignore files always count.)

    Raises:
        InputError: more than :data:`LIMIT_MIB`, a file that cannot be read, a name that no archive
            can hold, or an invalid pattern.
    """
    top = root.absolute()
    walk = _Walk(top, IGNORE_FILES if gitignore else IGNORE_FILES[1:])
    patterns = [_Patterns(top, _spec([*NEVER, *exclude], "--exclude")), *walk.patterns_above()]
    files: dict[str, int] = {}
    size = 0
    for name, bytes_ in walk.files(top, patterns):
        files[name] = bytes_
        size += bytes_
        if size > 10 * LIMIT_MIB * 2**20:
            break  # a whole data set: enough was seen to say where it is
    if size > LIMIT_MIB * 2**20:
        raise _too_big(root, files, size)
    return Package(root, tuple(sorted(files)), size, tuple(sorted(walk.linked_folders)))


@dataclass(frozen=True)
class _Patterns:
    """Patterns relative to ``base``. Of .gitignore files, the nearest one that names a file
    decides; all others only leave out.
    """

    base: Path
    spec: Any
    git: bool = False

    def says(self, path: Path, is_folder: bool) -> bool | None:
        """Whether to leave out ``path``; None: they do not name it."""
        name = path.relative_to(self.base).as_posix() + "/" * is_folder
        said: bool | None = self.spec.check_file(name).include
        return said


def _left_out(patterns: Sequence[_Patterns], path: Path, is_folder: bool) -> bool:
    """``patterns``: those of nearer folders last."""
    if any(each.says(path, is_folder) for each in patterns if not each.git):
        return True
    said = (each.says(path, is_folder) for each in reversed(patterns) if each.git)
    return bool(next((one for one in said if one is not None), False))


class _Walk:
    """The files below a folder that no pattern leaves out."""

    def __init__(self, root: Path, ignore_files: Sequence[str]) -> None:
        self.root, self.ignore_files = root, ignore_files
        self.linked_folders: list[str] = []

    def files(self, folder: Path, patterns: Sequence[_Patterns]) -> Iterator[tuple[str, int]]:
        """(name relative to the root, bytes) of each file and empty folder.

        ``patterns``: of the folders above.
        """
        patterns = [*patterns, *self._own_patterns(folder)]
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as error:
            raise _unreadable(folder, error) from None
        if not entries and folder != self.root:
            yield folder.relative_to(self.root).as_posix() + "/", 0
        for entry in entries:
            name = Path(entry.path).relative_to(self.root).as_posix()
            is_folder = os.path.isdir(entry.path)  # no error for links in a circle
            if _left_out(patterns, Path(entry.path), is_folder):
                continue
            _check_name(name, self.root)
            if is_folder and entry.is_symlink():
                self.linked_folders.append(name)
            elif is_folder:
                yield from self.files(Path(entry.path), patterns)
            elif (size := _size(entry)) is not None:
                yield name, size

    def patterns_above(self) -> Iterator[_Patterns]:
        """Of the folders above in the same repository; not patterns that match the whole root."""
        folders = [self.root, *self.root.parents]
        top = next((at for at, f in enumerate(folders) if (f / ".git").exists()), 0)
        for folder in reversed(folders[1 : top + 1]):
            yield from (
                each for each in self._own_patterns(folder) if not each.says(self.root, True)
            )

    def _own_patterns(self, folder: Path) -> Iterator[_Patterns]:
        for name in self.ignore_files:
            file = folder / name
            if file.is_file():
                try:
                    text = file.read_text(encoding="utf-8", errors="surrogateescape")
                except OSError as error:
                    raise _unreadable(file, error) from None
                yield _Patterns(folder, _spec(text.splitlines(), str(file)), name == ".gitignore")


def _size(entry: os.DirEntry[str]) -> int | None:
    """In bytes; None: a socket, a pipe or a broken link, which are not sent."""
    try:
        return entry.stat().st_size if entry.is_file() else None
    except OSError as error:
        raise _unreadable(Path(entry.path), error) from None


def _spec(patterns: Sequence[str], where: str) -> Any:
    import pathspec

    try:
        return pathspec.GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise InputError(
            f"not a pattern: {error}", where=where, expected="patterns as in .gitignore"
        ) from None


def _check_name(name: str, root: Path) -> None:
    if "\\" in name or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        found = (
            "this name cannot be sent: Ray skips names with a backslash, and control characters do"
            " not arrive"
        )
        raise InputError(
            found,
            where=repr(str(root / name)),
            expected="names without backslashes and control characters",
            remedy="rename it, or --exclude it",
        )


def _unreadable(path: Path, error: OSError) -> InputError:
    found = f"cannot be read: {error.strerror or error}"
    return InputError(
        found,
        where=str(path),
        expected="files that can be sent",
        remedy="--exclude what the job does not need",
    )


def _too_big(root: Path, files: dict[str, int], size: int) -> InputError:
    fill: Counter[str] = Counter()
    for name, bytes_ in files.items():
        fill[name.partition("/")[0] + "/" * ("/" in name)] += bytes_
    most = ", ".join(f"{name} {bytes_ / 2**20:,.0f} MiB" for name, bytes_ in fill.most_common(3))
    more = "more than " if size > 10 * LIMIT_MIB * 2**20 else ""
    return InputError(
        f"the folder has {more}{size / 2**20:,.0f} MiB to send (most of it: {most})",
        where=str(root),
        expected=f"at most {LIMIT_MIB} MiB before compression",
        remedy=(
            "leave out what the job does not need there with --exclude PATTERN or .rayignore; keep"
            " data on storage the cluster can read; or send nothing, with --no-ship"
        ),
    )


def shipped_with_job() -> bool:
    """Whether Ray has brought the job's folder here, as that of a submitted job."""
    try:
        config = json.loads(os.environ.get(JOB_CONFIG) or "{}")
    except ValueError:
        return False
    environment = config.get("runtime_env") if isinstance(config, Mapping) else None
    return bool(isinstance(environment, Mapping) and environment.get("working_dir"))
