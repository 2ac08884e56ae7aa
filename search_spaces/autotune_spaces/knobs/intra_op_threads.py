"""How many threads torch uses for one CPU operation."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, Numerics, Scope, Undone, Value
from autotune_spaces.domains import cores_per_rank, doubling
from autotune_spaces.facts import JobFacts, Machine


class IntraOpThreads(Knob):
    name = "intra_op_threads"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    in_graph = True  # dynamo guards on it
    least = 1
    example = 4
    range = "1, 2, 4 … cores"
    card = Card(
        what="How many threads torch uses for one CPU operation.",
        when_it_helps=(
            "DataLoader workers and training compete for the cores, or operations are too"
            " small to be worth splitting: fewer threads then leave cores free at the"
            " same speed. Or the job uses fewer threads than there are cores."
        ),
        when_it_does_not=(
            "Large operations on an otherwise idle CPU, and GPU training, where the CPU"
            " only launches kernels."
        ),
        changes_loss=(
            "Sums are split at different places and round differently. The loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/generated/torch.set_num_threads.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return job.intra_op_threads

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        return doubling(cores_per_rank(machine, job))

    def apply(self, live: LiveJob, value: Value) -> None:
        live.torch.set_num_threads(value)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        now = live.torch.get_num_threads()
        return None if now == value else Undone(f"the job set the number of threads back to {now}")

    def snippet(self, value: Value) -> str:
        return f"torch.set_num_threads({value})"
