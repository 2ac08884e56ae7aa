"""The frozen records that stages hand to each other and to the reader.

They are written to result.json as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from autotune.explain.records import Explanation
from autotune_spaces.base import Value
from autotune_spaces.facts import JobFacts, Machine

RESULT_SCHEMA_VERSION = 2


class Bottleneck(StrEnum):
    """What takes most of an iteration's time."""

    LOADER = "loader"
    EPOCH_ENDS = "epoch ends"
    COMPUTE = "compute"
    OPTIMIZER = "optimizer"
    OVERHEAD = "overhead"


class TrialState(StrEnum):
    """How a trial of the search ended."""

    COMPLETE = "complete"
    PRUNED = "pruned"  # clearly slower after its first block, or never measured
    INFEASIBLE = "infeasible"  # it ran out of memory, or was killed repeatedly
    FAILED = "failed"


class LossState(StrEnum):
    """What the loss check says about a configuration."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    UNDECIDED = "undecided"
    NO_PROOF = "no-proof"  # the baseline's own loss cannot show it
    NOT_NEEDED = "not-needed"  # nothing was changed


class RunVerdict(StrEnum):
    TUNED = "tuned"
    KEEP_BASELINE = "keep-baseline"
    PROFILE = "profile"  # for a profile's page: nothing was tuned


# a ceiling below this is shown as "1.00x": no loader would gain anything, whatever the noise says
NO_FASTER = 1.005


@dataclass(frozen=True)
class Interval:
    """A ratio with its interval; 1.0 is "no difference"."""

    estimate: float
    low: float
    high: float


NO_GAIN = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Anatomy:
    """Where an iteration's time goes, in seconds (means over a window; see protocol.PHASES)."""

    phases_s: Mapping[str, float]
    iteration_s: float  # mean, winsorized
    median_s: float
    min_s: float
    max_s: float
    samples_per_s: float
    reader_cost_s: float  # mean wait for a batch
    batch_cost_s: float  # mean iteration, including waiting
    reader_ratio: float  # reader_cost_s / batch_cost_s
    iterations: int
    left_out: int  # iterations at the start that are not counted
    turnover_s: float = 0.0  # mean time lost at an epoch's end
    epoch_iterations: int | None = None  # iterations from one epoch end to the next; None: unknown
    peak_memory_gib: float = 0.0
    # For the training process, all its threads together; 0: unknown.
    minor_faults: float = 0.0  # page faults per iteration
    user_s: float = 0.0  # CPU seconds per iteration, in the program
    system_s: float = 0.0  # CPU seconds per iteration, in the kernel
    involuntary_switches: float = 0.0  # per iteration

    @property
    def epoch_ends_s(self) -> float:
        """Time lost at epoch ends, in seconds per iteration."""
        return self.turnover_s / self.epoch_iterations if self.epoch_iterations else 0.0


@dataclass(frozen=True)
class Observation:
    """The unchanged job."""

    machine: Machine
    job: JobFacts
    anatomy: Anatomy
    noise: float  # standard deviation of the log time per sample between baseline blocks
    # speed-up an infinitely fast loader would give; None if it could not be measured
    ceiling: float | None
    bottleneck: Bottleneck
    bottleneck_why: str  # one sentence with the figures
    domains: Mapping[str, tuple[Value, ...]]  # knobs in the search
    defaults: Mapping[str, Value]  # the job's own value of each
    withdrawn: Mapping[str, str]  # knob -> reason
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    startup_s: float = 0.0
    # of a fresh process, including start, evaluation and end; 0.0: unknown
    run_s: float = 0.0
    energy_counters: tuple[str, ...] = ()  # added up if an objective is energy


@dataclass(frozen=True)
class Trial:
    """One configuration measured in the search (live figures steer; they are never the result)."""

    number: int
    config: Mapping[str, Value]
    state: TrialState
    log_ratio: float | None = None  # log(time per sample, candidate / baseline): negative is faster
    standard_error: float | None = None
    # of blocks or fresh processes, candidate beside baseline; for the model's trials: its own
    # blocks
    pairs: int = 0
    reason: str = ""  # why a trial is pruned, infeasible or failed
    # from the model: "first look", "recalled", "sampled", "compile", "leader"; from a sampler:
    # "seed", "sampler"; "process"
    origin: str = ""
    no_effect: Mapping[str, str] = field(default_factory=dict)
    anatomy: Anatomy | None = None
    wall_s: float = 0.0
    settle_s: float = 0.0  # what its first block took to settle: compiling, starting workers
    node: str = ""  # where it was measured, on a cluster; "": on this machine
    # log_ratio for the job's second objective; None: there is none, or it was not measured
    second_log_ratio: float | None = None
    # for fresh processes: the configuration they were compared with
    reference: Mapping[str, Value] = field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        return None if self.log_ratio is None else math.exp(-self.log_ratio)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The fastest finished trial that beats the baseline."""
    faster = [
        t for t in trials if t.state == "complete" and t.log_ratio is not None and t.log_ratio < 0
    ]
    return min(faster, key=lambda t: t.log_ratio or 0.0, default=None)


@dataclass(frozen=True)
class TrainingTime:
    """How long the planned training takes, from the start of the process to its end."""

    steps: int  # optimizer steps of the unchanged job
    before_s: float
    after_s: float
    cold_s: float  # after, if nothing has been compiled yet
    whole: bool = True  # False: a run reached no evaluation or saving, so none is counted


@dataclass(frozen=True)
class Confirmation:
    """A finalist against the baseline in fresh processes."""

    config: Mapping[str, Value]
    speedup: Interval
    pairs: int  # of fresh processes: one of each side
    adopted: bool  # the whole interval is above "no gain"
    reason: str
    baseline_anatomy: Anatomy | None = None
    anatomy: Anatomy | None = None
    # not adopted because the interval stayed too wide, not because there is no gain
    too_noisy: bool = False
    # if too_noisy: how many would be enough; None: more will not help
    required_pairs: int | None = None
    # not every run reached the second epoch, although the job has one
    first_epoch_only: bool = False
    second: Interval | None = None  # speedup for the job's second objective
    training: TrainingTime | None = None  # None: the duration of the whole runs is unknown
    interleaved: bool = False  # both processes of a pair were alive at once and trained in slices


@dataclass(frozen=True)
class MetricVerdict:
    """A metric of the user's own, checked like the loss.

    Reported by ``autotune.metric`` or found by a pattern in the job's output.
    """

    name: str
    verdict: str  # "unchanged", "changed", "undecided", "not-judged"
    reason: str
    margin: float | None = None  # in the metric's own unit
    largest_difference: float | None = None


@dataclass(frozen=True)
class LossVerdict:
    verdict: LossState
    reason: str
    pairs: int
    steps: int
    margin: float | None = None  # in the loss's own unit
    largest_difference: float | None = None
    numerics: str = "exact"
    # samples consumed -> mean loss
    baseline_curve: Mapping[int, float] = field(default_factory=dict)
    candidate_curve: Mapping[int, float] = field(default_factory=dict)
    metrics: tuple[MetricVerdict, ...] = ()
    config: Mapping[str, Value] = field(default_factory=dict)  # what was compared with the baseline
    chaotic: bool = False  # runs with the same seed drift as far apart as two seeds do
    # no-proof because the job's loss moves too little: how many times as far it would have to
    lacks: float = 0.0


@dataclass(frozen=True)
class Rejected:
    config: Mapping[str, Value]
    reason: str


@dataclass(frozen=True)
class KnobGain:
    """What one knob of the winner gains by itself: winner against winner without it."""

    knob: str
    value: Value
    speedup: Interval | None
    kept: bool
    reason: str = ""
    start_up_s: float = 0.0
    break_even_steps: int | None = None
    at_least: bool = False  # the figure is from a running job, which shows less of this knob


@dataclass(frozen=True)
class Written:
    """What trials wrote outside their own directories, and what became of it.

    Paths are relative to the job's directory where they can be.
    """

    # the user's files that were changed and restored; at most 20 names
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # created by trials and removed
    # created before training began (a data set), left for the next trial and the user
    prepared: tuple[str, ...] = ()
    # in directories that trials created, but not removed with them: it is unknown who wrote them
    left: tuple[str, ...] = ()
    # how many there are of each of the four in total
    counts: Mapping[str, int] = field(default_factory=dict)
    unkept: Mapping[str, str] = field(default_factory=dict)  # changed and not restored -> why
    # could not be restored -> where the original is, or why
    failed: Mapping[str, str] = field(default_factory=dict)
    noticed: tuple[str, ...] = ()  # changed during a trial by something that could not be watched


@dataclass(frozen=True)
class CompileCache:
    """Compiled kernels of the winner, kept beside tuned.yaml; empty strings: there are none."""

    file: str = ""
    digest: str = ""  # SHA-256 of the file
    # cost of starting without them: the first iterations' time beyond that of as many later ones
    cold_s: float = 0.0
    warm_s: float = 0.0  # the same with them


@dataclass(frozen=True)
class Point:
    """A configuration by both objectives: factors over the unchanged job, above 1 is better."""

    config: Mapping[str, Value]
    first: float
    second: float
    number: int | None = None  # of its trial; None: the unchanged job
    beaten: bool = False  # another one is at least as good in both


PROVEN_ANEW = "proven anew"  # Recalled.outcome: the recorded answer, proven again


@dataclass(frozen=True)
class Recalled:
    """What the history of earlier runs contributed to this one; no verdict rests on it."""

    # "exact", "other-software" (the same job and machine), "near" (similar jobs), "" (nothing)
    kind: str = ""
    run: str = ""  # the recorded run of the same job
    runs: int = 0  # runs whose figures ordered the search
    likeness: float = 0.0  # of the most similar job, 0..1
    recorded_iteration_s: float | None = None  # of the unchanged job, as recorded
    iteration_s: float | None = None  # of the unchanged job, now
    slower: bool = False  # than recorded, beyond the noise: machine or software got slower
    outcome: str = ""  # PROVEN_ANEW, "not proven", "prior", "dropped"


@dataclass(frozen=True)
class Result:
    """The contents of result.json."""

    name: str
    verdict: RunVerdict
    reason: str
    speedup: Interval
    loss: LossVerdict
    knobs: Mapping[str, Value]  # only those changed
    baseline: Mapping[str, Value]  # the job's own value of every knob in the search
    observation: Observation
    confirmation: Confirmation | None
    gains: tuple[KnobGain, ...]
    rejected: tuple[Rejected, ...]
    trials: tuple[Trial, ...]
    wall_s: float
    environment: Mapping[str, Any]
    explanation: Explanation = field(default_factory=Explanation)
    disturbed: int = 0  # windows measured again because the machine was busy with something else
    disturbed_why: str = ""  # what it was busy with, the last time
    # knobs, and values that need fresh processes, that were not tried, and why
    untried: str = ""
    written: Written = field(default_factory=Written)
    recalled: Recalled = Recalled()
    compile_cache: CompileCache = CompileCache()
    # with two objectives: all that was measured, best by the first one first; live figures
    points: tuple[Point, ...] = ()
    schema_version: int = RESULT_SCHEMA_VERSION


@dataclass(frozen=True)
class Profile:
    """summary.json of ``autotune profile``: one configuration explained, nothing tuned."""

    name: str
    config: Mapping[str, Value]  # knobs that were set; {}: the unchanged job
    observation: Observation  # of the profiled process: noise and ceiling were not measured
    explanation: Explanation
    wall_s: float
    environment: Mapping[str, Any]
    no_effect: Mapping[str, str] = field(default_factory=dict)  # knob -> why it did nothing
    written: Written = field(default_factory=Written)
    schema_version: int = RESULT_SCHEMA_VERSION
