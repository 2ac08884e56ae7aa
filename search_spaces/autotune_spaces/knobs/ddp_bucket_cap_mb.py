"""How many MiB of gradients go into one all-reduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.ddp import ddp_of, mismatch, override
from autotune_spaces.domains import neither_unset_nor_mib
from autotune_spaces.facts import JobFacts, Machine

SIZES_MIB = (1, 5, 10, 50, 100, 200, 400)
# torch's defaults: a first bucket of 1 MiB, then 25 MiB each
FIRST_MIB, USUAL_MIB = 1, 25


class DdpBucketCapMb(Knob):
    name = "ddp_bucket_cap_mb"
    scope = Scope.PROCESS
    numerics = Numerics.ROUNDING
    ordered = False
    example = 50
    range = "unset, 1 … 400 (DistributedDataParallel)"
    card = Card(
        what=(
            "How many MiB of gradients DistributedDataParallel puts into one all-reduce."
            " Unset is torch's default: a first bucket of 1 MiB, so that communication"
            " starts early, then buckets of 25 MiB."
        ),
        when_it_helps=(
            "Exchanging gradients takes a visible part of backward: larger buckets save"
            " calls on a high-latency network, smaller ones start earlier and overlap"
            " more of backward."
        ),
        when_it_does_not=(
            "All gradients fit into one small bucket, or the exchange is already hidden"
            " behind backward."
        ),
        changes_loss=(
            "Sums over ranks may be formed in a different order, which rounds"
            " differently. The loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        size = ddp_of(job).bucket_cap_mb
        if size is None:
            return "unset"
        return int(size) if size == int(size) else size

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        ddp = ddp_of(job)
        if ddp.own_buckets:
            raise NotApplicable(
                f"the job sets the size of every bucket itself (bucket_cap_mb_list, {ddp.site})"
            )
        if ddp.gradients_mib <= FIRST_MIB:
            raise NotApplicable(
                f"all gradients ({ddp.gradients_mib:.2g} MiB) fit into"
                " DistributedDataParallel's first bucket"
            )
        several = [size for size in SIZES_MIB if size < ddp.gradients_mib]
        # the smallest that holds all gradients in one bucket; larger sizes are the same
        one = [size for size in SIZES_MIB if size >= ddp.gradients_mib][:1]
        return ["unset", *several, *one]

    def check_value(self, value: Value) -> str | None:
        return neither_unset_nor_mib(value)

    def environment(self, value: Value) -> dict[str, str]:
        return {self.own_variable: str(value)}

    def at_import(self, torch: Any, environ: Mapping[str, str]) -> None:
        text = environ.get(self.own_variable, "")
        if text == "unset" or text.isdigit():
            override(torch, "bucket_cap_mb", int(text) if text.isdigit() else None)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        wanted = value if isinstance(value, int) else USUAL_MIB
        return mismatch(live, wanted * 2**20, lambda ddp: ddp.bucket_bytes_cap)

    def snippet(self, value: Value) -> str:
        return "" if value == "unset" else f"DistributedDataParallel(..., bucket_cap_mb={value})"
