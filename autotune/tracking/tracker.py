"""One study's record: the spool first, MLflow second.

    stage ──▶ Tracker ──▶ spool (on disk when the call returns) ──▶ Pump ──▶ MLflow
                                                                     local file: at once, some 40 ms
                                                                     network:    from a thread, never waited for

After the first failure the pump says so once and stops; what is in the spool is sent by a last try at the end of the study,
or by ``autotune sync``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from autotune.errors import InputError
from autotune.secrets import MASK, is_secret, mask_text
from autotune.tracking.base import Tracker
from autotune.tracking.spool import Spool, SpoolPaths, finite_or_words
from autotune.tracking.stores import Store, mlflow_installed, resolve
from autotune_trials.paths import publish

Say = Callable[[str], None]
DRAIN_S = 30.0  # at most, at the end of a study, for a server that is slow but answers


class Sends(Protocol):
    def send(self, *, wait: bool = False) -> int: ...


class Pump:
    """Calls ``send`` when there is something to send: here and now, or from a thread."""

    def __init__(self, sender: Sends, *, background: bool, failed: Callable[[Exception], None]) -> None:
        self._sender, self._background, self._failed = sender, background, failed
        self._work, self._idle = threading.Event(), threading.Event()
        self._idle.set()
        self._stopped = self._closed = False
        self._thread: threading.Thread | None = None

    def poke(self) -> None:
        """There is something to send."""
        if self._stopped or self._closed:
            return
        if not self._background:
            self._send()
            return
        self._idle.clear()
        self._work.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="autotune-tracking")
            self._thread.start()

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Try to get everything out, also after an earlier failure; returns whether it is."""
        self._stopped = False
        self.poke()
        return self._idle.wait(timeout_s) and not self._stopped

    def close(self) -> None:
        self._closed = True
        self._work.set()

    def _run(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            if self._closed:
                return
            if not self._stopped:
                self._send()
            if not self._work.is_set():
                self._idle.set()

    def _send(self) -> None:
        from autotune.tracking.mlflow import Busy

        try:
            self._sender.send()
        except Busy:
            pass  # an `autotune sync` is sending these very events
        except Exception as error:  # whatever MLflow and its drivers raise: a study never ends for its record
            self._stopped = True
            self._failed(error)


class StudyTracker(Tracker):
    """The spool, and a pump to MLflow if there is one."""

    def __init__(self, run_dir: Path, store: Store | None, experiment: str, *, online: bool, env: Mapping[str, str], say: Say) -> None:
        self._run_dir, self._store, self._env, self._say = run_dir, store, env, say
        self._spool = Spool(run_dir)
        self._study_key = ""
        self._warned = False
        self._pump: Pump | None = None
        target = {"uri": None if store is None else store.shown, "experiment": experiment}
        publish(SpoolPaths(run_dir).target, json.dumps(target, indent=2) + "\n")
        if store is not None and online:
            from autotune.tracking.mlflow import Sender

            self._sender = Sender(run_dir, store, experiment)
            self._pump = Pump(self._sender, background=not store.local, failed=self._on_failure)

    def start_study(self, key: str, name: str, params: Mapping[str, object], tags: Mapping[str, str]) -> None:
        self._study_key = key
        self._note("start", key, {"name": name, "params": self._clean(params), "tags": self._clean(tags)})

    def trial(self, key: str, name: str, params: Mapping[str, object], metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        numbers = {k: v if v == v and abs(v) != float("inf") else str(v) for k, v in metrics.items() if v is not None}
        self._note("trial", key, {"name": name, "params": self._clean(params), "metrics": numbers, "tags": self._clean(tags)})

    def trial_artifact(self, key: str, path: Path, folder: str = "") -> None:
        self._file("trial_artifact", key, path, folder)

    def trial_series(self, key: str, name: str, values: Mapping[int, float]) -> None:
        self._note("trial_series", f"{key}|{name}", {"trial": key, "name": name, "values": finite_or_words(values)})

    def study_metrics(self, metrics: Mapping[str, float]) -> None:
        # One event a metric: a resumed run that says nine of ten again adds the tenth.
        new = [self._spool.append_metrics("metrics", name, {name: value}) for name, value in metrics.items()]
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
        if done and self._warned:
            self._say(f"MLflow at {self._store.shown} answers again and has the whole record now.")
        elif not done and not self._warned:
            self._say(f"MLflow at {self._store.shown} is slow: `autotune sync {self._run_dir}` sends what is missing.")

    @property
    def url(self) -> str:
        if self._pump is None or self._store is None:
            return ""
        if self._store.kind != "http":
            return f"autotune ui {self._run_dir}"
        experiment, run = self._sender.experiment_id, self._sender.study_run_id
        return f"{self._store.shown}/#/experiments/{experiment}/runs/{run}" if run else self._store.shown

    def _note(self, kind: str, key: str, data: Mapping[str, object]) -> None:
        if self._spool.append(kind, key, data):
            self._poke()

    def _file(self, kind: str, key: str, path: Path, folder: str) -> None:
        try:
            new = self._spool.append_file(kind, key, path, folder)
        except FileNotFoundError:
            self._say(f"tracking: {path} is not there and was left out")
            return
        if new:
            self._poke()

    def _poke(self) -> None:
        if self._pump is not None:
            self._pump.poke()

    def _clean(self, values: Mapping[str, object]) -> dict[str, str]:
        return {k: MASK if is_secret(k) and not k.startswith("knob.") else mask_text(str(v), self._env) for k, v in values.items()}

    def _on_failure(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        from autotune.tracking.mlflow import reason

        assert self._store is not None
        self._say(
            f"MLflow at {self._store.shown} fails: {mask_text(reason(error), self._env)}. "
            f"The run goes on; its record is kept, and `autotune sync {self._run_dir}` sends what is missing."
        )


def _to_stderr(text: str) -> None:
    print(f"autotune: {text}", file=sys.stderr)


def open_tracker(
    uri: str | None,
    experiment: str,
    run_dir: Path,
    offline: bool = False,
    *,
    env: Mapping[str, str] | None = None,
    say: Say = _to_stderr,
) -> Tracker:
    """The record of the study in ``run_dir``: the spool, and MLflow at ``uri`` unless ``offline``.

    Args:
        uri: "auto" (sqlite beside the run directory), None (spool only), or what MLflow takes.
        env: the job's own environment variables; values of those that look like secrets are never recorded.
        say: where the one line goes if MLflow is not there or fails.

    Raises:
        InputError: not a tracking URI.
    """
    try:
        store = resolve(uri, run_dir)
    except InputError:
        if uri != "auto":
            raise
        store = None  # a run directory whose name sqlite cannot say
        say("MLflow's database cannot have a '?' in its path: the study is recorded in the run directory only.")
    online = not offline
    if store is not None and online and not mlflow_installed():
        say("mlflow is not installed: the study is recorded in the run directory only; `autotune sync` sends it once mlflow is there.")
        online = False
    return StudyTracker(run_dir, store, experiment, online=online, env={**os.environ, **(env or {})}, say=say)
