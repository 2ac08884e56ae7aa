"""Where sessions of the user's command run, and how they may fail.

The stages know this interface only. ``local`` runs sessions on this machine; ``ray`` has a machine
for each of several sessions at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from autotune_spaces.base import Config
from autotune_spaces.facts import JobFacts, Machine
from autotune_trials.protocol.failures import SessionFailed as SessionFailed
from autotune_trials.protocol.messages import Block, BlockReport, Hello, Record

NODE = "node"  # in Record.notes: the machine it was measured on; not there: this one
WALL_S = "wall_s"  # in Record.notes: seconds the whole session took, start and end included


@dataclass(frozen=True)
class Capture:
    """An external profiler around the command; it writes its report when the command has ended.

    ``words`` go before the command, ``{report}`` in them is the report's path without ``suffix``.
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
    # float16: the scale to begin with; None: the usual one, which overflows at first
    loss_scale: float | None = None
    label: str = ""  # for the session directory's name and the log: "confirm-b3"
    nvtx_modules: int = 0  # profile: ranges for modules down to this depth
    stacks: bool = False  # profile: a few iterations with Python frames, and nothing else
    # profile: by this tool instead of torch.profiler; the report is Record.notes["report"]
    capture: Capture | None = None
    # Asked whenever the window is full, while the job still runs: iterations it should have in all;
    # 0: it is long enough.
    more: Callable[[Record], int] | None = field(default=None, compare=False)


class LiveSession(ABC):
    """One process of the job, paused between plans, in which live knobs are switched. A context
    manager.
    """

    hello: Hello
    process_config: Config  # the process-scope knobs it was started with

    @property
    def job(self) -> JobFacts:
        return self.hello.job

    @property
    def machine(self) -> Machine:
        return self.hello.machine

    @abstractmethod
    def measure(self, blocks: Sequence[Block]) -> list[BlockReport]:
        """Run ``blocks`` and wait for them. Reports come in the order of the blocks, ranks merged.

        A block that failed alone (out of memory, a knob that raised) has ``error`` set, the session
        goes on.

        Raises:
            SessionFailed: the process is gone or hangs. ``partial`` on the exception holds the
                reports that came.
        """

    @abstractmethod
    def close(self) -> None:
        """End the process tree. Idempotent."""

    def __enter__(self) -> LiveSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Executor(ABC):
    """Starts sessions. One at a time: sessions side by side on one machine spoil each other's
    timing.
    """

    loader_key: str = ""  # set after observe: which DataLoader is the training one
    # set before observe: live sessions let the job's first epoch end, if that takes no longer; 0:
    # they do not
    first_epoch_s: float = 0.0
    # whether FixedRun.more is asked; else a window that is too short must be made anew
    goes_on: bool = False
    last_hello: Hello | None = None  # of the session opened last
    # the machine its sessions run on; "": this one, or (where there are lanes) not always the same
    # one
    node: str = ""
    # where the machine of a session is lost, the next session runs on another one
    fails_over = False
    interleaves = False  # whether :meth:`run_interleaved` can be asked

    def lanes(self) -> Sequence[Executor] | None:
        """Where several sessions may run at the same time: an executor for each slot that is there
        now. Asked again and again, as machines
        come and go. None: there is one place only, this executor.

        Raises:
            ClusterLost: none is there any more, and none has come in a long time.
        """
        return None

    def lane(self, node: str) -> Executor | None:
        """The one whose sessions run on ``node``; None if it is not there (any more)."""
        return self if node == self.node else None

    def about(self) -> Mapping[str, Any]:
        """What the result says of where it was measured; {}: on this machine."""
        return {}

    @abstractmethod
    def open_live(self, process_config: Config) -> LiveSession:
        """Start the job with process knobs set and wait for its Hello.

        Raises:
            SessionFailed
        """

    @abstractmethod
    def run_fixed(self, request: FixedRun) -> Record:
        """Run the job afresh with ``request.config`` from the start; returns what rank 0 recorded,
        throughput summed over ranks.

        Raises:
            SessionFailed
        """

    def run_interleaved(self, first: FixedRun, second: FixedRun) -> tuple[Record, Record]:
        """Both as by :meth:`run_fixed`, in processes that are alive at the same time and train in
        slices, never both at once: what slows the machine down for seconds meets both.

        Raises:
            SessionFailed: of either. It may be for want of what two processes need together.
        """
        raise NotImplementedError(f"{type(self).__name__} runs one session at a time")

    def survey(self) -> Mapping[str, Any]:
        """Knob -> what its :meth:`~autotune_spaces.base.Knob.survey` finds where sessions run.
        Asked for while none does.
        """
        return {}

    def gpu_load(self) -> tuple[str, ...]:
        """What other programs do on the GPUs of the sessions, a clause for each GPU in use. Asked
        for while no session runs.
        """
        return ()

    def measure_peaks(self, threads: int, device: str, again: bool = False) -> Mapping[str, float]:
        """What the machine of the sessions reaches on ``device`` ("": the one it has) with so many
        threads of torch (0: as the job's environment has it), see
        :mod:`autotune_trials.measure.peaks`. {}: it cannot be measured here.
        ``again``: even if it is known from an earlier measurement; the best of both counts.

        Raises:
            SessionFailed: the measurement failed.
        """
        return {}

    def close(self) -> None:
        """Release what the executor holds. Idempotent."""
