"""How a session's command is started: environment, arguments, and a directory for the socket."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune_trials.file_restore.scope import PathScope
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SESSION_VARIABLE
from autotune_trials.supervisor.process_tags import MARK_VARIABLE

INJECT = Path(__file__).resolve().parents[1] / "agent" / "bootstrap" / "inject"
SOCKET_PATH_BYTES = 100  # sun_path holds 108 on Linux, 104 elsewhere
# Library caches: kept between runs, shared with other programs, the same for every trial.
LIBRARY_VARIABLES = """
    HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE TRANSFORMERS_CACHE TORCH_HOME TORCHINDUCTOR_CACHE_DIR
    TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR NUMBA_CACHE_DIR CUDA_CACHE_PATH MPLCONFIGDIR NLTK_DATA
""".split()
LIBRARIES = ("~/.triton", "~/.nv", "/dev", "/proc", "/sys", "/run")
CACHE_FOLDERS = ("huggingface", "torch")  # library caches in the cache directory
# Shared with other programs; checkpoints written there belong to the job.
CACHES = ("~/.cache", "~/.config", "~/.local")
# They name runs on a tracking server, which do not exist in the trial's own store.
FOREIGN_RUNS = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "WANDB_RUN_ID")


def environment(
    paths: SessionPaths,
    mark: str,
    env: Mapping[str, str],
    overrides: Mapping[str, str],
    cache_dir: Path | None,
) -> dict[str, str]:
    """The command's environment variables. Later lines win:

    this process's environment
    variables that keep side effects harmless: W&B offline, W&B and MLflow in the trial directory
    env         the user's, from job.yaml
    overrides   those of process knobs
    variables that load the agent
    """
    found = {k: v for k, v in os.environ.items() if k not in FOREIGN_RUNS}
    found |= {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(paths.out),
        "MLFLOW_TRACKING_URI": (paths.out / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow 3.17 refuses a folder without it
        "PYTHONUNBUFFERED": "1",  # a killed job's last output must reach the log
    }
    if cache_dir is not None:
        found["TORCHINDUCTOR_CACHE_DIR"] = str(cache_dir)
    found |= {**env, **overrides}
    path = found.get("PYTHONPATH", "")  # no empty entry: it would mean the current directory
    found["PYTHONPATH"] = f"{INJECT}{os.pathsep}{path}" if path else str(INJECT)
    found[SESSION_VARIABLE] = str(paths.config)
    found[MARK_VARIABLE] = mark
    return found


def path_scope(
    workdir: Path, own: Sequence[Path], env: Mapping[str, str], keep: Sequence[str]
) -> PathScope:
    """The paths at which the job's writes are undone after a session: see :class:`PathScope`.

    Args:
        own: the tuner's directories.
        env: the command's environment variables.
        keep: the user's patterns, relative to ``workdir``.
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


def socket_directory(mark: str) -> str:
    """Create a directory only this user can enter, with a path short enough for a socket address.

    Raises:
        OSError: no suitable place is writable.
    """
    error: OSError = FileNotFoundError("no directory with a path short enough for a socket")
    for folder in socket_folders():
        if len(os.fsencode(folder)) + len(mark) + 24 > SOCKET_PATH_BYTES:
            continue
        try:
            return tempfile.mkdtemp(prefix=f"autotune-{mark}-", dir=folder)
        except OSError as problem:
            error = problem
    raise error


def socket_folders() -> tuple[str, ...]:
    """Directories for sockets, best first; ``process_tags.sweep_stale`` removes leftovers of dead
    tuners.
    """
    return tuple(dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]))
