"""What the tuner and the agent in the user's process say to each other.

A session is one run of the user's command. The tuner writes ``session.json``
(:class:`SessionConfig`) and sets ``AUTOTUNE_SESSION`` to its path; the agent reads it. What happens
next depends on the mode:

    live      agent ── Hello ──▶ tuner      after the first few iterations, job paused in the step hook
              agent ◀── Plan ─── tuner      a list of blocks
              agent ── BlockReport ─▶       one a block, sent while the job goes on
              agent ── PlanDone ──▶ tuner   job paused in the hook, until the next Plan
              ...
              tuner ends the process tree

    fixed     knobs set from the start, one window of ``steps`` iterations recorded
              agent ── Hello ──▶, then  ── Record ──▶ tuner, job paused until the tuner ends it

    profile   as fixed; after ``steps``, torch.profiler is on for ``profile_steps``, then ``watch_steps`` iterations are
              watched; Record says where the trace lies, and what was seen (Record.evidence)

    launch    knobs set from the start, no channel, nothing recorded

Ranks of a distributed job have two things more to say, because they must not decide alone:

    fixed, profile    every rank ── Pace ──▶ tuner ── Extent ──▶ every rank: all end their window at the same step
    any               a rank that fails ── JobError ──▶ tuner, which ends the session: the others wait for that rank

Messages are one JSON object a line over a Unix socket in a directory only its user can enter. Every
rank of a distributed job connects and is sent the same plan; blocks are counted in iterations, so
ranks switch together.
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
SESSION_VARIABLE = "AUTOTUNE_SESSION"  # path of session.json; its presence is what wakes the agent

# of one iteration; they add up to it
PHASES = ("data", "to_device", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class KnobChoice:
    """A knob as the agent needs it: registry name (or a ``via:`` definition), value, options."""

    name: str
    value: Value
    options: Mapping[str, Value] = field(default_factory=dict)


class SessionMode(str, enum.Enum):
    """What a session does."""

    LIVE = "live"  # knobs are switched between blocks of iterations
    FIXED = "fixed"  # knobs hold from the start, one window is recorded
    PROFILE = "profile"  # fixed, then iterations under torch.profiler and under observers
    LAUNCH = "launch"  # knobs hold from the start, nothing is recorded


@dataclass(frozen=True)
class SessionConfig:
    """session.json: everything the agent is told before the job starts."""

    mode: SessionMode
    directory: str  # session directory: logs, markers, traces
    socket: str = ""  # path of the Unix socket; "" in launch mode
    # live-scope knobs to hold from the start (fixed, profile, launch)
    knobs: tuple[KnobChoice, ...] = ()
    # LoaderFacts.key of the training DataLoader, known since observe; "" = find out
    loader_key: str = ""
    steps: int = 240  # iterations to record (fixed, profile)
    # and go on recording for at least this long after the first iteration (at most max_steps)
    min_seconds: float = 0.0
    # stop recording after this long even if steps are not reached; 0 = never
    max_seconds: float = 0.0
    max_steps: int = 2000
    # fixed, one rank: iterations after which the job waits for another process to run its slice, as
    # an Extent says where the next one ends; 0: it runs on its own
    slice_steps: int = 0
    probe_steps: int = 8  # first steps on which gradient and update norms are recorded
    # profile: iterations watched for evidence, after the profiled ones; fewer if the job ends
    watch_steps: int = 60
    profile_steps: int = 12
    # offset added to every seed the job sets (and the seed where it sets none); None = hands off
    seed: int | None = None
    # fixed: random numbers of a batch depend on its place in the epoch, not on which worker
    # prepares it
    match_streams: bool = False
    # initial scale of the agent's own float16 LossScaler; None: its usual one
    loss_scale: float | None = None
    warmup_steps: int = 3  # live: iterations before Hello
    # live: Hello waits until the job has gone on after its first epoch (evaluation included), at
    # most this long
    first_epoch_s: float = 0.0
    record_loss: bool = True
    # profile: in the profiled window also ranges for modules down to this depth below the entry; 0:
    # none
    nvtx_modules: int = 0
    # and go on watching for at least this long, so that lines can be told apart (one rank only)
    watch_seconds: float = 4.0
    # profile: with Python frames, which a session of its own is for (see measure/profiler.py)
    stacks: bool = False
    # fixed, profile, launch: what the command was started with, to be checked for its effect
    process_knobs: tuple[KnobChoice, ...] = ()
    energy: bool = False  # live, fixed: windows hold what iterations take of the machine's counters
    # profile: a tool around the job captures the window (cudaProfilerApi); torch.profiler stays out
    # of its way
    capture: bool = False


ELSEWHERE = 0
# of the workers' deliveries in one measured block, where time allows: they may all come at once,
# and then nothing for long
ROUNDS = 4


@dataclass(frozen=True)
class Hello:
    """First message of a process that trains, after ``warmup_steps`` iterations."""

    # ELSEWHERE: the process runs on another machine (outpost.py), and only its end of the
    # connection tells that it is gone
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

    Settling includes emptying the loader's queue after a stall: the job trains on later batches
    then, and what was thrown away counts nowhere. Several ranks settle for min_settle + 8
    iterations each, and throw away alike.
    """

    id: str
    # the whole configuration; what is not named goes back to the job's own value
    knobs: tuple[KnobChoice, ...]
    iterations: int  # to measure
    min_settle: int = 5
    max_settle: int = 200
    max_seconds: float = 60.0  # a block never takes longer, settling included
    slow_start: bool = False  # minutes may pass before its first iteration, in silence (compile)
    # go on beyond ``iterations`` for at most this long, until every worker has delivered ROUNDS
    # batches
    rounds_seconds: float = 0.0
    # feed the job from a few batches kept in memory: the ceiling of the data side
    cached_batches: bool = False
    level: bool = True  # False: a cheap switch, after which min_settle iterations are enough


@dataclass(frozen=True)
class Plan:
    id: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Window:
    """Timed consecutive iterations. Evaluation and whatever else runs between iterations of
    training is left out.
    """

    times_s: tuple[float, ...]  # one an iteration, wall time from optimizer step to optimizer step
    samples: tuple[float, ...]  # one an iteration
    phases_s: Mapping[str, float]  # PHASES -> total over the window
    data_s: tuple[float, ...] = ()  # the CPU's wait for the next batch, one an iteration
    # time lost at each epoch end inside the window (not part of times_s); on CUDA the device's
    turnovers_s: tuple[float, ...] = ()
    # of each of them: the first iteration after it, as an index of times_s
    turnovers_at: tuple[int, ...] = ()
    # between the iterations, no part of times_s: evaluation, saving, epoch ends
    away_s: float = 0.0
    epoch_iterations: int | None = None  # iterations an epoch has under this configuration
    # iterations left out because the job did something else (evaluation) in them
    interruptions: int = 0
    peak_memory_gib: float = 0.0  # device memory on CUDA, resident set of the process tree on a CPU
    # share of the window in which runnable tasks waited for a CPU (PSI "some"), 0..1
    cpu_pressure: float = 0.0
    # CPU use of processes outside this session during the window, in cores
    foreign_load: float = 0.0
    # one an iteration; {}: totals only
    phase_times_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # a clock or thermal limit active during the window, in words; "": none, or not readable
    throttled: str = ""
    # the GPU was at its power cap at the window's start or end: no disturbance
    power_capped: bool = False
    # CPU use of this session's own processes during the window, in cores; 0: not known
    session_load: float = 0.0
    workers: int = 0  # of the training DataLoader, at the end of the window
    # one an iteration: batches its workers had been asked for and had not made yet, in iterations;
    # (): there are no workers, or the system does not tell
    unmade: tuple[float, ...] = ()
    # Fetching batches, in the training process and in its workers together: totals over the fetches
    # that were looked at.
    reader_cpu_s: float = 0.0
    reader_queued_s: float = 0.0  # ready to run, while others had the CPUs
    reader_wall_s: float = 0.0
    reader_fetches: float = 0.0  # 0: nothing is known of them (workers that are not forked, say)
    # Of the training process over the iterations of the window, all its threads together
    # (getrusage); 0: not known.
    minor_faults: int = 0  # pages the kernel mapped, and mostly cleared, on first touch
    user_s: float = 0.0  # CPU seconds in the program
    system_s: float = 0.0  # CPU seconds in the kernel on its behalf
    involuntary_switches: int = 0  # times one of its threads was taken off a core
    minor_fault_counts: tuple[int, ...] = ()  # one an iteration
    system_times_s: tuple[float, ...] = ()  # one an iteration
    # one an iteration, of the machine's own counters; (): not asked for, or there are none
    joules: tuple[float, ...] = ()
    energy_counters: tuple[str, ...] = ()  # those that are added up: "package-0", "dram", "GPU"


@dataclass(frozen=True)
class BlockReport:
    id: str
    rank: int
    window: Window | None  # None if the block failed
    settle_iterations: int = 0
    settle_s: float = 0.0
    rebuild_s: float = 0.0  # from asking the rebuilt DataLoader for its first batch to having it
    no_effect: Mapping[str, str] = field(default_factory=dict)  # knob -> why it did nothing
    error: str = ""  # "oom: …", "knob: …": the block failed, the job goes on at baseline
    settled: bool = True  # False: max_settle was reached while times still moved
    notes: Mapping[str, Any] = field(default_factory=dict)  # e.g. graph_breaks, recompiles


@dataclass(frozen=True)
class PlanDone:
    id: int
    rank: int


@dataclass(frozen=True)
class Record:
    """What one fixed run of the job gave, one entry an iteration from its very first step."""

    rank: int
    window: Window  # all iterations, first to last; the tuner finds where warm-up ends
    # what backward differentiated since the last step, summed; None if there was nothing, or it is
    # complex
    losses: tuple[float | None, ...]
    samples_before: tuple[float, ...]  # samples consumed before each step
    gradient_norms: tuple[float, ...] = ()  # before clipping, first probe_steps steps
    update_norms: tuple[float, ...] = ()  # of the parameter change, first probe_steps steps
    # count sketch of all gradients at the very first step, unscaled, before clipping;
    gradient_sketch: tuple[float, ...] = ()
    # (): there was no gradient, it was not finite, or the step was skipped. Under a GradScaler of
    # the job's own: as that scaled it
    skipped: tuple[int, ...] = ()  # indexes of steps skipped by a gradient scaler
    # optimizer settings, parameter dtypes, train flags, dropout p, sampler …
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    # autotune.metric(name, value)
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # samples consumed when each value of metrics was reported
    metrics_at: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    no_effect: Mapping[str, str] = field(default_factory=dict)
    seeds_seen: bool = False  # the job seeds itself, or the agent did
    ended_early: bool = False  # the job ended before the window was full
    # the thread that trained has ended, and its process not yet: another record may follow
    so_far: bool = False
    trace: str = ""  # profile mode: path of the gzipped Chrome trace
    evidence: Evidence | None = None  # profile mode
    # e.g. loss_scale at the end, where the agent's scaler was in use
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """The agent could not do its work and has stepped aside; the job goes on untouched."""

    rank: int
    where: str
    text: str  # traceback
    # nothing has failed: the job has left the agent's sight, and ``text`` says how
    unhooked: bool = False


PROGRESS_S = 5.0  # between two messages that say no more than that


@dataclass(frozen=True)
class Progress:
    """Sent between two iterations or in an evaluation, at most once in :data:`PROGRESS_S`, so that
    a slow job is not taken for a hung one.
    """

    rank: int
    iteration: int  # since the process started
    # the longest gap between two signs of life in this block, or since the job began to train; 0:
    # there was none yet
    slowest_s: float = 0.0
    # iterations of the running block that ended before the job died of an exception, said then only
    in_block: int | None = None


@dataclass(frozen=True)
class JobError:
    """An error of the job's own in one rank of several."""

    rank: int
    kind: str  # "oom", "crash", "restart" (the launcher has started the ranks again)
    text: str  # traceback
    # time.monotonic(), one clock for all processes of a machine: the first is the cause of the
    # others
    at_s: float
    pid: int = 0


@dataclass(frozen=True)
class Pace:
    """How fast a rank goes, asked of all before they are told where their window ends, and told at
    the end of a slice.
    """

    rank: int
    iterations: int  # recorded so far
    iteration_s: float


@dataclass(frozen=True)
class Extent:
    """Where the window of every rank ends. After a record: it goes on, up to there."""

    steps: int  # from the first iteration
    slice_end: int = 0  # as far as the job runs before it waits again; 0: to the window's end


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
    """The message in a line.

    Raises:
        ValueError: not a message of this protocol, or not of this version of it.
    """
    data = json.loads(line)
    cls = MESSAGES.get(data.pop("type", "")) if isinstance(data, dict) else None
    if cls is None:
        raise ValueError(f"not a message of this protocol: {line[:80]!r}")
    if cls is Hello and (version := data.get("schema_version")) != SCHEMA_VERSION:
        raise ValueError(
            f"the job runs the agent of another autotune (protocol version {version}, this tuner"
            f" has {SCHEMA_VERSION}): remove autotune_trials from the job's PYTHONPATH or"
            " environment, or install the same version there"
        )
    return decode(cls, data)
