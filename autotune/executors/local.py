"""Sessions as subprocesses of this machine: the default executor, no daemon.

    <run>/sessions/0001-live/        session.json, logs, markers, traces (see autotune_trials.paths)
    <run>/sessions/0002-confirm-b1/
    <run>/compile-cache/             compiled kernels, shared: only the first session pays for them

Each knob's scope decides how a configuration reaches a session: process knobs become environment
variables or words of the command line, live knobs are sent to the agent. In a live session the
agent is also sent the live values of process knobs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import autotune_spaces
import autotune_trials
from autotune.executors.base import WALL_S, Capture, Executor, FixedRun, LiveSession, SessionFailed
from autotune.executors.gpu_load import gpu_load
from autotune.executors.interleave import CROSSED, FIRST_SLICE, Side, interleave
from autotune.executors.printed_metrics import read_metrics
from autotune.executors.side_effects import (
    WorkdirLock,
    notice,
    own_places,
    require_restored,
    restore_leftovers,
)
from autotune.export.fingerprint import interpreter
from autotune.job.command import placeholders
from autotune.job.configs import fixed_run_knobs, in_words, started_with
from autotune.job.spec import JobSpec
from autotune.secrets import secret_texts
from autotune_spaces.base import Config, Knob, NotApplicable, Start, Value
from autotune_spaces.space import command_line
from autotune_trials.file_restore.ledger import RestoreOptions
from autotune_trials.file_restore.restore import leftovers
from autotune_trials.measure.profiler import STACK_STEPS
from autotune_trials.paths import new_session
from autotune_trials.protocol.messages import (
    Block,
    BlockReport,
    KnobChoice,
    Record,
    SessionConfig,
    SessionMode,
)
from autotune_trials.session.launch_environment import Command, socket_folders
from autotune_trials.session.session import Session
from autotune_trials.session.silence import SlowestGap
from autotune_trials.session.waiting import Timeouts
from autotune_trials.supervisor import process_tags

PEAKS_TIMEOUT_S = 120  # normally a few seconds
# Our own packages come last on the path: what lies beside them must not shadow the job's torch.
_PEAKS = """
import runpy, sys
sys.path += sys.argv[1:3]
del sys.argv[1:3]
runpy.run_module("autotune_trials.measure.peaks", run_name="__main__")
"""
# value of {seed} in the job's own run; run k of a seeded series gets FIRST_SEED + k
FIRST_SEED = 1000


def open_executor(spec: JobSpec, run_dir: Path, **_: object) -> LocalExecutor:
    """As :func:`autotune.executors.executor_for`."""
    return LocalExecutor(spec, run_dir)


@dataclass(frozen=True)
class SessionRequest:
    """A session to be started. Every node of a job over several gets the same, without the capture."""

    label: str
    config: SessionConfig
    process_config: Config = field(default_factory=dict)
    seed: int = 0  # value of {seed}, from FIRST_SEED on
    capture: Capture | None = None


class LocalLiveSession(LiveSession):
    """One running job whose live knobs are switched between iterations."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.hello = session.hello

    def measure(self, blocks: Sequence[Block]) -> list[BlockReport]:
        reports = self._session.run_plan(blocks)
        windows = [report.window for report in reports if report.window is not None]
        self.blocks += len(windows)
        self.iterations += sum(len(window.times_s) for window in windows)
        return reports

    def close(self) -> None:
        finish(self._session)


class LocalExecutor(Executor):
    """Runs sessions of ``spec``'s command under ``run_dir``.

    Args:
        own: further paths that the tuner writes, not the job.

    Raises (its methods):
        SessionFailed: with the session's directory and the end of its log.
        InputError: a file that an earlier trial changed could not be put back; another run has
            trials in this working directory.
        OSError: the run directory cannot be written.
    """

    goes_on = True
    interleaves = True
    compile_cache: Path | None = None  # directory of compiled kernels; None: the run's own cache
    session_class: type[Session] = Session
    variables: Mapping[str, str] = {}  # set for the command in addition to the job's own

    def __init__(self, spec: JobSpec, run_dir: Path, own: Sequence[Path] = ()) -> None:
        self.spec, self.run_dir = spec, Path(run_dir).absolute()
        self._own = (*own_places(self.run_dir, spec.tracking.uri), *own)
        self._open: list[Session] = []
        self._kept: LiveSession | None = None
        self._pace = SlowestGap()
        # processes of an earlier run that was killed together with its supervisors
        process_tags.sweep_stale(socket_folders())
        self._lock = (
            WorkdirLock(spec.workdir)
            if spec.side_effects.put_back or leftovers(str(self.run_dir))
            else None
        )
        try:
            restore_leftovers(self.run_dir)
        except BaseException:  # also Ctrl-C: no caller has this executor yet to close it
            self._unlock()
            raise

    def open_live(self) -> LiveSession:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        config = SessionConfig(
            SessionMode.LIVE,
            "",
            loader_key=self.loader_key,
            first_epoch_s=self.first_epoch_s,
            stretch=self.stretches,
            energy=self.spec.reads_energy,
        )
        session = self.new_session(SessionRequest("live", config))
        try:
            session.start()
            self.last_hello = session.wait_hello()
        except BaseException:  # also Ctrl-C: no caller has this session yet to close it
            finish(session)
            raise
        return LocalLiveSession(session)

    def keep(self, session: LiveSession) -> None:
        self._kept = session

    def close_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept = None

    def run_fixed(self, request: FixedRun) -> Record:
        began = time.monotonic()
        session = self._fixed_session(request)
        try:
            session.start()
            self.last_hello = session.wait_hello()
            record = session.wait_record(request.more)
            if request.capture is not None:
                record = replace(
                    record, notes={**record.notes, "report": self._report(session, request.capture)}
                )
            metrics = {**record.metrics, **self._printed_metrics(session)}
        finally:
            finish(session)
        notes = {**record.notes, WALL_S: time.monotonic() - began}
        return replace(record, metrics=metrics, notes=notes)

    def run_interleaved(
        self, first: FixedRun, second: FixedRun, beside: Executor | None = None
    ) -> tuple[Record, Record]:
        other = beside or self
        assert isinstance(other, LocalExecutor)
        sides = [
            Side(executor._fixed_session(request, slice_steps=FIRST_SLICE), request)
            for executor, request in ((self, first), (other, second))
        ]
        sides[1].session.ledger.share(sides[0].session.ledger)
        try:
            for side in sides:
                side.start()
            self.last_hello = sides[0].session.hello
            interleave(sides[0], sides[1])
            for executor, side in zip((self, other), sides, strict=True):
                side.metrics = executor._printed_metrics(side.session)
        finally:
            for side in reversed(sides):
                with side.at_work():
                    finish(side.session)
        crossed = (sides[0].session.outcome or {}).get(CROSSED, ())
        return sides[0].result(crossed), sides[1].result(crossed)

    def _fixed_session(self, request: FixedRun, slice_steps: int = 0) -> Session:
        config = SessionConfig(
            mode=SessionMode.PROFILE if request.profile else SessionMode.FIXED,
            directory="",
            knobs=fixed_run_knobs(request.config, self.spec.search_space),
            process_knobs=tuple(
                KnobChoice(k.name, v, dict(k.options))
                for k, v in self._process_choices(request.config)
            ),
            loader_key=self.loader_key,
            steps=request.steps,
            min_seconds=request.min_seconds,
            max_seconds=request.max_seconds,
            max_steps=max(request.steps, SessionConfig.max_steps),
            slice_steps=slice_steps,
            seed=None if self._takes_seed() else request.seed,
            match_streams=not request.profile,
            loss_scale=request.loss_scale,
            nvtx_modules=request.nvtx_modules,
            stacks=request.stacks,
            energy=self.spec.reads_energy,
            capture=request.capture is not None,
            profile_steps=STACK_STEPS if request.stacks else SessionConfig.profile_steps,
            watch_steps=0
            if request.stacks or request.capture is not None
            else SessionConfig.watch_steps,
        )
        return self.new_session(
            SessionRequest(
                request.label or config.mode.value,
                config,
                started_with(request.config, self.spec.search_space),
                request.seed,
                request.capture,
            )
        )

    def survey(self) -> Mapping[str, Any]:
        start = self._job_start()
        found = {knob.name: knob.survey(start) for knob in self.spec.search_space.knobs}
        return {name: surveyed for name, surveyed in found.items() if surveyed is not None}

    def gpu_load(self) -> tuple[str, ...]:
        return gpu_load({**os.environ, **self.spec.env})

    def measure_peaks(self, threads: int, device: str) -> Mapping[str, float]:
        """Measure in a separate process with the job's Python and environment.

        So it uses the job's torch, cores and libraries.
        """
        environment = {**os.environ, **self.spec.env}
        roots = [
            str(Path(package.__path__[0]).parent) for package in (autotune_trials, autotune_spaces)
        ]
        argv = [
            interpreter(self.spec.command, environment, self.spec.workdir) or sys.executable,
            "-c",
            _PEAKS,
            *roots,
            "--threads",
            str(threads),
            "--device",
            device,
        ]
        try:
            done = subprocess.run(
                argv,
                cwd=self.spec.workdir,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PEAKS_TIMEOUT_S,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise SessionFailed(
                "hang", f"measuring the machine's peaks took more than {PEAKS_TIMEOUT_S} s"
            ) from None
        except OSError as error:
            raise SessionFailed("crash", f"measuring the machine's peaks failed: {error}") from None
        try:
            return dict(json.loads(done.stdout.splitlines()[-1])["peaks"])
        except (ValueError, TypeError, KeyError, IndexError):
            said = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise SessionFailed("crash", f"measuring the machine's peaks failed: {said}") from None

    def _printed_metrics(self, session: Session) -> dict[str, tuple[float, ...]]:
        patterns = {
            name: metric.pattern
            for name, metric in self.spec.convergence.metrics.items()
            if metric.pattern
        }
        return read_metrics((session.paths.stdout, session.paths.stderr), patterns)

    def close(self) -> None:
        for session in self._open:
            finish(session)
        self._open.clear()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _report(self, session: Session, capture: Capture) -> str:
        """The path of the tool's report, once the tool is done; "" if it wrote none."""
        session.end_job(capture.patience_s)
        path = session.paths.report(capture.suffix)
        return str(path) if path.exists() else ""

    def new_session(self, request: SessionRequest) -> Session:
        """Create a session of the job in a directory of its own, without starting it.

        The caller ends it with :func:`finish`; :meth:`close` does so, too.

        Raises:
            SessionFailed: its ``process_config`` cannot be set here.
            InputError: what an earlier session changed could not be put back.
        """
        self.close_kept()
        for earlier in self._open:
            require_restored(earlier.outcome)
        spec = self.spec
        argv, overrides = self._with_process_knobs(request.process_config)
        paths = new_session(self.run_dir, request.label)
        if request.capture is not None:
            report = str(paths.report(""))
            argv = [word.replace("{report}", report) for word in request.capture.words] + argv
        command = Command(
            argv,
            spec.workdir,
            {**spec.env, **self.variables},
            overrides,
            fill={"seed": str(FIRST_SEED + request.seed)},
            cache_dir=self.compile_cache or self.run_dir / "compile-cache",
            secrets=secret_texts({**os.environ, **spec.env}, argv),
        )
        timeouts = Timeouts(startup_timeout_s=spec.startup_timeout_s)
        if limit_s := spec.hang_timeout_s:
            timeouts = replace(timeouts, hang_timeout_s=limit_s, shortest_hang_s=limit_s)
        effects = spec.side_effects
        session = self.session_class(
            command,
            paths,
            request.config,
            timeouts=timeouts,
            restore=RestoreOptions(effects.keep, self._own) if effects.put_back else None,
            pace=self._pace,
            unchanged=not request.process_config,
        )
        self._open = [s for s in self._open if not s.closed] + [session]
        return session

    def _with_process_knobs(self, process_config: Config) -> tuple[list[str], dict[str, str]]:
        """The command line and the variables that set ``process_config``.

        Raises:
            SessionFailed: one of them cannot be set here and now.
        """
        argv = command_line(self.spec.command, self.spec.search_space.knobs, process_config)
        before = replace(self._job_start(), argv=tuple(argv))
        choices = self._process_choices(process_config)
        try:
            start = before
            for knob, value in choices:
                start = knob.prepare(start, value)
        except NotApplicable as reason:
            raise SessionFailed(
                "crash", f"{in_words(process_config)} cannot be set here: {reason}"
            ) from None
        asked = {name for knob, value in choices for name in knob.environment(value)}
        overrides = {
            name: text
            for name, text in start.env.items()
            if name in asked or before.env.get(name) != text
        }
        # A variable that a knob removes is set to "", which its readers treat as unset.
        return list(start.argv), overrides | {
            name: "" for name in before.env if name not in start.env
        }

    def _process_choices(self, config: Config) -> list[tuple[Knob, Value]]:
        """The process knobs of ``config`` with their values, in the order of the search space."""
        part = started_with(config, self.spec.search_space)
        return [
            (knob, part[knob.name]) for knob in self.spec.search_space.knobs if knob.name in part
        ]

    def _job_start(self) -> Start:
        """What the unchanged job is started with, without a session's additions."""
        return Start(self.spec.command, {**os.environ, **self.spec.env}, str(self.spec.workdir))

    def _takes_seed(self) -> bool:
        """Whether the job takes its seed by a ``{seed}``: the agent then leaves seeds alone."""
        return "seed" in placeholders([*self.spec.command, *self.spec.env.values()])


def finish(session: Session) -> None:
    """End a session and delete the job's {trial_dir}: checkpoints of many trials fill a disk."""
    closed = session.closed
    session.close()
    shutil.rmtree(session.paths.out, ignore_errors=True)
    # all trials write alike: one scan is enough
    if not closed and session.paths.root.name.startswith("0001-"):
        notice(session.paths.root, session.workdir, session.ledger.scope, session.outcome)
