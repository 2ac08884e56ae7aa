"""The contents of job.yaml, typed and checked.

Plain frozen dataclasses that every stage takes as arguments; :mod:`autotune.job.load` reads and
checks the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune_spaces.base import SearchSpace
from autotune_spaces.codec import encode


@dataclass(frozen=True)
class Constraints:
    device_memory_fraction: float = 0.9
    host_memory_gib: float | None = None


@dataclass(frozen=True)
class Metric:
    """A metric of the job, held to the same rule."""

    # regular expression for a line of the job's output; "": the job calls autotune.metric()
    pattern: str = ""
    tolerance: float | None = None  # share of the metric; None: the loss's tolerance


@dataclass(frozen=True)
class Convergence:
    tolerance: float = 0.01  # share of the loss; "1%" in the file
    steps: int = 240  # optimizer steps over which seeded runs are compared
    metrics: Mapping[str, Metric] = field(default_factory=dict)


MOST_MINUTES = 10_080


@dataclass(frozen=True)
class Budget:
    minutes: float = 20.0
    trials: int | None = None  # None: as many as there is time for

    def tried(self, trials: int) -> bool:
        """Whether ``trials`` reaches the limit."""
        return self.trials is not None and trials >= self.trials


@dataclass(frozen=True)
class Tracking:
    # "auto": MLFLOW_TRACKING_URI, else sqlite in the run directory's parent; None: only the spool,
    # no MLflow
    uri: str | None = "auto"
    experiment: str | None = None  # None: the job's name


@dataclass(frozen=True)
class SideEffects:
    """What happens to the files that a trial writes."""

    put_back: bool = True
    keep: tuple[str, ...] = ()  # patterns relative to the working directory


EXECUTORS = {  # name in job.yaml -> module; its open_executor() creates one
    "local": "autotune.executors.local",
    "ray": "autotune.executors.cluster.executor",
}
SHARE_OPTIONS = ("gpus_per_slot", "cpus_per_slot", "nodes_per_slot")


@dataclass(frozen=True)
class ExecutorSpec:
    kind: str = "local"
    options: Mapping[str, object] = field(default_factory=dict)  # for ray: the fields of schema.Ray

    def identity(self) -> ExecutorSpec:
        """The part that decides which hardware a trial sees.

        The cluster's address and the number of slots may change during a run.
        """
        return ExecutorSpec(
            self.kind,
            {k: v for k, v in self.options.items() if self.kind != "ray" or k in SHARE_OPTIONS},
        )


@dataclass(frozen=True)
class JobSpec:
    name: str
    command: tuple[str, ...]  # argv; may hold {seed}, {trial_dir} and {<via knob>}
    workdir: Path  # absolute
    env: Mapping[str, str]
    search_space: SearchSpace
    search: str = "model"  # or an Optuna sampler: "tpe", "random"
    objective: str = "throughput"
    second_objective: str = ""  # only reported
    price: float | None = None  # of this machine, per hour
    planned_steps: int = 20_000
    constraints: Constraints = Constraints()
    convergence: Convergence = Convergence()
    budget: Budget = Budget()
    executor: ExecutorSpec = ExecutorSpec()
    tracking: Tracking = Tracking()
    side_effects: SideEffects = SideEffects()
    traces: str = "finalists"  # none, finalists, all
    # without an iteration for this long, the session counts as hung; None: judged by the job's own
    # pace
    hang_timeout_s: float | None = None
    startup_timeout_s: float = 600.0  # until the first optimizer step
    source: Path | None = None  # the job.yaml it came from

    @property
    def reads_energy(self) -> bool:
        return "energy" in (self.objective, self.second_objective)

    @property
    def remembered(self) -> bool:
        """Whether the history is read and written.

        It holds answers by time, and nothing for a search with two objectives.
        """
        return self.objective != "energy" and not self.second_objective

    def digest(self) -> str:
        """Identity of what is tuned: decides whether a run resumes.

        Command, environment, search space, objective, limits and tolerance count. Name, budget,
        price, tracking, traces, side effects and timeouts do not: they may change during a run.
        """
        space = [
            [type(k).__qualname__, k.name, k.values, k.options] for k in self.search_space.knobs
        ]
        identity = {
            "command": self.command,
            "workdir": str(self.workdir),
            "env": self.env,
            "search_space": space,
            "search": self.search,
            "objective": self.objective,
            "planned_steps": self.planned_steps,
            "constraints": self.constraints,
            "convergence": self.convergence,
            "executor": self.executor.identity(),
        }
        if self.second_objective:
            identity["second_objective"] = self.second_objective
        text = json.dumps(encode(identity), sort_keys=True, separators=(",", ":"), default=repr)
        return hashlib.sha256(text.encode()).hexdigest()
