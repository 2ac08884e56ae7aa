"""Samples the model computes at once, with the optimizer's batch kept."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import loader_of, whole
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine

PORTIONS = (8, 4, 2)  # a batch may be split into


class MicroBatchSize(Knob):
    """Below the loader's batch it is split; above it, the batches of one optimizer step are computed together."""

    name = "micro_batch_size"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    in_graph = True
    redraws = True
    example = 32
    range = "the batch ÷ 2, 4, 8 (CPU); up to the optimizer's batch, where the job accumulates"
    card = Card(
        what="How many samples one pass of the model takes; the optimizer's batch, its steps and every schedule stay as they are. A "
        "larger one computes several batches of a job that accumulates gradients together, a smaller one splits the job's batch.",
        when_it_helps="The job accumulates gradients over batches too small to fill the device. Or it trains on a CPU with batches "
        "whose activations do not fit the caches.",
        when_it_does_not="Memory ends at the larger size (peak memory is reported with each trial). The split keeps all activations for "
        "the one backward call, so it saves no memory. It is out where a pass is more than its samples: batch normalisation, "
        "a model that returns its loss (only it knows what that averages over: samples, tokens, some of them). Such a job's own flags for batch "
        "and accumulation can be knobs of your own.",
        changes_loss="The same sums of gradients in another order, for any loss: it is computed by the job, from the results of the whole "
        "batch. That the model treats samples one by one is tested on a batch of the job's. Dropout draws other numbers, as with another seed. It is "
        "checked.",
        source="https://arxiv.org/abs/1811.06965 (micro-batches); https://arxiv.org/abs/2101.06983 (exact gradients from split batches)",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return loader_of(job).batch_size

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        size = self._batch_of(job)
        merged = [size * n for n in range(2, batches_a_step(job) + 1) if batches_a_step(job) % n == 0]
        split = [size // n for n in PORTIONS if size % n == 0] if job.device == "cpu" else []
        if not split and not merged:
            raise NotApplicable(
                "every batch has its own optimizer step, and to split one makes more work for a GPU"
                if job.device != "cpu"
                else f"every batch has its own optimizer step, and {size} samples cannot be split evenly"
            )
        return [*split, *merged]

    def _batch_of(self, job: JobFacts) -> int:
        """Samples of the loader's batches.

        Raises:
            NotApplicable: batches cannot be computed in other portions in this job, or nobody knows whether they can.
        """
        loader: LoaderFacts = loader_of(job)
        if loader.batch_size is None:
            raise NotApplicable("the job makes its batches itself, so it is not known how many samples one holds")
        if not job.models:
            raise NotApplicable("no module of the job's was seen called, so there is nothing that could be called on other portions")
        if any(model.batch_norms for model in job.models):
            raise NotApplicable("the model has batch normalisation, which computes with the samples of a pass together")
        if job.world_size > 1 and any(model.name != "DistributedDataParallel" for model in job.models):
            raise NotApplicable("several processes train together and share more than gradients, or not by DistributedDataParallel")
        if job.double_backward:
            raise NotApplicable("the job differentiates gradients, which needs each pass as the job made it")
        if job.own_compile:
            raise NotApplicable("the job compiles its model itself, for batches of its own size")
        return loader.batch_size

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        size, steps = self._batch_of(job), batches_a_step(job)
        if isinstance(value, int) and value > size * steps:
            return f"{value} samples are more than the optimizer's batch of {size * steps}; batch_size is the knob that changes that"
        return None

    def check_value(self, value: Value) -> str | None:
        return whole(value, 1)

    def apply(self, live: LiveJob, value: Value) -> None:
        own = live.loader.own("batch_size") if live.loader is not None else None
        live.set_micro_batch(None if value == own or not isinstance(value, int) else value)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return live.micro_batch_effect()

    def useless_with(self, value: Value, values: Sequence[Value], default: Value) -> Sequence[Value]:
        """What keeps batches from being computed together need not keep one from being split; the other way round it does."""
        if not isinstance(value, int) or not isinstance(default, int):
            return (value,)
        return [v for v in values if isinstance(v, int) and (value < default or v > default)]

    def snippet(self, value: Value) -> str:
        return (
            f"output = torch.cat([model(part) for part in inputs.split({value})])  # smaller than the batch\n"
            f"DataLoader(..., batch_size={value})  # larger: with as many times fewer backward calls a step"
        )


def batches_a_step(job: JobFacts) -> int:
    """Batches the job accumulates for each optimizer step, one backward call each; 1 where that is not what it does."""
    size = job.loader.batch_size if job.loader is not None else None
    count = job.samples_per_step / size if size else 1.0
    accumulates = count == job.backwards_per_step and count == int(count) and len(job.models) == 1 and not job.manual
    return int(count) if accumulates else 1
