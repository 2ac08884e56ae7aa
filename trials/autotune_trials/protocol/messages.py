"""The messages between the tuner and the agent in the user's process.

A session is one run of the user's command. The tuner writes ``session.json``
(:class:`SessionConfig`) and sets ``AUTOTUNE_SESSION`` to its path; the agent reads it. The rest
depends on the mode:

    live      agent ── Hello ──▶ tuner      after the first few iterations, job paused in the step hook
              agent ◀── Plan ─── tuner      a list of blocks
              agent ── BlockReport ─▶       one per block, sent while the job keeps running
              agent ── PlanDone ──▶ tuner   job paused in the hook, until the next Plan
              ...
              tuner ends the process tree

    fixed     knobs set from the start, one window of ``steps`` iterations recorded
              agent ── Hello ──▶, then  ── Record ──▶ tuner, job paused until the tuner ends it

    profile   like fixed; after ``steps``, torch.profiler is on for ``profile_steps``, then ``watch_steps`` iterations are
              watched; Record has the trace's path and the observations (Record.evidence)

    launch    knobs set from the start, no channel, nothing recorded

Ranks of a distributed job must not decide alone, so they exchange two more kinds of messages:

    fixed, profile    every rank ── Pace ──▶ tuner ── Extent ──▶ every rank: all end their window at the same step
    any               a failing rank ── JobError ──▶ tuner, which ends the session: the other ranks wait for that one

Messages are one JSON object per line, over a Unix socket in a directory only its user can enter.
Every rank of a distributed job connects and gets the same plan; blocks are counted in iterations,
so all ranks switch together.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune_spaces.base import Value
from autotune_spaces.codec import decode, encode
from autotune_spaces.facts import JobFacts, Machine
from autotune_trials.protocol.evidence import Evidence

SCHEMA_VERSION = 1
LOADER_SETTINGS = "loader settings"  # how the failure of a DataLoader's knobs begins
SESSION_VARIABLE = "AUTOTUNE_SESSION"  # path of session.json; the agent starts only if it is set

# phases of one iteration; their times add up to the iteration time
PHASES = ("data", "to_device", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class KnobChoice:
    """A knob as the agent needs it: registry name (or a ``via:`` definition), value, options."""

    name: str
    value: Value
    options: Mapping[str, Value] = field(default_factory=dict)


class SessionMode(str, enum.Enum):
    LIVE = "live"  # knobs are switched between blocks of iterations
    FIXED = "fixed"  # knobs hold from the start, one window is recorded
    PROFILE = "profile"  # like fixed, then iterations under torch.profiler and under observers
    LAUNCH = "launch"  # knobs hold from the start, nothing is recorded


@dataclass(frozen=True)
class SessionConfig:
    """session.json: the agent's instructions, written before the job starts."""

    mode: SessionMode
    directory: str  # session directory: logs, markers, traces
    socket: str = ""  # path of the Unix socket; "" in launch mode
    # live-scope knobs to hold from the start (fixed, profile, launch)
    knobs: tuple[KnobChoice, ...] = ()
    # LoaderFacts.key of the training DataLoader, known from OBSERVE; "" = detect it
    loader_key: str = ""
    steps: int = 240  # iterations to record (fixed, profile)
    # keep recording for at least this long after the first iteration (at most max_steps)
    min_seconds: float = 0.0
    # stop recording after this long even if ``steps`` is not reached; 0 = no limit
    max_seconds: float = 0.0
    max_steps: int = 2000
    # fixed, one rank: iterations per slice, after which the job waits while another process runs
    # its own; an Extent says where the next slice ends. 0: not interleaved
    slice_steps: int = 0
    probe_steps: int = 8  # number of first steps with gradient and update norms recorded
    # profile: iterations watched for evidence after the profiled ones; fewer if the job ends first
    watch_steps: int = 60
    profile_steps: int = 12
    # offset added to every seed the job sets (the seed itself if it sets none); None = no change
    seed: int | None = None
    # fixed: a batch's random numbers depend on its position in the epoch, not on the worker that
    # prepares it
    match_streams: bool = False
    # initial scale of the agent's own float16 LossScaler; None: its default
    loss_scale: float | None = None
    warmup_steps: int = 3  # live: iterations before Hello
    # live: delay Hello until the second epoch has begun (so any evaluation is over), at most this
    # long
    first_epoch_s: float = 0.0
    stretch: bool = True  # live: epochs of the training DataLoader do not end
    # profile: also draw ranges for modules down to this depth below the entry module; 0: none
    nvtx_modules: int = 0
    # keep watching for at least this long, so that lines can be told apart (one rank only)
    watch_seconds: float = 4.0
    # profile: record Python frames, in a session used for that only (see measure/profiler.py)
    stacks: bool = False
    # fixed, profile, launch: process knobs the command was started with; the agent checks that they
    # took effect
    process_knobs: tuple[KnobChoice, ...] = ()
    energy: bool = False  # live, fixed: record the energy of each iteration (Window.joules)
    # profile: a tool around the job captures the window (cudaProfilerApi); torch.profiler stays off
    capture: bool = False


ELSEWHERE = 0
# batches that every worker should deliver in a measured block, time permitting: workers may all
# deliver at once and then nothing for a long time
ROUNDS = 4


@dataclass(frozen=True)
class Hello:
    """First message of a process that trains, after ``warmup_steps`` iterations."""

    # ELSEWHERE: the process runs on another machine (an outpost of the cluster executor); only a
    # closed connection shows that it is gone
    pid: int
    rank: int
    machine: Machine
    job: JobFacts
    startup_s: float  # process start to first optimizer step
    fingerprint: Mapping[str, Any]  # see Record.fingerprint
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Block:
    """A stretch of iterations under one configuration: settle, then measure.

        apply knobs │ settle (≥ min_settle, until times have levelled off, ≤ max_settle) │ iterations measured

    Settling includes emptying the loader's queue after a stall: the job then trains on later
    batches, and the discarded ones are not counted anywhere. With several ranks, each settles for
    min_settle + 8 iterations and empties its queue at the same step.
    """

    id: str
    # the whole configuration; knobs not named here return to the job's own value
    knobs: tuple[KnobChoice, ...]
    iterations: int  # to measure
    min_settle: int = 5
    max_settle: int = 200
    # a block never takes longer, settling included; several ranks only count iterations, because
    # they must switch at the same step
    max_seconds: float = 60.0
    slow_start: bool = False  # its first iteration may take minutes without a message (compile)
    # continue past ``iterations`` for at most this long, until every worker has delivered ROUNDS
    # batches
    rounds_seconds: float = 0.0
    # feed the job from a few batches kept in memory: the ceiling for data loading improvements
    cached_batches: bool = False
    level: bool = True  # False: a cheap switch, min_settle iterations are enough


@dataclass(frozen=True)
class Plan:
    id: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Window:
    """Consecutive timed iterations, without evaluation and other work between them."""

    times_s: tuple[float, ...]  # one per iteration, wall time from optimizer step to optimizer step
    samples: tuple[float, ...]  # one per iteration
    phases_s: Mapping[str, float]  # PHASES -> total over the window
    data_s: tuple[float, ...] = ()  # the CPU's wait for the next batch, one per iteration
    # time lost at each epoch boundary inside the window (not part of times_s); on CUDA, device time
    turnovers_s: tuple[float, ...] = ()
    # for each of them: index in times_s of the first iteration after it
    turnovers_at: tuple[int, ...] = ()
    # time between iterations, not part of times_s: evaluation, saving, epoch boundaries
    away_s: float = 0.0
    epoch_iterations: int | None = None  # iterations per epoch under this configuration
    # interrupted iterations: the job did something else (evaluation) in them; blocks leave them out
    interruptions: int = 0
    peak_memory_gib: float = 0.0  # device memory on CUDA, memory of the process tree on a CPU
    # share of the window in which runnable tasks waited for a CPU (PSI "some"), 0..1
    cpu_pressure: float = 0.0
    # CPU use of processes outside this session during the window, in cores
    foreign_load: float = 0.0
    # one per iteration; {}: totals only
    phase_times_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # a clock or thermal limit active during the window, as text; "": none, or not readable
    throttled: str = ""
    # the GPU was at its power cap at the window's start or end; does not count as a disturbance
    power_capped: bool = False
    # CPU use of this session's own processes during the window, in cores; 0: unknown
    session_load: float = 0.0
    workers: int = 0  # workers of the training DataLoader at the end of the window
    # one per iteration: how many batches the workers are behind a full queue, in units of
    # iterations; it stays as it was once an epoch's last batches are drawn and a worker has none
    # left; (): no workers, or the platform cannot tell
    unmade: tuple[float, ...] = ()
    # Fetching batches, in the training process and its workers together: totals over the fetches
    # that were sampled.
    reader_cpu_s: float = 0.0
    reader_queued_s: float = 0.0  # runnable, but waiting for a CPU
    reader_wall_s: float = 0.0
    reader_fetches: float = 0.0  # 0: unknown (e.g. workers that are not forked)
    # getrusage figures of the training process (all threads) over the window's iterations; 0:
    # unknown.
    minor_faults: int = 0  # pages the kernel mapped, and mostly cleared, on first touch
    user_s: float = 0.0  # CPU seconds in the program
    system_s: float = 0.0  # CPU seconds in the kernel on its behalf
    involuntary_switches: int = 0  # times one of its threads was preempted
    minor_fault_counts: tuple[int, ...] = ()  # one per iteration
    system_times_s: tuple[float, ...] = ()  # one per iteration
    # one per iteration, from the machine's energy counters; (): not requested, or no counters
    joules: tuple[float, ...] = ()
    energy_counters: tuple[str, ...] = ()  # the counters summed: "package-0", "dram", "GPU"


@dataclass(frozen=True)
class BlockReport:
    id: str
    rank: int
    window: Window | None  # None if the block failed
    settle_iterations: int = 0
    settle_s: float = 0.0
    rebuild_s: float = 0.0  # wait for the first batch of a rebuilt DataLoader
    no_effect: Mapping[str, str] = field(default_factory=dict)  # knob -> why it had no effect
    error: str = ""  # "oom: …", "knob: …": the block failed, the job continues at baseline
    settled: bool = True  # False: max_settle was reached before times levelled off
    notes: Mapping[str, Any] = field(default_factory=dict)  # e.g. graph_breaks, recompiles


@dataclass(frozen=True)
class PlanDone:
    id: int
    rank: int


@dataclass(frozen=True)
class Record:
    """The result of one fixed run of the job, one entry per iteration from its very first step."""

    rank: int
    window: Window  # all iterations; the tuner determines where warm-up ends
    # sum of the losses that backward was called on since the last step; None if there was none, or
    # it is complex
    losses: tuple[float | None, ...]
    samples_before: tuple[float, ...]  # samples consumed before each step
    gradient_norms: tuple[float, ...] = ()  # before clipping, first probe_steps steps
    update_norms: tuple[float, ...] = ()  # of the parameter change, first probe_steps steps
    # count sketch of all gradients at the very first step, before clipping, unscaled (with the
    # job's own GradScaler: as scaled by it)
    gradient_sketch: tuple[float, ...] = ()
    # (): there was no gradient, it was not finite, or the step was skipped
    skipped: tuple[int, ...] = ()  # indexes of steps skipped by a gradient scaler
    # optimizer settings, parameter dtypes, train flags, dropout p, sampler …
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    # autotune.metric(name, value)
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # samples consumed when each value of metrics was reported
    metrics_at: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    no_effect: Mapping[str, str] = field(default_factory=dict)
    # those of no_effect that had none at all: on no rank, and not until they failed or were undone
    idle: tuple[str, ...] = ()
    ended_early: bool = False  # the job ended before the window was full
    # the training thread has ended but its process has not: another record may follow
    so_far: bool = False
    trace: str = ""  # profile mode: path of the gzipped Chrome trace
    evidence: Evidence | None = None  # profile mode
    # e.g. the final loss_scale, if the agent's scaler was in use
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """The agent failed and has switched itself off; the job continues untouched."""

    rank: int
    where: str
    text: str  # traceback
    # nothing failed, but the agent lost sight of the training; ``text`` says how
    unhooked: bool = False


PROGRESS_S = 5.0  # between two Progress messages


@dataclass(frozen=True)
class Progress:
    """Shows that the job is alive, so that a slow one is not taken for hung.

    Sent between iterations or during an evaluation, normally at most once per :data:`PROGRESS_S`.
    """

    rank: int
    iteration: int  # since the process started
    # longest gap between two signs of life in this block, or since training began; 0: none yet
    slowest_s: float = 0.0
    # set only when the job dies of an exception: iterations completed in the running block
    in_block: int | None = None


@dataclass(frozen=True)
class JobError:
    """An error raised by the job itself in one of several ranks."""

    rank: int
    kind: str  # "oom", "crash", "restart" (the launcher has started the ranks again)
    text: str  # traceback
    # time.monotonic(), shared by all processes of a machine: the earliest error causes the others
    at_s: float
    pid: int = 0


@dataclass(frozen=True)
class Pace:
    """How fast a rank is. Sent after each slice; the tuner then sets the window's end."""

    rank: int
    iterations: int  # recorded so far
    iteration_s: float
    away_s: float = 0.0  # per iteration, between iterations: evaluation, saving, epoch ends


@dataclass(frozen=True)
class Extent:
    """Where every rank's window ends. If sent after a Record: continue the window up to there."""

    steps: int  # from the first iteration
    slice_end: int = 0  # iteration at which the job waits again; 0: the window's end


MESSAGES: dict[str, type] = {
    cls.__name__: cls
    for cls in (Hello, Plan, BlockReport, PlanDone, Record, Fault, Progress, JobError, Pace, Extent)
}


def dump(message: Any) -> bytes:
    """One message as a line of JSON."""
    return (
        json.dumps(
            {"type": type(message).__name__, **encode(message)}, separators=(",", ":")
        ).encode()
        + b"\n"
    )


def load(line: bytes | str) -> Any:
    """Parse one line into its message.

    Raises:
        ValueError: not a message of this protocol, or of another protocol version.
    """
    data = json.loads(line)
    cls = MESSAGES.get(data.pop("type", "")) if isinstance(data, dict) else None
    if cls is None:
        raise ValueError(f"not a message of this protocol: {line[:80]!r}")
    if cls is Hello and (version := data.get("schema_version")) != SCHEMA_VERSION:
        raise ValueError(
            f"the job runs the agent of a different autotune version (protocol version {version},"
            f" this tuner has {SCHEMA_VERSION}): remove autotune_trials from the job's PYTHONPATH"
            " or environment, or install the same version there"
        )
    return decode(cls, data)
