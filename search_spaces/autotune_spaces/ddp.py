"""DistributedDataParallel for its knobs: the job's own arguments, and how to override them.

torch reads no environment variable for these arguments, and they only matter at construction. So a
knob puts its value into a variable of its own, and right after ``import torch`` the constructor is
patched to use that value, whoever calls it:

    AUTOTUNE_KNOB_…=50 ─▶ at_import ─▶ override(torch, "bucket_cap_mb", 50)
                                       ─▶ DistributedDataParallel(model, …) of the job,
                                          of accelerate, Lightning or the Trainer
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from autotune_spaces.base import Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.facts import DdpFacts, JobFacts, Machine

_OVERRIDES = "_autotune_overrides"  # attribute of the class: argument -> value


def ddp_of(job: JobFacts) -> DdpFacts:
    """The job's DistributedDataParallel; the largest if it builds several with equal arguments.

    Raises:
        NotApplicable: it builds none, or several with different arguments.
    """
    if not job.ddp:
        raise NotApplicable(_without(job))
    kinds = {
        (d.bucket_cap_mb, d.gradient_as_bucket_view, d.static_graph, d.find_unused_parameters)
        for d in job.ddp
    }
    if len(kinds) > 1:
        sites = ", ".join(dict.fromkeys(d.site for d in job.ddp))
        raise NotApplicable(
            "the job builds several DistributedDataParallel modules with different"
            f" arguments ({sites}), and a knob would make them the same"
        )
    return max(job.ddp, key=lambda d: d.gradients_mib)


def _without(job: JobFacts) -> str:
    if job.sharded:
        return (
            "the job shards its parameters (FSDP), to which DistributedDataParallel's"
            " arguments do not apply"
        )
    if job.world_size > 1:
        return f"the job trains in {job.world_size} processes, but not with DistributedDataParallel"
    return "the job trains in one process, without DistributedDataParallel"


def override(torch: Any, name: str, value: Any) -> None:
    """Make every later DistributedDataParallel use ``name=value``, whatever the caller passes.
    Idempotent.
    """
    cls = torch.nn.parallel.DistributedDataParallel
    overrides: dict[str, Any] | None = vars(cls).get(_OVERRIDES)
    if overrides is None:
        overrides = {}
        setattr(cls, _OVERRIDES, overrides)
        cls.__init__ = _overriding(cls.__init__, overrides)
    overrides[name] = value


def _overriding(original: Any, overrides: dict[str, Any]) -> Any:
    """A constructor that overrides its arguments with ``overrides``; it keeps the signature, which
    Lightning reads.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update(
            (name, value) for name, value in overrides.items() if name in signature.parameters
        )
        original(*bound.args, **bound.kwargs)

    return __init__


def mismatch(live: LiveJob, wanted: Any, found: Any) -> str | None:
    """Why a value did not take effect, or None. ``found`` reads it back from a
    DistributedDataParallel.
    """
    replicas = list(live.replicas)
    if not replicas:
        return "the job built no DistributedDataParallel"
    wrong = [value for value in map(found, replicas) if value != wanted]
    return f"DistributedDataParallel was built with {wrong[0]!r}" if wrong else None


class DdpSwitch(Knob):
    """A boolean argument of DistributedDataParallel; the knob has the argument's name."""

    scope = Scope.PROCESS
    numerics = Numerics.ROUNDING
    allowed = (False, True)

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return bool(getattr(ddp_of(job), self.name))

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        ddp = ddp_of(job)
        if getattr(ddp, self.name):
            raise NotApplicable(f"the job sets {self.name}=True itself ({ddp.site})")
        return [False, True]

    def environment(self, value: Value) -> dict[str, str]:
        return {self.own_variable: "1" if value else "0"}

    def at_import(self, torch: Any, environ: Mapping[str, str]) -> None:
        if environ.get(self.own_variable) in ("0", "1"):
            override(torch, self.name, environ[self.own_variable] == "1")

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return mismatch(live, value, lambda ddp: bool(getattr(ddp, self.name)))

    def snippet(self, value: Value) -> str:
        return f"DistributedDataParallel(..., {self.name}={value})"
