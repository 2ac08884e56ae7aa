"""One study's record: the spool first, MLflow second.

    stage ──▶ Tracker ──▶ spool (on disk when the call returns) ──▶ Pump ──▶ MLflow
                                                                     local file: at once, in 40 ms
                                                                     network:    from a thread, never waited for

The user gets one line about a store that fails. The pump retries by itself while the run goes on,
and once more at its end; ``autotune sync`` sends what is still missing then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.errors import InputError
from autotune.secrets import MASK, is_secret, mask_secrets, secret_values
from autotune.tracking.base import Tracker
from autotune.tracking.pump import Pump
from autotune.tracking.spool import Spool, SpoolPaths, finite_or_words
from autotune.tracking.stores import Store, resolve
from autotune_trials.paths import publish

Say = Callable[[str], None]


class StudyTracker(Tracker):
    """The spool, and a pump to MLflow if there is one."""

    def __init__(
        self,
        run_dir: Path,
        store: Store | None,
        experiment: str,
        *,
        online: bool,
        env: Mapping[str, str],
        say: Say,
    ) -> None:
        self._run_dir, self._store, self._say = run_dir, store, say
        self._secrets = secret_values(env)
        self._spool = Spool(run_dir)
        self._study_key = ""
        # whether a failure was ever reported; whether it is the latest report
        self._warned = self._behind = False
        self._pump: Pump | None = None
        target = {"uri": None if store is None else store.shown, "experiment": experiment}
        publish(SpoolPaths(run_dir).target, json.dumps(target, indent=2) + "\n")
        if store is not None and online:
            from autotune.tracking.mlflow import Sender

            self._pump = Pump(
                Sender(run_dir, store, experiment),
                background=not store.local,
                failed=self._on_failure,
                recovered=self._on_recovery,
            )

    def start_study(
        self, key: str, name: str, params: Mapping[str, object], tags: Mapping[str, str]
    ) -> None:
        self._study_key = key
        data = {"name": name, "params": self._clean(params), "tags": self._clean(tags)}
        self._note("start", key, data)

    def trial(
        self,
        key: str,
        name: str,
        params: Mapping[str, object],
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
    ) -> None:
        data = {"name": name, "params": self._clean(params), "tags": self._clean(tags)}
        self._note("trial", key, {**data, "metrics": finite_or_words(metrics)})

    def trial_artifact(self, key: str, path: Path, folder: str = "") -> None:
        self._file("trial_artifact", key, path, folder)

    def trial_series(self, key: str, name: str, values: Mapping[int, float]) -> None:
        data = {"trial": key, "name": name, "values": finite_or_words(values)}
        self._note("trial_series", f"{key}|{name}", data)

    def study_metrics(self, metrics: Mapping[str, float]) -> None:
        # One event per metric: a resumed run that repeats nine of ten adds only the tenth.
        new = [
            self._spool.append("metrics", name, {name: value})
            for name, value in finite_or_words(metrics).items()
        ]
        if any(new):
            self._poke()

    def study_artifact(self, path: Path, folder: str = "") -> None:
        self._file("artifact", self._study_key, path, folder)

    def finish(self, status: str, params: Mapping[str, object], tags: Mapping[str, str]) -> None:
        data = {"status": status, "params": self._clean(params), "tags": self._clean(tags)}
        self._spool.append("finish", self._study_key, data)
        if self._pump is None or self._store is None:
            return
        done = self._pump.drain()
        self._pump.close()
        if not done and not self._behind:
            self._say(
                f"MLflow at {self._store.shown} is missing part of the record: `autotune sync"
                f" {self._run_dir}` sends the rest."
            )

    def _note(self, kind: str, key: str, data: Mapping[str, object]) -> None:
        if self._spool.append(kind, key, data):
            self._poke()

    def _file(self, kind: str, key: str, path: Path, folder: str) -> None:
        try:
            new = self._spool.append_file(kind, key, path, folder)
        except FileNotFoundError:
            self._say(f"tracking: {path} does not exist and was left out")
            return
        if new:
            self._poke()

    def _poke(self) -> None:
        if self._pump is not None:
            self._pump.poke()

    def _clean(self, values: Mapping[str, object]) -> dict[str, str]:
        return {
            k: (
                MASK
                if is_secret(k) and not k.startswith("knob.")
                else mask_secrets(str(v), self._secrets)
            )
            for k, v in values.items()
        }

    def _on_failure(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = self._behind = True
        from autotune.tracking.client import reason

        assert self._store is not None
        self._say(
            f"MLflow at {self._store.shown} fails: {mask_secrets(reason(error), self._secrets)}."
            " The run continues, its record is kept, and sending is retried; `autotune sync"
            f" {self._run_dir}` sends what is missing at the end."
        )

    def _on_recovery(self) -> None:
        if self._behind:
            self._behind = False
            assert self._store is not None
            self._say(f"MLflow at {self._store.shown} answers again and has the record so far.")


def open_tracker(
    uri: str | None,
    experiment: str,
    run_dir: Path,
    offline: bool = False,
    *,
    env: Mapping[str, str] | None = None,
    say: Say = print,
) -> Tracker:
    """The record of the study in ``run_dir``: the spool, and MLflow at ``uri`` unless ``offline``.

    Args:
        uri: "auto" (sqlite beside the run directory), None (spool only), or what MLflow accepts.
        env: the job's own environment variables; values of those that look like secrets are never
            recorded.
        say: called with one line if MLflow fails.

    Raises:
        InputError: not a tracking URI.
    """
    try:
        store = resolve(uri, run_dir)
    except InputError as error:
        if uri != "auto":
            raise
        store = None  # such as a run directory whose name sqlite cannot express
        say(f"{error.found}: the study is recorded in the run directory only.")
    return StudyTracker(
        run_dir, store, experiment, online=not offline, env={**os.environ, **(env or {})}, say=say
    )
