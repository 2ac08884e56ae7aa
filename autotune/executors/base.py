"""Where sessions of the user's command run, and how they may fail.

The stages know only this interface. ``local`` runs sessions on this machine; ``ray`` runs several
at a time, each on a machine of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune_spaces.base import Config
from autotune_spaces.facts import JobFacts, Machine
from autotune_trials.protocol.failures import SessionFailed as SessionFailed
from autotune_trials.protocol.messages import Block, BlockReport, Hello, Record

NODE = "node"  # in Record.notes: the machine it was measured on; absent: this one
WALL_S = "wall_s"  # in Record.notes: seconds the whole session took, start and end included

Tell = Callable[[str], None]  # called with a sentence for the user


@dataclass(frozen=True)
class Capture:
    """An external profiler around the command; it writes its report after the command has ended.

    ``words`` precede the command; ``{report}`` in them is the report's path without ``suffix``.
    """

    words: tuple[str, ...]
    suffix: str  # ".nsys-rep"
    patience_s: float = 180.0  # for the report, once the job has ended


@dataclass(frozen=True)
class FixedRun:
    """A fresh process of the job with ``config`` set from the start, recorded over a window."""

    config: Config
    seed: int
    steps: int
    min_seconds: float = 0.0
    max_seconds: float = 0.0
    profile: bool = False
    # float16: the initial scale; None: the usual one, which overflows at first
    loss_scale: float | None = None
    label: str = ""  # for the session directory's name and the log: "confirm-b3"
    nvtx_modules: int = 0  # profile: ranges for modules down to this depth
    stacks: bool = False  # profile: a few iterations with Python frames, and nothing else
    # profile: with this tool instead of torch.profiler; the report is Record.notes["report"]
    capture: Capture | None = None
    # Called whenever the window is full, while the job still runs. Returns the number of iterations
    # it should have in all; 0: it is long enough.
    more: Callable[[Record], int] | None = field(default=None, compare=False)


class LiveSession(ABC):
    """One process of the job, paused between plans, in which live knobs are switched.

    A context manager.
    """

    hello: Hello
    # blocks it has measured, and their iterations
    blocks = iterations = 0

    @property
    def job(self) -> JobFacts:
        return self.hello.job

    @property
    def machine(self) -> Machine:
        return self.hello.machine

    @abstractmethod
    def measure(self, blocks: Sequence[Block]) -> list[BlockReport]:
        """Run ``blocks`` and wait for them. Reports come in the order of the blocks, ranks merged.

        A block that failed alone (out of memory, a knob that raised) has ``error`` set; the session
        continues.

        Raises:
            SessionFailed: the process is gone or hangs. ``partial`` on the exception holds the
                reports received.
        """

    @abstractmethod
    def close(self) -> None:
        """End the process tree. Idempotent."""

    def __enter__(self) -> LiveSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Executor(ABC):
    """Starts sessions, one at a time: several on one machine spoil each other's timing."""

    loader_key: str = ""  # set after observe: which DataLoader is the training one
    # set before observe measures: longest wait of a live session for the job's first epoch to end;
    # 0: no wait
    first_epoch_s: float = 0.0
    # whether live sessions keep an epoch from ending; a job may have tables of an epoch's length
    stretches: bool = True
    # whether FixedRun.more is called; if not, a window that is too short must be run again
    goes_on: bool = False
    last_hello: Hello | None = None  # of the session opened last
    # the machine its sessions run on; "": this one, or (with lanes) varying ones
    node: str = ""
    # whether the next session runs on another machine if one is lost
    fails_over = False
    interleaves = False  # whether :meth:`run_interleaved` can be called
    # the kind of machine that its sessions run on; None: this one
    like: Machine | None = None

    def lanes(self) -> Sequence[Executor] | None:
        """Where several sessions may run at the same time: an executor for each slot present now.

        Called again and again, as machines come and go. None: there is only one place, this
        executor.

        Raises:
            ClusterLost: no slot is left, and none has come in a long time.
        """
        return None

    def lane(self, node: str) -> Executor | None:
        """The executor whose sessions run on ``node``; None if that is not there (any more)."""
        return self if node == self.node else None

    def about(self) -> Mapping[str, Any]:
        """What the result says about where it was measured; {}: on this machine."""
        return {}

    @abstractmethod
    def open_live(self) -> LiveSession:
        """Start the job, with nothing changed, and wait for its Hello.

        Raises:
            SessionFailed
        """

    def keep(self, session: LiveSession) -> None:
        """Take over a running session: the next :meth:`open_live` returns it.

        It is closed when another session is started, or at once if the executor cannot hold it.
        """
        session.close()

    def close_kept(self) -> None:
        """Close the session taken over by :meth:`keep`, if it is still there."""

    @abstractmethod
    def run_fixed(self, request: FixedRun) -> Record:
        """Run the job afresh with ``request.config`` from the start.

        Returns what rank 0 recorded, with throughput summed over ranks.

        Raises:
            SessionFailed
        """

    def run_interleaved(
        self, first: FixedRun, second: FixedRun, beside: Executor | None = None
    ) -> tuple[Record, Record]:
        """Make two runs as :meth:`run_fixed` does, in processes that are alive at the same time.

        They train in slices, never both at once, so that a slow spell of the machine affects both.

        Args:
            beside: the executor of the second run, of the same class; None: this one.

        Raises:
            SessionFailed: one of them failed, perhaps because two processes need too much together.
        """
        raise NotImplementedError(f"{type(self).__name__} runs one session at a time")

    def survey(self) -> Mapping[str, Any]:
        """Knob -> what its :meth:`~autotune_spaces.base.Knob.survey` finds where sessions run.

        Called only while no session measures.
        """
        return {}

    def gpu_load(self) -> tuple[str, ...]:
        """What other programs do on the GPUs of the sessions: one clause per GPU in use.

        Called only while no session runs.
        """
        return ()

    def measure_peaks(self, threads: int, device: str) -> Mapping[str, float]:
        """What the sessions' machine reaches, see :mod:`autotune_trials.measure.peaks`.

        {}: it cannot be measured here.

        Args:
            threads: of torch; 0: as in the job's environment.
            device: "": the one the machine has.

        Raises:
            SessionFailed: the measurement failed.
        """
        return {}

    def close(self) -> None:
        """Release what the executor holds. Idempotent."""
