"""The ledger of a session: the directory in which the job's processes record what they do to files.

<session>/written/places   the paths in scope
<session>/written/kept/    originals (backups.py)
<session>/written/log      what was done (log.py)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune_trials.file_restore.log import SHARED
from autotune_trials.file_restore.scope import PathScope
from autotune_trials.protocol.failures import SessionFailed

# Library caches: kept between runs, shared with other programs, the same for every trial.
LIBRARY_VARIABLES = """
    HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE TRANSFORMERS_CACHE TORCH_HOME TORCHINDUCTOR_CACHE_DIR
    TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR NUMBA_CACHE_DIR CUDA_CACHE_PATH MPLCONFIGDIR NLTK_DATA
""".split()
LIBRARIES = ("~/.triton", "~/.nv", "/dev", "/proc", "/sys", "/run")
CACHE_FOLDERS = ("huggingface", "torch")  # library caches in the cache directory
# Shared with other programs; checkpoints written there belong to the job.
CACHES = ("~/.cache", "~/.config", "~/.local")


@dataclass(frozen=True)
class RestoreOptions:
    """What is undone when a session ends: all that the job wrote, but for these paths."""

    keep: Sequence[str] = ()  # the user's patterns, relative to the working directory
    own: Sequence[Path] = ()  # the tuner's directories


class Ledger:
    """``scope``: the paths recorded; None: there is no ledger, and files the job writes stay."""

    def __init__(self, directory: Path, scope: PathScope | None) -> None:
        self.scope = scope
        self._directory = directory
        self._owner: Ledger | None = None  # the ledger used instead of this one
        self._sharer: Ledger | None = None  # uses this one

    def share(self, owner: Ledger) -> None:
        """Use ``owner`` instead, whose session restores what both have changed once both have ended.

        Call before either of them starts, and close the session of ``owner`` last.
        """
        self._owner, owner._sharer = owner, self
        if owner.scope is not None and self.scope is not None:
            owner.scope = owner.scope.joined(self.scope)

    def create(self) -> None:
        """Raises:
        SessionFailed: the ledger of another session cannot be used.
        OSError: the directory cannot be written.
        """
        if self.scope is None:
            return
        if self._owner is not None:
            try:
                self._directory.symlink_to(self._owner._directory)
            except OSError as error:  # a file system without them
                raise SessionFailed(
                    "agent", f"{self._directory} cannot be linked: {error}"
                ) from None
            return
        (self._directory / "kept").mkdir(parents=True, exist_ok=True)
        text = self.scope.dump()
        (self._directory / "places").write_text(text, encoding="utf-8", errors="surrogateescape")
        if self._sharer is not None:
            (self._directory / SHARED).write_text(str(self._sharer._directory), encoding="utf-8")


def path_scope(workdir: Path, env: Mapping[str, str], options: RestoreOptions) -> PathScope:
    """The paths at which the job's writes are undone after a session: see :class:`PathScope`.

    ``workdir`` and ``env`` are those of the command.
    """
    caches = [*CACHES, *([env["XDG_CACHE_HOME"]] if env.get("XDG_CACHE_HOME") else [])]
    libraries = [*(env[name] for name in LIBRARY_VARIABLES if env.get(name)), *LIBRARIES]
    libraries += [
        os.path.join(env.get("XDG_CACHE_HOME") or "~/.cache", name) for name in CACHE_FOLDERS
    ]
    temporary = dict.fromkeys(
        os.path.realpath(f)
        for f in (env.get("TMPDIR") or tempfile.gettempdir(), "/tmp", "/var/tmp")
    )
    folders, theirs = (
        dict.fromkeys(os.path.realpath(os.path.join(workdir, os.path.expanduser(f))) for f in group)
        for group in (caches, libraries)
    )
    found = PathScope(
        os.path.realpath(workdir),
        tuple(map(os.path.realpath, options.own)),
        (),
        tuple(temporary),
        tuple(options.keep),
        tuple(theirs),
    )
    return found.with_caches(*folders)
