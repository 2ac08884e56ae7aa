"""Sessions answered from a recorded table: tests of the search and the stages take seconds and need
no hardware.

The contents of a table, as JSON:

    {
      "cost_s": 0.002,                      baseline, seconds per sample
      "samples": 32,                        baseline, per step; a batch_size knob changes it
      "entries": [                          complete measured configurations
        {"config": {"num_workers": 2}, "cost_s": 0.0013},
        {"config": {"batch_size": 512}, "fails": "oom: CUDA out of memory"}
                                            or "crash: …", "hang: …"
      ],
      "factors": {"num_workers": {"1": 0.8, "4": 0.7}},
                                            other configurations: the baseline's cost times one
                                            factor per knob
      "otherwise": 1.0,                     factor of any other knob or value; without it, these
                                            are errors
      "noise": 0.02,                        standard deviation of the log time of an iteration
      "block_noise": 0.005,                 and of what a whole block or run has in common
      "startup_s": 5.0,
      "phases": {"data": 0.3, "forward": 0.3, "backward": 0.3, "optimizer": 0.05, "other": 0.05},
      "epoch_iterations": 100,
      "loss": {"first": 2.3, "last": 0.4, "scale_steps": 80, "noise": 0.03,
               "changed_by": {"amp_dtype": {"float16": 0.1}}},
      "machine": {"cores": 8},              fields of Machine and JobFacts that differ from those
      "job": {"world_size": 1},             below
      "peaks": {"float32": 1e12, "memory": 5e10}
                                            FLOP/s and bytes/s of the machine, if measured
    }

Times are log-normal around the table's cost. Everything follows from the executor's seed; losses
follow only from the run's seed, so runs are paired like real ones. No time passes: ``elapsed_s``
counts how long it would have taken.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.executors.base import WALL_S, Executor, FixedRun, LiveSession, SessionFailed
from autotune_spaces.base import Config, Value
from autotune_spaces.codec import decode
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine, ModelFacts, OptimizerFacts
from autotune_trials.protocol.failures import FAILURES
from autotune_trials.protocol.messages import (
    Block,
    BlockReport,
    Hello,
    Record,
    SessionConfig,
    Window,
)

WARM_UP = (20.0, 4.0, 2.0, 1.5)  # factors on the first iterations of a fresh process


@dataclass(frozen=True)
class Loss:
    """A falling curve ``last + (first - last) · exp(-step / scale_steps)`` with its own noise for
    each seed.
    """

    first: float = 2.3
    last: float = 0.4
    scale_steps: float = 80.0
    noise: float = 0.03
    # knob -> value -> relative change
    changed_by: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    config: Mapping[str, Value]
    cost_s: float | None = None
    fails: str = ""


@dataclass(frozen=True)
class ReplayTable:
    cost_s: float
    samples: float = 32.0
    entries: tuple[Entry, ...] = ()
    factors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    otherwise: float | None = None
    noise: float = 0.02
    block_noise: float = 0.005
    startup_s: float = 5.0
    phases: Mapping[str, float] = field(
        default_factory=lambda: {
            "data": 0.3,
            "to_device": 0.0,
            "forward": 0.3,
            "backward": 0.3,
            "optimizer": 0.05,
            "other": 0.05,
        }
    )
    epoch_iterations: int = 100
    loss: Loss = Loss()
    machine: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    # results of measure_peaks; empty: none were recorded
    peaks: Mapping[str, float] = field(default_factory=dict)

    def entry(self, config: Config) -> Entry:
        """The table's entry for ``config``.

        Raises:
            LookupError: there is none.
        """
        own = dict(config)
        for entry in self.entries:
            if dict(entry.config) == own and all(
                type(own[k]) is type(v) for k, v in entry.config.items()
            ):
                return entry
        cost_s = self.cost_s
        for knob, value in own.items():
            factor = self.factors.get(knob, {}).get(word(value), self.otherwise)
            if factor is None:
                raise LookupError(
                    f"the replay table knows neither {own} nor a factor of {knob}={word(value)}"
                )
            cost_s *= factor
        return Entry(own, cost_s)


def word(value: Value) -> str:
    """A knob's value as a key of the table: as JSON, but text without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


class ReplayExecutor(Executor):
    """Answers like a quiet or noisy machine.

    Args:
        seed: of the timing noise.
    """

    def __init__(self, table: ReplayTable, seed: int = 0) -> None:
        self.table, self.elapsed_s = table, 0.0
        self._random = random.Random(seed)
        self.sessions: list[Config] = []  # configurations of all sessions started, in order

    def open_live(self) -> LiveSession:
        self._start({})
        return _ReplaySession(self)

    def run_fixed(self, request: FixedRun) -> Record:
        self._start(request.config)
        cost_s = _cost(self.table.entry(request.config))
        samples = self._samples(request.config)
        shared = math.exp(self._random.gauss(0, self.table.block_noise))
        times: list[float] = []
        while len(times) < max(request.steps, SessionConfig.max_steps):
            spent_s = sum(times)
            if len(times) >= request.steps and spent_s >= request.min_seconds:
                break
            if request.max_seconds and spent_s >= request.max_seconds:
                break
            slow = WARM_UP[len(times)] if len(times) < len(WARM_UP) else 1.0
            times.append(
                cost_s * samples * shared * slow * math.exp(self._random.gauss(0, self.table.noise))
            )
        self.elapsed_s += sum(times)
        return Record(
            rank=0,
            window=self.window(times, samples),
            losses=self._losses(request, len(times)),
            samples_before=tuple(samples * i for i in range(len(times))),
            gradient_norms=tuple(1.0 / (1 + i) for i in range(SessionConfig.probe_steps)),
            update_norms=tuple(0.1 / (1 + i) for i in range(SessionConfig.probe_steps)),
            fingerprint=FINGERPRINT,
            notes={WALL_S: self.table.startup_s + sum(times)},
        )

    def measure_peaks(self, threads: int, device: str) -> Mapping[str, float]:
        return dict(self.table.peaks)

    def hello(self) -> Hello:
        return Hello(
            1,
            0,
            decode(Machine, {**MACHINE, **self.table.machine}),
            self._job(),
            self.table.startup_s,
            FINGERPRINT,
        )

    def report(self, block: Block, config: Config) -> BlockReport:
        """Report of one block with ``config``.

        Raises:
            SessionFailed: the table says that the process dies.
        """
        entry = self.table.entry(config)
        if entry.fails.partition(":")[0] in FAILURES and not entry.fails.startswith("oom"):
            raise _failed(entry)
        if entry.fails:
            return BlockReport(block.id, 0, None, error=entry.fails)
        samples, cost_s = self._samples(config), _cost(entry)
        if block.cached_batches:
            cost_s *= 1 - self.table.phases.get("data", 0.0)
        shared = cost_s * samples * math.exp(self._random.gauss(0, self.table.block_noise))
        count = max(1, min(block.iterations, int(block.max_seconds / shared)))
        times = [shared * math.exp(self._random.gauss(0, self.table.noise)) for _ in range(count)]
        settle_s = block.min_settle * shared
        self.elapsed_s += sum(times) + settle_s
        return BlockReport(
            block.id,
            0,
            self.window(times, samples),
            settle_iterations=block.min_settle,
            settle_s=settle_s,
        )

    def window(self, times_s: Sequence[float], samples: float) -> Window:
        total_s, table = sum(times_s), self.table
        whole = sum(table.phases.values())
        data = table.phases.get("data", 0.0) / whole
        return Window(
            times_s=tuple(times_s),
            samples=(samples,) * len(times_s),
            phases_s={name: total_s * share / whole for name, share in table.phases.items()},
            data_s=tuple(t * data for t in times_s),
            turnovers_s=(0.0,) * (len(times_s) // table.epoch_iterations),
            epoch_iterations=table.epoch_iterations,
            peak_memory_gib=1.0,
        )

    def _start(self, config: Config) -> None:
        self.elapsed_s += self.table.startup_s
        self.sessions.append(dict(config))
        entry = self.table.entry(config)
        if entry.fails:
            raise _failed(entry)

    def _samples(self, config: Config) -> float:
        batch = config.get("batch_size")
        return (
            float(batch)
            if isinstance(batch, (int, float)) and not isinstance(batch, bool)
            else self.table.samples
        )

    def _losses(self, request: FixedRun, steps: int) -> tuple[float, ...]:
        loss, noise = self.table.loss, random.Random(f"loss {request.seed}")
        change = sum(
            loss.changed_by.get(k, {}).get(word(v), 0.0) for k, v in request.config.items()
        )
        jitter = random.Random(f"rounding {request.seed} {sorted(request.config.items())}")
        curve = (
            loss.last + (loss.first - loss.last) * math.exp(-step / loss.scale_steps)
            for step in range(steps)
        )
        rounding = 1e-6 if request.config else 0.0
        return tuple(
            y * (1 + change + noise.gauss(0, loss.noise) + jitter.gauss(0, rounding)) for y in curve
        )

    def _job(self) -> JobFacts:
        loader = LoaderFacts(
            "Images",
            "train.py:20",
            "train.py:20#0",
            int(self.table.samples),
            0,
            None,
            False,
            False,
            False,
            False,
            self.table.epoch_iterations,
            int(self.table.samples) * self.table.epoch_iterations,
            False,
        )
        optimizer = OptimizerFacts(
            "AdamW", "default", ("for-loop", "foreach", "fused"), (1e-3,), 1_000_000
        )
        job = JobFacts(
            1,
            str(self.table.machine.get("device", "cpu")),
            loader,
            (optimizer,),
            (ModelFacts("Net", 1_000_000, 4),),
            samples_per_step=self.table.samples,
            intra_op_threads=int(self.table.machine.get("cores", MACHINE["cores"])),
        )
        return decode(JobFacts, {**_shallow(job), **self.table.job})


class _ReplaySession(LiveSession):
    def __init__(self, executor: ReplayExecutor) -> None:
        self._executor = executor
        self.hello = executor.hello()
        self._closed = False

    def measure(self, blocks: Sequence[Block]) -> list[BlockReport]:
        if self._closed:
            raise SessionFailed("ended", "the session is closed")
        reports: list[BlockReport] = []
        for block in blocks:
            config = {choice.name: choice.value for choice in block.knobs}
            try:
                reports.append(self._executor.report(block, config))
            except SessionFailed as failure:
                self._closed = True
                failure.partial = tuple(reports)
                raise
        return reports

    def close(self) -> None:
        self._closed = True


def _cost(entry: Entry) -> float:
    if entry.cost_s is None:
        raise LookupError(f"the replay table has no cost_s for {dict(entry.config)}")
    return entry.cost_s


def _failed(entry: Entry) -> SessionFailed:
    kind, _, detail = entry.fails.partition(":")
    return SessionFailed(kind if kind in FAILURES else "crash", detail.strip() or entry.fails)


def _shallow(job: JobFacts) -> dict[str, Any]:
    from autotune_spaces.codec import encode

    data = encode(job)
    assert isinstance(data, dict)
    return data


# A common server on which every knob of the CPU preset has several values.
MACHINE: dict[str, Any] = {
    "cores": 8,
    "memory_gib": 32.0,
    "shm_gib": 16.0,
    "device": "cpu",
    "device_name": "cpu",
    "torch_version": "2.13.0",
    "python_version": "3.11.9",
    "cpu_model": "replayed",
    "cpu_flags": ["avx2", "avx512_bf16"],
    "cxx_compiler": "g++",
    "c_compiler": "gcc",
    "platform": "linux",
}
FINGERPRINT: dict[str, Any] = {
    "optimizers": [{"name": "AdamW", "lr": [1e-3]}],
    "trainable": 1_000_000,
}
