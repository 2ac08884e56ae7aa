"""Samples per step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import NO_LOADER, loader_of, repeated_loader_of
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine

FACTORS = (1, 2, 4, 8)  # a smaller batch sees fewer samples in as many steps: no loss check passes
LR_RULES = ("none", "sqrt", "linear")
# Opacus' samplers
POISSON = ("UniformWithReplacementSampler", "DistributedUniformWithReplacementSampler")


class BatchSize(Knob):
    """``lr_scaling`` sets how the learning rate changes when the batch grows k-fold: not at all, ×
    √k, or × k.

    The ratio k needs the job's own batch size: the option own_batch_size if given (tuned.yaml has
    it), else the value the job built its DataLoader with. With the option, loaders of another batch
    size are left alone.
    """

    name = "batch_size"
    scope = Scope.LIVE
    numerics = Numerics.STATISTICAL
    costly = True
    in_graph = True
    # what a schedule over len(loader) steps has set by the time settings are compared
    declares = tuple(f"optimizers.*.groups.*.{name}" for name in ("lr", "betas*", "momentum"))
    least = 1
    example = 256
    range = "the job's × 1, 2, 4, 8"
    accepts = {"lr_scaling": LR_RULES}
    card = Card(
        what=(
            "How many samples the training DataLoader puts into one step; with lr_scaling"
            " sqrt or linear the learning rate is scaled with it."
        ),
        when_it_helps=(
            "The job's batch does not fill the device, so a larger one takes less time per sample."
        ),
        when_it_does_not=(
            "The device is already full, or memory runs out. Fewer, larger steps may need more"
            " samples to reach the same loss, and losses that compare samples within a batch"
            " (contrastive ones) change meaning. A schedule with a hard-coded number of steps (not"
            " from len(loader)) ends at a different point of the training; adjust it."
        ),
        changes_loss=(
            "Yes: a different training trajectory. The loss is compared per sample"
            " consumed, and the batch size and its learning-rate rule are adopted"
            " together or not at all."
        ),
        source=(
            "https://arxiv.org/abs/1706.02677 (linear rule); https://arxiv.org/abs/1811.03600"
            " (limits of large batches)"
        ),
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return loader_of(job).batch_size

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        loader = repeated_loader_of(job)
        if loader.custom_batch_sampler:
            raise NotApplicable(_why_fixed(loader.batch_sampler))
        if loader.batch_size is None:
            raise NotApplicable(
                "the job's DataLoader has batch_size=None: the dataset makes the batches itself"
            )
        if job.compares_samples:
            raise NotApplicable(
                "the loss compares the samples of a batch with each other"
                f" ({job.compares_samples}): a different batch size would change the loss"
                " itself"
            )
        if job.own_graphs:
            raise NotApplicable("the job captures its model in CUDA graphs, for one batch size")
        if job.mixture:
            raise NotApplicable(
                f"the job trains on {job.mixture}: changing the batch size of only one of"
                " them would change the mixture"
            )
        sizes = {loader.batch_size * factor for factor in FACTORS}
        most = math.inf if loader.samples is None else loader.samples // max(1, job.world_size)
        most = min([most, *loader.rank_samples])  # limited by the rank with the fewest samples
        return sorted(size for size in sizes if size <= most or size == loader.batch_size)

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        """Ranks whose shares differ by a sample or two may have equally many batches at one batch
        size, but not at another.
        """
        loader = loader_of(job)
        if (
            not isinstance(value, int)
            or loader.batch_size is None
            or len(set(_batches(loader, loader.batch_size))) > 1
        ):
            # a single process, or a job made for ranks that end at different steps
            return None
        counts = _batches(loader, value)
        if len(set(counts)) < 2:
            return None
        return (
            f"with batches of {value} some ranks have {min(counts)} batches per epoch and"
            f" others {max(counts)}, so the job would deadlock"
        )

    def apply(self, live: LiveJob, value: Value) -> None:
        """Raises RuntimeError if a learning-rate rule is requested before the job's own batch size
        is known.
        """
        if live.loader is not None:  # first, so that len() is right where the job is built
            own = {n: size for n, size in self.options.items() if n == "own_batch_size"}
            live.loader.set(batch_size=value, **own)
        live.control("lr_factor").set(self.lr_factor(live, value))

    def lr_factor(self, live: LiveJob, value: Value) -> float:
        """Factor for the learning rate at batch size ``value``; None: the job's own."""
        rule = self.options.get("lr_scaling", "none")
        if rule == "none" or value is None:
            return 1.0
        own = self.options.get("own_batch_size") or (
            live.loader.own_batch_size() if live.loader is not None else None
        )
        if not isinstance(own, int) or not isinstance(value, int):
            raise RuntimeError(
                f"lr_scaling {rule} needs the job's own batch size, which is not known yet"
            )
        return math.sqrt(value / own) if rule == "sqrt" else value / own

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return NO_LOADER if live.loader is None else None

    def remark(self, value: Value, own: Value) -> str:
        if not isinstance(value, int) or not isinstance(own, int) or value == own:
            return ""
        return (
            f"an epoch has {own / value:.3g}x as many steps; check any schedule or number"
            " of steps hard-coded in the job"
        )

    def snippet(self, value: Value) -> str:
        rule, own = self.options.get("lr_scaling", "none"), self.options.get("own_batch_size")
        line = f"DataLoader(..., batch_size={value})"
        if rule == "none" or not isinstance(own, int) or not isinstance(value, int):
            return line
        factor = f"({value} / {own}) ** 0.5" if rule == "sqrt" else f"{value} / {own}"
        return f'{line}\nfor group in optimizer.param_groups:\n    group["lr"] *= {factor}'


def _why_fixed(sampler: str) -> str:
    """Why a batch sampler other than torch's fixes the batch size, and what to do about it.
    ``sampler``: its class, "" if unknown.
    """
    if sampler in POISSON:
        return (
            f"Opacus' batch sampler ({sampler}) adds each sample to a batch with a fixed"
            " probability: the batch size varies from step to step, and with larger"
            " batches the same noise guarantees less privacy"
        )
    named = f" ({sampler})" if sampler else ""
    return (
        f"the job's DataLoader uses its own batch sampler{named}, which sets the batch"
        " size; if the job has a flag for it, it can be a knob (via:)"
    )


def _batches(loader: LoaderFacts, size: int) -> list[int]:
    """Batches per epoch of each rank."""
    return [n // size if loader.drop_last else -(-n // size) for n in loader.rank_samples]
