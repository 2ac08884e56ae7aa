"""Programs with one planted fault each: the rule that must find it, and how such a program is run
and judged.

A new pair is one ordinary script in ``programs/`` (its fault is on a line marked ``# <- planted``,
timed by ``meter``, and absent with ``--clean``) and one line in :data:`PLANTED`.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autotune.explain.peaks import beside_vendor
from autotune.findings import RULES, Findings, judge
from autotune.stages import explain
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import KnobChoice, Record, SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session
from autotune_trials.session.waiting import Timeouts

PROGRAMS = Path(__file__).parent / "programs"
MARK = "# <- planted"
TOLERANCE = 0.25  # relative to the planted cost


@dataclass(frozen=True)
class Planted:
    """One program and the rule that must find its fault."""

    program: str  # file in programs/, without .py
    rule: str  # Rule.name
    quick: bool = False  # in the default test run; the others are slow
    gpu: bool = False
    says: tuple[str, ...] = ()  # what the evidence must contain
    knobs: dict[str, Any] = field(default_factory=dict)  # live knobs to hold
    environment: dict[str, str] = field(default_factory=dict)
    costed: bool = True  # False: the program does not time its fault
    placed: bool = True  # False: there is no line to name
    ranks: int = 1

    @property
    def source(self) -> Path:
        return PROGRAMS / f"{self.program}.py"

    @property
    def line(self) -> int:
        """Number of the marked line."""
        lines = self.source.read_text("utf-8").splitlines()
        return next(number for number, text in enumerate(lines, 1) if text.endswith(MARK))


PLANTED = (
    Planted("checkpoint", "periodic-stall", says=("Every 20 iterations", "torch.save")),
    Planted("image", "periodic-stall", says=("Every 25 iterations", "Image.save")),
    Planted("garbage", "gc-pauses"),
    Planted(
        "page_faults",
        "page-faults",
        costed=False,
        placed=False,
        says=("page faults per iteration", "in the kernel"),
    ),
    Planted("array_copies", "array-copies"),
    Planted("lists", "tensor-readout"),
    Planted("nan_check", "tensor-readout"),
    Planted("prints", "log-printing"),
    Planted("file_writes", "file-writes"),
    Planted("host_work", "host-work"),
    Planted("made_on_host", "made-on-host"),
    Planted(
        "slow_samples", "loader-bound", quick=True, says=("num_workers=0", "slow_samples.py:21")
    ),
    Planted("tiny_operators", "launch-bound", says=("aten::mul",)),
    Planted("graph_break", "graph-break", says=("time.sleep",)),
    Planted("recompile", "recompile", says=("self.phase ==",)),
    Planted("optimizer_loop", "eager-optimizer", says=("fused takes",)),
    Planted(
        "waiting_rank", "communication", ranks=2, says=("all_reduce of float32[16]", "2 ranks")
    ),
    Planted("padding", "padding", costed=False, says=("tokens in the watched batches (50%)",)),
    Planted("casts", "casts", says=("float of bfloat16",)),
    Planted("pageable_copies", "transfer-not-overlapped", gpu=True, says=("not pinned",)),
    Planted("idle_device", "host-bound", gpu=True),
    Planted("small_kernels", "launch-bound", gpu=True, costed=False),
    Planted("float32_products", "no-tensor-cores", gpu=True, costed=False, placed=False),
    Planted("wide_layers", "float8", gpu=True, costed=False, placed=False, says=("float8",)),
    Planted(
        "odd_dimensions", "odd-dimensions", gpu=True, costed=False, placed=False, says=("50257",)
    ),
)


@dataclass(frozen=True)
class Run:
    """The outcome of one profiled run."""

    record: Record
    judgement: Findings
    planted_s: float  # per iteration, over the watched ones

    def told(self) -> str:
        """Message for a failed test."""
        lines = [f"planted {self.planted_s * 1e3:.3f} ms an iteration"]
        lines += [f"{f.rule}: {f.cost_s} {f.place} {f.evidence}" for f in self.judgement.findings]
        return "\n".join(
            [*lines, *(f"not judged: {n.rule}: {n.reason}" for n in self.judgement.not_judged)]
        )


def run(planted: Planted, directory: Path, clean: bool) -> Run:
    """One profiled run of the program, in a session like those of ``autotune run``."""
    figures = directory / "planted"
    argv = [
        sys.executable,
        *(
            ["-m", "torch.distributed.run", "--nproc-per-node", str(planted.ranks)]
            if planted.ranks > 1
            else []
        ),
        str(planted.source),
        *(["--clean"] if clean else []),
    ]
    root = directory / "session"
    root.mkdir()
    knobs = tuple(KnobChoice(name, value) for name, value in planted.knobs.items())
    config = SessionConfig("profile", "", knobs=knobs, steps=explain.SETTLE_STEPS, seed=0)
    environment = {"OMP_NUM_THREADS": "1", "PLANTED": str(figures), **planted.environment}
    session = Session(
        Command(argv, directory, environment),
        SessionPaths(root),
        config,
        timeouts=Timeouts(startup_timeout_s=120.0, hang_timeout_s=60.0),
    )
    session.start()
    try:
        hello = session.wait_hello()
        record = session.wait_record()
    finally:
        session.close()
    observation: Any = SimpleNamespace(machine=hello.machine, job=hello.job, defaults={})
    context: Any = SimpleNamespace(run_dir=directory)
    peaks = beside_vendor(measure_peaks(hello.machine.device), hello.machine.device_name)
    side = explain.describe(context, observation, "baseline", planted.knobs, record, peaks)
    return Run(
        record,
        judge({"baseline": explain.case(observation, "baseline", side, record, peaks)}),
        mean_cost(figures, record),
    )


@cache
def measure_peaks(device: str) -> dict[str, float]:
    """Peaks of this machine with one thread, as the programs use it."""
    command = [
        sys.executable,
        "-m",
        "autotune_trials.measure.peaks",
        "--threads",
        "1",
        "--device",
        device,
    ]
    return dict(
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)[
            "peaks"
        ]
    )


def mean_cost(figures: Path, record: Record) -> float:
    """Mean of the program's own measurements in the watched iterations, which are its last ones."""
    if not figures.exists():
        return 0.0
    data = figures.read_bytes()
    ended = int(struct.unpack_from("d", data)[0])
    watched = len(record.evidence.times_s) if record.evidence is not None else 0
    # without the iteration in which watching began
    costs = struct.unpack_from(f"{ended}d", data, 8)[1 - watched :]
    return sum(costs) / len(costs) if costs else 0.0


def known_rules() -> set[str]:
    return {rule.name for rule in RULES}
