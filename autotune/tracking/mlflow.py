"""Sends the spool to MLflow.

    spool.jsonl ──▶ find or create the run by its tag autotune.key ──▶ log ──▶ cursor (write, rename) ──▶ next event

Only ``MlflowClient`` with run ids is used, never MLflow's global active run. Every step can be
repeated: runs are found by their tag, params and tags overwrite themselves, metrics carry the
spool's timestamps (MLflow's own key for a point is run, name, step, time, value), artifacts have
fixed names. So a kill between a send and its cursor causes a repetition, not a duplicate.

One request cannot be repeated: a "create run" that failed here, but that the server carries out
anyway, perhaps after our second one. The cursor lists such runs as doubts, and their duplicates are
deleted when they appear.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from autotune.disk import lock
from autotune.tracking import charts
from autotune.tracking.base import BOTH_TAG, NOTE_TAG, SEARCHED_TAG
from autotune.tracking.client import client_of, mlflow_module, uploading
from autotune.tracking.pump import Busy
from autotune.tracking.spool import Event, SpoolPaths, read_events
from autotune.tracking.stores import Store
from autotune.words import user_name
from autotune_trials.paths import publish

T = TypeVar("T")

KEY_TAG = "autotune.key"
# selects the view that MLflow's UI opens
KIND_TAG, MODEL_TRAINING = "mlflow.experimentKind", "custom_model_development"
# log_batch takes 1000 items in total, at most 100 of them params and 100 tags
METRICS_A_CALL, OTHERS_A_CALL = 800, 100
LONGEST_PARAM, LONGEST_TAG = 6000, 5000  # characters MLflow keeps
LONGEST_NAME = 250  # of a run; PostgreSQL and MySQL refuse longer ones
DOUBT_S = 300.0  # the server does not carry out a failed request later than this
TRIAL_STATUS = {"failed": "FAILED"}  # pruned and infeasible trials have served their purpose


class Sender:
    """Sends one run's spool to one experiment of one store.

    Not thread-safe; another process may do the same at the same time.
    """

    def __init__(self, run_dir: Path, store: Store, experiment: str) -> None:
        self.paths, self.store, self.experiment = SpoolPaths(run_dir), store, experiment
        self.cursor = self.paths.cursor(store.uri, experiment)
        self.experiment_id = ""
        self.missing: list[str] = []  # artifacts whose file was gone
        self._client: Any = None
        self._reset()

    def _reset(self) -> None:
        self.offset, self.spool_id, self.study_key = 0, "", ""
        self.page = ""  # of MLflow's UI, with the trials in charts
        self.runs: dict[str, str] = {}  # autotune.key -> run id
        # (autotune.key, path, folder) of artifacts to send once everything else has been: a store
        # that takes no artifacts from here holds nothing else up
        self.artifacts: list[tuple[str, str, str]] = []
        # autotune.key -> when its "create run" failed, in seconds since 1970
        self.doubts: dict[str, float] = {}

    @property
    def study_run_id(self) -> str:
        return self.runs.get(self.study_key, "")

    def send(self, *, wait: bool = False) -> int:
        """Send what has not been sent yet; returns the number of events.

        Args:
            wait: if another process is sending, wait for it.

        Raises:
            Busy: another process is sending (``wait`` False).
            Exception: whatever MLflow raises; the cursor holds what was sent so far.
        """
        with self._locked(wait):
            self._read_cursor()
            kept_connection = self._client is not None
            try:
                try:
                    return self._send_rest()
                except Exception:  # of any kind: a deleted study shows up as one refused request
                    self._client = None
                    if not (kept_connection and self._study_is_gone()):
                        raise
                    return self._send_rest()  # everything again
            except BaseException:  # Ctrl-C, too
                # the next send first checks the store: a server may come back without its contents
                self._client = None
                raise

    def _study_is_gone(self) -> bool:
        known = self.study_run_id
        self._connect()
        return self.study_run_id != known

    def _send_rest(self) -> int:
        if self._client is None:
            self._connect()
        sent = self._send_events()
        self._settle_doubts()
        return sent + self._send_artifacts()

    def _send_events(self) -> int:
        sent = 0
        for event, offset in read_events(self.paths.spool, self.offset):
            self._handle(event)
            self.offset, sent = offset, sent + 1
            self._write_cursor()
        return sent

    def _connect(self) -> None:
        client = client_of(self.store)
        self.experiment_id = self._find_experiment(client)
        if self.study_run_id and not _alive(client, self.study_run_id):
            # The store was emptied, or the study was deleted in the UI: send everything again.
            self.cursor.unlink(missing_ok=True)
            self._reset()
        self._client = client

    @contextlib.contextmanager
    def _locked(self, wait: bool) -> Iterator[None]:
        self.paths.root.mkdir(parents=True, exist_ok=True)
        with open(self.paths.lock, "a+") as file:
            try:
                lock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise Busy from None
            yield

    def _read_cursor(self) -> None:
        try:
            data = json.loads(self.cursor.read_text())
            offset, first = int(data["offset"]), next(read_events(self.paths.spool))[0]
            if (
                self.offset <= offset <= self.paths.spool.stat().st_size
                and first.key == data["spool"]
            ):
                runs = dict(data["runs"])
                if runs.get(data["study"]) == self.study_run_id:
                    # otherwise another process has started over in an emptied store
                    runs = {**self.runs, **runs}
                self.offset, self.runs = offset, runs
                self.spool_id, self.study_key = data["spool"], data["study"]
                self.doubts = dict(data.get("doubts", {}))
                self.page = str(data.get("page", ""))
                self.artifacts = [
                    (key, path, folder) for key, path, folder in data.get("artifacts", ())
                ]
        except (OSError, ValueError, KeyError, TypeError, StopIteration):
            pass  # no cursor yet: send everything, which duplicates nothing

    def _write_cursor(self) -> None:
        # Only the study's run: with every trial's, each event of a long study would rewrite all of
        # them. Trials' runs are found by their tag.
        study = {key: run_id for key, run_id in self.runs.items() if key == self.study_key}
        data = {
            "offset": self.offset,
            "spool": self.spool_id,
            "study": self.study_key,
            "runs": study,
            "doubts": self.doubts,
            "artifacts": self.artifacts,
            "page": self.page,
            "uri": self.store.shown,
        }
        publish(self.cursor, json.dumps(data))

    def _find_experiment(self, client: Any) -> str:
        found = client.get_experiment_by_name(self.experiment)
        if found is None:
            try:
                place = self.store.artifact_location
                return client.create_experiment(
                    self.experiment, artifact_location=place, tags={KIND_TAG: MODEL_TRAINING}
                )
            except Exception:  # each kind of store has its own error; another study may be faster
                found = client.get_experiment_by_name(self.experiment)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return found.experiment_id

    # -- events ------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event.kind:
            case "spool":
                self.spool_id = event.key
            case "start":
                self._start(event)
            case "trial":
                self._trial(event)
            case "trial_artifact":
                self._artifact(self._key(event.data["trial"]), event)
            case "trial_series":
                self._series(event)
            case "artifact":
                self._artifact(self.study_key, event)
            case "metrics":
                self._log(self.study_run_id, event, metrics=_points(event.data))
            case "finish":
                self._finish(event)

    def _key(self, key: str) -> str:
        """Unique in the whole store: two runs of one job have the same trial keys."""
        return f"{self.spool_id}:{key}".replace("'", "_")

    def _start(self, event: Event) -> None:
        self.study_key = self._key(event.key)
        data = event.data
        run_id = self._run(self.study_key, data["name"], event.time_ms, {"autotune.kind": "study"})
        self._client.update_run(run_id, status="RUNNING")  # a resumed study was KILLED before
        self._log(run_id, event, params=data["params"], tags=data["tags"])

    def _trial(self, event: Event) -> None:
        data = event.data
        parent = {"mlflow.parentRunId": self.study_run_id, "autotune.kind": "trial"}
        wall_ms = int(1000 * float(data["metrics"].get("wall_s", 0.0) or 0.0))
        # The tags are part of creating the run: each further transaction would be a third of a
        # trial's cost.
        run_id = self._run(
            self._key(event.key),
            data["name"],
            event.time_ms - max(0, wall_ms),
            {**parent, **_tags(data["tags"])},
        )
        self._log(run_id, event, data["params"], _points(data["metrics"]))
        status = TRIAL_STATUS.get(str(data["tags"].get("autotune.state", "")), "FINISHED")
        self._client.set_terminated(run_id, status, event.time_ms)

    def _finish(self, event: Event) -> None:
        run_id, tags = self.study_run_id, dict(event.data["tags"])
        if knobs := tags.get(SEARCHED_TAG):
            key = f"autotune-{run_id[:12]}"
            both = tags.get(BOTH_TAG, "")
            view = charts.view(run_id, knobs.split(","), both.split(",") if both else ())
            self._client.set_experiment_tag(self.experiment_id, charts.VIEW_TAG + key, view)
            self.page = charts.link(self.experiment_id, key)
            note = f"{tags.get(NOTE_TAG, '')}\n\n[Its trials in charts]({self.page})"
            tags[NOTE_TAG] = note.strip()
        self._log(run_id, event, event.data["params"], (), tags)
        self._client.set_terminated(run_id, event.data["status"], event.time_ms)

    def _series(self, event: Event) -> None:
        run_id = self._known_run(self._key(event.data["trial"]))
        if run_id:  # otherwise a failing disk damaged the line of its trial
            name, values = event.data["name"], event.data["values"]
            points = tuple((name, float(v), int(float(step))) for step, v in values.items())
            self._log(run_id, event, metrics=points)

    def _artifact(self, key: str, event: Event) -> None:
        artifact = (key, str(event.data["path"]), str(event.data["folder"] or ""))
        if artifact not in self.artifacts:
            self.artifacts.append(artifact)

    def _send_artifacts(self) -> int:
        """Send the artifacts that are waiting; what is recorded meanwhile goes first.

        Returns:
            The number of events sent.

        Raises:
            Exception: the last failure, once all have been tried; those that failed keep waiting.
        """
        sent, trouble = 0, None
        tried: set[tuple[str, str, str]] = set()
        while left := [artifact for artifact in self.artifacts if artifact not in tried]:
            tried.add(left[0])
            try:
                self._send_artifact(*left[0])
                self.artifacts.remove(left[0])
                self._write_cursor()
            except Exception as error:  # of any kind
                if not self._answers():
                    raise
                trouble = error
            sent += self._send_events()
        if trouble is not None:
            raise trouble
        return sent

    def _send_artifact(self, key: str, name: str, folder: str) -> None:
        path = self.paths.run_dir / name
        run_id = self._known_run(key) if path.is_file() else ""
        if run_id:
            with uploading():
                self._client.log_artifact(run_id, str(path), folder or None)
        else:
            self.missing.append(str(path))

    def _answers(self) -> bool:
        try:
            return _alive(self._client, self.study_run_id)
        # MLflow, its HTTP library and its databases each have errors of their own
        except Exception:
            return False

    # -- MLflow ------------------------------------------------------------------------------------

    def _run(self, key: str, name: str, start_ms: int, tags: Mapping[str, str]) -> str:
        if key not in self.runs:
            found = self._find_runs(key)
            self.runs[key] = found[0] if found else self._create_run(key, name, start_ms, tags)
            if found:  # it may belong to a study that was deleted since
                entity = mlflow_module().entities.RunTag
                marks = [entity(name, value) for name, value in tags.items()]
                self._client.log_batch(found[0], tags=marks)
            self._delete_copies(key, found)
        return self.runs[key]

    def _create_run(self, key: str, name: str, start_ms: int, tags: Mapping[str, str]) -> str:
        everything = {
            KEY_TAG: key,
            "mlflow.source.name": "autotune",
            "mlflow.user": user_name(),
            **tags,
        }
        try:
            run = self._client.create_run(
                self.experiment_id,
                start_time=start_ms,
                tags=everything,
                run_name=name[:LONGEST_NAME],
            )
        except Exception:  # of any kind: the server may have created it anyway
            self.doubts[key] = time.time()
            self._write_cursor()
            raise
        return run.info.run_id

    def _known_run(self, key: str) -> str:
        """The run made for ``key``, by this process or an earlier one; "" if there is none."""
        if key not in self.runs:
            found = self._find_runs(key)
            if not found:
                return ""
            self.runs[key] = found[0]
        return self.runs[key]

    def _find_runs(self, key: str) -> list[str]:
        found = self._client.search_runs(
            [self.experiment_id],
            f"tags.`{KEY_TAG}` = '{key}'",
            order_by=["attributes.start_time ASC"],
            max_results=10,
        )
        return [run.info.run_id for run in found]

    def _delete_copies(self, key: str, found: Iterable[str]) -> None:
        for run_id in found:
            if run_id != self.runs[key]:
                self._client.delete_run(run_id)

    def _settle_doubts(self) -> None:
        """Look again for duplicates of runs whose "create run" failed."""
        for key, given_up_s in list(self.doubts.items()):
            if key in self.runs:
                self._delete_copies(key, self._find_runs(key))
            if time.time() > given_up_s + DOUBT_S:
                del self.doubts[key]
                self._write_cursor()

    def _log(
        self,
        run_id: str,
        event: Event,
        params: Mapping[str, Any] | None = None,
        metrics: tuple[tuple[str, float, int], ...] = (),
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        entities = mlflow_module().entities
        said = {_name(k): str(v)[:LONGEST_PARAM] for k, v in (params or {}).items()}
        marks = _tags(tags or {})
        if said and event.kind != "trial":
            # A param cannot be changed: a study resumed with another budget puts the new value in a
            # tag.
            known = self._client.get_run(run_id).data.params
            marks |= {
                f"changed.{k}": v[:LONGEST_TAG] for k, v in said.items() if known.get(k, v) != v
            }
            said = {k: v for k, v in said.items() if k not in known}
        parts = itertools.zip_longest(
            _chunks(
                [entities.Metric(_name(k), v, event.time_ms, step) for k, v, step in metrics],
                METRICS_A_CALL,
            ),
            _chunks([entities.Param(k, v) for k, v in said.items()], OTHERS_A_CALL),
            _chunks([entities.RunTag(k, v) for k, v in marks.items()], OTHERS_A_CALL),
            fillvalue=(),
        )
        for points, some, others in parts:
            self._client.log_batch(run_id, metrics=points, params=some, tags=others)


def _tags(tags: Mapping[str, Any]) -> dict[str, str]:
    return {_name(k): str(v)[:LONGEST_TAG] for k, v in tags.items()}


def _points(metrics: Mapping[str, Any]) -> tuple[tuple[str, float, int], ...]:
    """Metrics as :meth:`Sender._log` takes them: (name, value, step)."""
    return tuple((name, float(value), 0) for name, value in metrics.items())


def _alive(client: Any, run_id: str) -> bool:
    try:
        return client.get_run(run_id).info.lifecycle_stage == "active"
    except Exception as error:
        if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


def _name(key: str) -> str:
    """A key as MLflow accepts it: letters, digits, ``_ - . : /`` and spaces, no path tricks."""
    return (
        re.sub(r"[^\w\-. :/]", "_", str(key), flags=re.ASCII).strip("/").replace("..", "__")[:250]
        or "_"
    )


def _chunks(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
