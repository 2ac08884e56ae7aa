"""Samples the model computes at once, with the optimizer's batch kept."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import loader_of, whole
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine

PORTIONS = (8, 4, 2)  # a batch may be split into


class MicroBatchSize(Knob):
    """The loader's batch goes through the model in portions of this size."""

    name = "micro_batch_size"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    in_graph = True
    redraws = True
    example = 16
    range = "the batch ÷ 2, 4, 8 (CPU)"
    card = Card(
        what=(
            "How many samples one pass of the model takes: a batch is split into portions; the"
            " batch itself, the optimizer's steps and every schedule stay as they are."
        ),
        when_it_helps="Training on a CPU with batches whose activations do not fit the caches.",
        when_it_does_not=(
            "On a GPU, where more and smaller passes are more work. It saves no memory: all"
            " activations are kept for the one backward call. It is out where a pass is more than"
            " its samples: batch normalisation, a model that returns its loss (only it knows what"
            " that averages over: samples, tokens, some of them). Such a job's own flags for batch"
            " and accumulation can be knobs of your own."
        ),
        changes_loss=(
            "The same sums of gradients in another order, for any loss: it is computed by the job,"
            " from the results of the whole batch. That the model treats samples one by one is"
            " tested on a batch of the job's. Dropout draws other numbers, as with another seed. It"
            " is checked."
        ),
        source=(
            "https://arxiv.org/abs/1811.06965 (micro-batches); https://arxiv.org/abs/2101.06983"
            " (exact gradients from split batches)"
        ),
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return loader_of(job).batch_size

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        size = self._batch_of(job)
        if job.device != "cpu":
            raise NotApplicable("splitting batches makes more work for a GPU and saves no memory")
        portions = [size // n for n in PORTIONS if size % n == 0]
        if not portions:
            raise NotApplicable(f"{size} samples cannot be split evenly")
        return [*portions, size]

    def _batch_of(self, job: JobFacts) -> int:
        """Samples of the loader's batches.

        Raises:
            NotApplicable: batches cannot be computed in other portions in this job, or nobody knows
                whether they can.
        """
        loader: LoaderFacts = loader_of(job)
        if loader.batch_size is None:
            raise NotApplicable(
                "the job makes its batches itself, so it is not known how many samples one holds"
            )
        if not job.models:
            raise NotApplicable(
                "no module of the job's was seen called, so there is nothing that could be called"
                " on other portions"
            )
        if any(model.batch_norms for model in job.models):
            raise NotApplicable(
                "the model has batch normalisation, which computes with the samples of a pass"
                " together"
            )
        if job.world_size > 1 and any(
            model.name != "DistributedDataParallel" for model in job.models
        ):
            raise NotApplicable(
                "several processes train together and share more than gradients, or not by"
                " DistributedDataParallel"
            )
        if job.double_backward:
            raise NotApplicable(
                "the job differentiates gradients, which needs each pass as the job made it"
            )
        if job.own_compile:
            raise NotApplicable("the job compiles its model itself, for batches of its own size")
        return loader.batch_size

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        size = self._batch_of(job)
        if isinstance(value, int) and value > size:
            return (
                f"{value} samples are more than the loader's batch of {size}; batch_size is the"
                " knob that changes that"
            )
        return None

    def check_value(self, value: Value) -> str | None:
        return whole(value, 1)

    def apply(self, live: LiveJob, value: Value) -> None:
        own = live.loader.own("batch_size") if live.loader is not None else None
        live.control("micro_batch").set(
            None if value == own or not isinstance(value, int) else value
        )

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return live.control("micro_batch").effect()

    def useless_with(
        self, value: Value, values: Sequence[Value], default: Value
    ) -> Sequence[Value]:
        """What keeps a batch from being split into these portions keeps it from any."""
        return values

    def snippet(self, value: Value) -> str:
        return f"output = torch.cat([model(part) for part in inputs.split({value})])"
