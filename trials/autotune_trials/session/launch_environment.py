"""How a session's command is started: arguments, environment, and a directory for the socket."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune_spaces.shell_line import filled, filled_command
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SESSION_VARIABLE
from autotune_trials.supervisor.process_tags import MARK_VARIABLE

INJECT = Path(__file__).resolve().parents[1] / "agent" / "bootstrap" / "inject"
SOCKET_PATH_BYTES = 100  # sun_path holds 108 on Linux, 104 elsewhere
# They name runs on a tracking server, which do not exist in the trial's own store.
FOREIGN_RUNS = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "WANDB_RUN_ID")


@dataclass(frozen=True)
class Command:
    """A command of the user, or one wrapped around it.

    ``argv`` and the values of ``env`` may have ``{trial_dir}`` and the keys of ``fill`` in braces.
    """

    argv: Sequence[str]
    workdir: Path
    env: Mapping[str, str]  # the user's variables, from job.yaml; in a session, all
    overrides: Mapping[str, str] = field(default_factory=dict)  # variables of process knobs
    fill: Mapping[str, str] = field(default_factory=dict)
    cache_dir: Path | None = None  # for compiled kernels, shared by the sessions of a run
    secrets: Sequence[str] = ()  # texts to mask in the logs and in all messages of the job

    def in_session(self, paths: SessionPaths, mark: str) -> Command:
        """The command with the words and the whole environment that it has in a session.

        Of the variables, later ones win: this process's own, those that keep side effects harmless
        (W&B offline, W&B and MLflow in the trial directory), ``env``, ``overrides``, and those that
        load the agent.
        """
        fill = {**self.fill, "trial_dir": str(paths.out)}
        workdir = Path(os.path.abspath(self.workdir))
        env = {k: v for k, v in os.environ.items() if k not in FOREIGN_RUNS}
        env |= {
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(paths.out),
            "MLFLOW_TRACKING_URI": (paths.out / "mlruns").as_uri(),
            "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow 3.17 refuses a folder without it
            "PYTHONUNBUFFERED": "1",  # a killed job's last output must reach the log
        }
        if self.cache_dir is not None:
            env["TORCHINDUCTOR_CACHE_DIR"] = str(self.cache_dir)
        env |= {**{k: filled(v, fill) for k, v in self.env.items()}, **self.overrides}
        path = env.get("PYTHONPATH", "")  # no empty entry: it would mean the current directory
        env["PYTHONPATH"] = f"{INJECT}{os.pathsep}{path}" if path else str(INJECT)
        env |= {SESSION_VARIABLE: str(paths.config), MARK_VARIABLE: mark, "PWD": str(workdir)}
        return replace(self, argv=filled_command(self.argv, fill), workdir=workdir, env=env)


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
