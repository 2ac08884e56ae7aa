"""Whether gradients lie in the buckets they are exchanged in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune_spaces.base import Card, Knob, LiveJob, Numerics, Scope, Value, Withdrawn
from autotune_spaces.ddp import ddp_of, give, unlike
from autotune_spaces.domains import true_or_false
from autotune_spaces.facts import JobFacts, Machine

VARIABLE = "AUTOTUNE_KNOB_GRADIENT_AS_BUCKET_VIEW"


class GradientAsBucketView(Knob):
    name = "gradient_as_bucket_view"
    scope = Scope.PROCESS
    numerics = Numerics.ROUNDING
    range = "false, true (DistributedDataParallel)"
    card = Card(
        what="Gradients are views into the buckets DistributedDataParallel exchanges, instead of being copied there and back.",
        when_it_helps="The model is large: one copy of all gradients is saved in memory and in every backward.",
        when_it_does_not="Small models. Code that calls detach_() on gradients raises with it; the trial then fails, and the knob is left alone.",
        changes_loss="The arithmetic is the same. Gradients lie elsewhere in memory, so a kernel may round differently. It is checked.",
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return ddp_of(job).gradient_as_bucket_view

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        ddp = ddp_of(job)
        if ddp.gradient_as_bucket_view:
            raise Withdrawn(f"the job sets gradient_as_bucket_view=True itself ({ddp.site})")
        return [False, True]

    def check_value(self, value: Value) -> str | None:
        return true_or_false(value)

    def environment(self, value: Value) -> dict[str, str]:
        return {VARIABLE: "1" if value else "0"}

    def at_import(self, torch: Any, environ: Mapping[str, str]) -> None:
        if environ.get(VARIABLE) in ("0", "1"):
            give(torch, "gradient_as_bucket_view", environ[VARIABLE] == "1")

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return unlike(live, value, lambda ddp: bool(ddp.gradient_as_bucket_view))

    def snippet(self, value: Value) -> str:
        return f"DistributedDataParallel(..., gradient_as_bucket_view={value})"
