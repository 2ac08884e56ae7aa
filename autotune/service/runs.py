"""The runs on a cluster: lists, follows and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autotune.errors import InputError, Interrupted, last_line
from autotune.job.mistakes import did_you_mean
from autotune.service.cluster import Cluster
from autotune.service.ending import LOST, exit_code_in
from autotune.service.submission import DIRECTORY_KEY, NAME_KEY, STOP_WAIT_S, id_time

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
POLL_S = 1.0
SILENT_S = 300.0  # a connection without output after which it is made again
CLOSING_S = 3.0  # for Ray to report the end of a run whose log has ended


@dataclass(frozen=True)
class Run:
    id: str
    name: str  # of the job; "" if autotune did not submit it
    user: str
    status: str  # Ray's words: PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED
    start_s: float | None  # since the epoch; when it was submitted
    end_s: float | None
    exit_code: int | None
    message: str  # Ray's message about it
    directory: str  # below the service's runs: the ID of the first submission to it

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class Runs:
    """What can be asked of a cluster about its runs.

    Raises:
        InputError: from every method, if the cluster does not answer or rejects the token.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self._client = cluster, cluster.client()
        # it reports the end of every log
        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.ERROR)

    def known(self, *, others: bool = False) -> list[Run]:
        """The runs, newest first.

        Args:
            others: also jobs that autotune did not submit.
        """
        with self.cluster.request_errors_as_input_errors():
            found = [
                self._as_it_ended(_run(job))
                for job in self._client.list_jobs()
                if job.submission_id
            ]
        return sorted(
            (r for r in found if others or r.name), key=lambda r: r.start_s or 0.0, reverse=True
        )

    def find(self, id: str) -> Run:
        """The run with this ID.

        Raises:
            InputError: the cluster knows no such run.
        """
        known = self.known(others=True)
        for run in known:
            if run.id == id:
                return run
        raise InputError(
            f"the cluster at {self.cluster.address} has no run '{id}'",
            where="ID",
            expected="an ID that `autotune submit` printed since the cluster's head was started",
            remedy=did_you_mean(id, [run.id for run in known], "`autotune jobs` lists them"),
        )

    def directory(self, id: str, *, sent: bool) -> str:
        """The run directory in which to continue the run with this ID.

        A head that was started again knows no earlier run. Where nothing was ``sent``, the job's
        folder is the same nevertheless, and the directory most likely has the run's ID for its name.

        Raises:
            InputError: the cluster does not know the run, and its folder was sent, or the cluster
                would know it, because it knows older ones.
        """
        known = filter(None, (id_time(run.id) for run in self.known()))
        if not sent and "" < id_time(id) < min(known, default="~"):
            return id
        return self.find(id).directory

    def log(self, id: str) -> str:
        """All that the run has printed so far; Ray's message if it still waits for its place."""
        return str(self._asked(id, lambda: self._client.get_job_logs(id)))

    def follow(self, id: str, show: Callable[[str], None]) -> Run:
        """Pass its output to ``show`` until it ends; returns how it ended. A connection that is cut
        (a proxy cuts silent ones) or silent for minutes is made again.
        """
        shown = 0  # characters

        async def tail() -> None:
            nonlocal shown
            behind = shown  # each connection begins with all of the log
            lines = aiter(self._client.tail_job_logs(id))
            while (text := await asyncio.wait_for(anext(lines, None), SILENT_S)) is not None:
                behind, new = max(0, behind - len(text)), text[behind:]
                shown += len(new)
                show(new)

        while True:
            with (
                contextlib.suppress(RuntimeError, TimeoutError),
                self.cluster.request_errors_as_input_errors(),
            ):
                asyncio.run(tail())
            # Ray closes the log a moment before it reports how the run ended
            if (run := self._ended_within(id, CLOSING_S)) is not None:
                return run

    def stop(self, id: str) -> Run:
        """Ask it to end, and wait until it has: it ends its trial and restores what that changed.

        Ray cannot remove a waiting run from its queue: such a run is still pending when this
        returns, and ends when its turn comes.

        Raises:
            InputError: it has not ended after two minutes.
        """
        run = self.find(id)
        if run.ended:
            return run
        self._asked(id, lambda: self._client.stop_job(id))
        if run.status == "PENDING":
            return self.find(id)
        if (ended := self._ended_within(id, 2 * STOP_WAIT_S)) is None:
            raise InputError(
                f"run '{id}' has not ended after {2 * STOP_WAIT_S} s",
                where=self.cluster.address,
                remedy="`autotune jobs` shows its state",
            )
        return ended

    def _ended_within(self, id: str, timeout_s: float) -> Run | None:
        deadline = time.monotonic() + timeout_s
        while not (run := self.find(id)).ended:
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_S)
        return run

    def _as_it_ended(self, run: Run) -> Run:
        """``run`` with the end that its log reports, if Ray has lost track of it."""
        if run.status != "FAILED" or LOST not in run.message:
            return run
        try:
            code = exit_code_in(self._client.get_job_logs(run.id), run.id)
        except RuntimeError:  # its node is gone
            return run
        if code is None:
            return run
        status = {0: "SUCCEEDED", Interrupted.exit_code: "STOPPED"}.get(code, "FAILED")
        return replace(run, status=status, exit_code=code, message="")

    def _asked(self, id: str, question: Callable[[], Any]) -> Any:
        self.find(id)
        try:
            with self.cluster.request_errors_as_input_errors():
                return question()
        except RuntimeError as error:
            raise InputError(
                f"the cluster cannot answer about run '{id}': {last_line(error)}",
                where=self.cluster.address,
            ) from error


def _run(job: Any) -> Run:
    metadata = job.metadata or {}
    seconds = [
        None if ms is None or ms <= 0 else ms / 1000 for ms in (job.start_time, job.end_time)
    ]
    return Run(
        id=job.submission_id,
        name=metadata.get(NAME_KEY, ""),
        user=metadata.get("autotune.user", ""),
        status=str(job.status.value),
        start_s=seconds[0],
        end_s=seconds[1],
        exit_code=job.driver_exit_code,
        message=" ".join((job.message or "").split()),
        directory=metadata.get(DIRECTORY_KEY) or job.submission_id,
    )
