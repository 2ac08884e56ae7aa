"""What the explain stage hands to the report: frozen records, part of result.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune_spaces.base import Value
from autotune_trials.protocol.evidence import Place


@dataclass(frozen=True)
class Peak:
    """A rate that this machine was measured to reach."""

    # "float32", "tf32", "bfloat16", "float16": FLOP/s of a large matmul; "memory": bytes/s of a
    # large copy; "dispatch": see value
    name: str
    value: float  # FLOP/s or bytes/s; "dispatch": seconds per call that does nothing
    vendor: float | None = None  # the data sheet's figure where known
    source: str = ""  # of the vendor's figure


@dataclass(frozen=True)
class Operator:
    """One row of the operator table: an operator with one set of shapes and types.

    Figures are over the profiled window.
    """

    name: str
    shapes: str  # "[64, 3, 32, 32] [16, 3, 3, 3]"
    dtypes: str
    calls: int
    self_time_s: float  # on the device if there is one, otherwise on the CPU
    share: float  # of all self time, 0..1
    total_time_s: float
    mean_s: float  # self time per call
    min_s: float
    max_s: float
    self_cpu_s: float = 0.0
    self_device_s: float = 0.0
    kernels: tuple[str, ...] = ()  # device kernels it launched, the costliest first
    flops: float | None = None  # per call; None: unknown
    nbytes: float | None = None  # per call, each operand and result once; None: unknown
    intensity: float | None = None  # FLOP per byte
    achieved: float | None = None  # FLOP/s; bytes/s for operators that compute nothing
    bound: str = ""  # "compute", "memory", "overhead", "" (not judged)
    of_roof: float | None = None  # achieved / what the roofline allows at this intensity, 0..1
    why: str = ""  # one sentence: the verdict with its figures, or why there is none
    # why it is faster than the roof allows: "cache", "fewer products"; of_roof is then 1
    above: str = ""


@dataclass(frozen=True)
class Span:
    """A stretch in the timeline strip, in seconds from its start."""

    lane: str  # "data", "forward" …: protocol.PHASES; "device": kernels; "copy"
    name: str
    start_s: float
    duration_s: float


@dataclass(frozen=True)
class PerfSummary:
    """The window's figures in the terms people compare: times in seconds, rates per second."""

    reader_cost_s: float
    batch_cost_s: float
    reader_ratio: float
    ips_mean: float  # samples per second
    ips_max: float
    ips_min: float
    ips_variance: float
    steps: int
    steps_skipped: int  # left out at the start
    # share of the window with a kernel running; CPU jobs: share of all cores in use
    device_utilisation: float | None = None
    utilisation_of: str = ""  # what the figure means, in words
    peak_memory_gib: float = 0.0
    host_to_device_bytes: float | None = None  # per step
    host_to_device_bytes_per_s: float | None = None  # while copying
    model_flops: float | None = None  # per step, forward and backward
    mfu: float | None = None  # model_flops / step time / measured peak of the dtype, 0..1
    mfu_of: str = ""  # which peak


@dataclass(frozen=True)
class KernelTime:
    name: str
    launches: int
    seconds: float  # total


@dataclass(frozen=True)
class NsightFacts:
    """What Nsight Systems saw in the captured window."""

    window_s: float
    steps: int  # iterations in it; 0: their ranges were not seen
    busy_s: float  # with at least one kernel running
    kernels: tuple[KernelTime, ...] = ()  # the costliest first
    launches: int = 0  # of all kernels
    host_to_device_bytes: float | None = None  # total; None: copies were not traced
    host_to_device_s: float | None = None
    missing: tuple[str, ...] = ()  # tables and columns its export lacks


@dataclass(frozen=True)
class KernelCounters:
    """One launch under Nsight Compute.

    Shares of what the card can sustain, 0..1; None where ncu gave no figure.
    """

    name: str
    duration_s: float | None = None
    compute_share: float | None = None
    memory_share: float | None = None


@dataclass(frozen=True)
class Side:
    """One profiled configuration."""

    config: Mapping[str, Value] = field(default_factory=dict)
    trace: str = ""  # Chrome trace, path within the run directory
    stacks: str = ""  # a second, shorter trace with Python frames
    table: str = ""  # CSV of all operators
    nsight: str = ""  # .nsys-rep, where it was asked for
    summary: PerfSummary | None = None
    operators: tuple[Operator, ...] = ()  # the costliest first
    timeline: tuple[Span, ...] = ()
    kernels_per_step: float = 0.0
    idle_share: float | None = None  # of an iteration, device without work; None on a CPU
    profiled_steps: int = 0  # iterations that the operators cover; 0: unknown
    nsight_facts: NsightFacts | None = None  # read from the .nsys-rep
    ncu: str = ""  # .ncu-rep, where it was asked for
    counters: tuple[KernelCounters, ...] = ()  # read from the .ncu-rep


@dataclass(frozen=True)
class Finding:
    """Something in the job that costs time, with evidence and a place."""

    rule: str  # "device-sync"
    title: str
    side: str  # "baseline", "winner"
    evidence: str  # a sentence with the figures
    advice: str  # what to do
    # per iteration; None: not measurable, the evidence says what is known
    cost_s: float | None = None
    place: Place | None = None
    places: tuple[Place, ...] = ()  # further places
    knob: str = ""  # the knob that cures it, if there is one
    cured: bool = False  # the winner no longer has it
    how_cured: str = ""  # "by num_workers=4"
    # cost per iteration in the winner, if it was found there, too; 0.0: it was not
    cost_after_s: float | None = None
    share: float | None = None  # cost_s / time of a watched iteration, 0..1


@dataclass(frozen=True)
class NotJudged:
    rule: str
    title: str
    reason: str


@dataclass(frozen=True)
class BuildUp:
    """One step of the waterfall: the knobs so far, against the baseline."""

    knob: str
    value: Value
    cumulative: float  # speed-up with this knob and all before it
    low: float
    high: float
    source: str = "own gains"  # or "confirmed"
    # further knobs added by this step; their separate gains were not measured
    together_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    sides: Mapping[str, Side] = field(default_factory=dict)  # "baseline", "winner"
    peaks: tuple[Peak, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    rules: int = 0  # how many were judged
    build_up: tuple[BuildUp, ...] = ()
    # knob -> share of the trials' variance, 0..1
    importance: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    notes: tuple[str, ...] = ()  # e.g. why a requested profiler was not used
