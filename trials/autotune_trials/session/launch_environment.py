"""What a session's command is started with: its environment, its words, and a place for the socket."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune_trials.file_restore.scope import PathScope
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SESSION_VARIABLE
from autotune_trials.supervisor.process_tags import MARK_VARIABLE

INJECT = Path(__file__).resolve().parents[1] / "agent" / "bootstrap" / "inject"
SOCKET_PATH_BYTES = 100  # sun_path holds 108 on Linux, 104 elsewhere
# What libraries keep between runs: shared with other programs, and the same for every trial.
LIBRARY_VARIABLES = """
    HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE TRANSFORMERS_CACHE TORCH_HOME TORCHINDUCTOR_CACHE_DIR
    TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR NUMBA_CACHE_DIR CUDA_CACHE_PATH MPLCONFIGDIR NLTK_DATA
""".split()
LIBRARIES = ("~/.triton", "~/.nv", "/dev", "/proc", "/sys", "/run")
CACHE_FOLDERS = ("huggingface", "torch")  # of libraries, where caches are kept
# What other programs keep there, too: a checkpoint there is the job's.
CACHES = ("~/.cache", "~/.config", "~/.local")
# Runs of a tracking server that the trial's own store does not know.
FOREIGN_RUNS = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "WANDB_RUN_ID")


def environment(
    paths: SessionPaths,
    mark: str,
    env: Mapping[str, str],
    overrides: Mapping[str, str],
    cache_dir: Path | None,
) -> dict[str, str]:
    """The command's variables. A later line wins:

    this process's environment
    what keeps the job's side effects harmless: W&B offline, W&B and MLflow to the trial
    directory
    env         the user's, from job.yaml
    overrides   those of process knobs
    what brings the agent in
    """
    found = {k: v for k, v in os.environ.items() if k not in FOREIGN_RUNS}
    found |= {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(paths.out),
        "MLFLOW_TRACKING_URI": (paths.out / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow 3.17 refuses a folder without it
        "PYTHONUNBUFFERED": "1",  # what a killed job printed last must be in the log
    }
    if cache_dir is not None:
        found["TORCHINDUCTOR_CACHE_DIR"] = str(cache_dir)
    found |= {**env, **overrides}
    path = found.get("PYTHONPATH", "")  # an empty entry would mean the current directory
    found["PYTHONPATH"] = f"{INJECT}{os.pathsep}{path}" if path else str(INJECT)
    found[SESSION_VARIABLE] = str(paths.config)
    found[MARK_VARIABLE] = mark
    return found


def path_scope(
    workdir: Path, own: Sequence[Path], env: Mapping[str, str], keep: Sequence[str]
) -> PathScope:
    """What of the job's writing is put back after a session: see :class:`PathScope`.

    Args:
        own: the tuner's directories.
        env: the command's variables.
        keep: patterns of the user's, relative to ``workdir``.
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
        tuple(map(os.path.realpath, own)),
        (),
        tuple(temporary),
        tuple(keep),
        tuple(theirs),
    )
    return found.with_caches(*folders)


def filled(text: str, fill: Mapping[str, str]) -> str:
    """``text`` with ``{name}`` replaced, for the names in ``fill`` only: it may well hold other
    braces (JSON, Hydra, ``${x}``).
    """
    return re.sub(r"(?<!\$)\{(\w+)\}", lambda found: fill.get(found[1], found[0]), text)


def filled_command(argv: Sequence[str], fill: Mapping[str, str]) -> list[str]:
    """A line for a shell (``sh -c LINE``) gets its values quoted: a directory's name may hold
    anything.
    """
    shell = (
        len(argv) > 2
        and argv[1] == "-c"
        and os.path.basename(argv[0]) in ("sh", "bash", "dash", "zsh", "ksh")
    )
    quoted = {name: shlex.quote(value) for name, value in fill.items()}
    return [filled(word, quoted if shell and at == 2 else fill) for at, word in enumerate(argv)]


def socket_directory(mark: str) -> str:
    """A new directory only this user can enter, in a place whose name is short enough for a
    socket's address.

    Raises:
        OSError: no such place can be written to.
    """
    error: OSError = FileNotFoundError("no directory for sockets")
    for folder in socket_folders():
        if len(os.fsencode(folder)) + len(mark) + 24 > SOCKET_PATH_BYTES:
            continue
        try:
            return tempfile.mkdtemp(prefix=f"autotune-{mark}-", dir=folder)
        except OSError as problem:
            error = problem
    raise error


def socket_folders() -> tuple[str, ...]:
    """Where sockets may be made, best first; what dead tuners left there is removed by
    ``process_tags.sweep_stale``.
    """
    return tuple(dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]))
