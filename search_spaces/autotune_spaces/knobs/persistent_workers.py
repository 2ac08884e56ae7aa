"""Whether workers are kept from one epoch to the next."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Config, Knob, LiveJob, Numerics, Scope, Value
from autotune_spaces.domains import host_loader_of, loader_of, true_or_false
from autotune_spaces.facts import JobFacts, Machine


class PersistentWorkers(Knob):
    name = "persistent_workers"
    scope = Scope.LIVE
    numerics = Numerics.EXACT
    dear = True
    loader = True
    range = "false, true"
    card = Card(
        what=(
            "Keeps the worker processes from one epoch to the next instead of starting"
            " new ones every epoch."
        ),
        when_it_helps=(
            "Epochs are short, or workers are slow to start (big imports, large dataset objects)."
        ),
        when_it_does_not=(
            "There are no workers, or one epoch takes minutes. If the training process"
            " changes the dataset or its collate_fn between epochs, persistent workers do not"
            " see the change. Under autotune they are started anew after one in an attribute,"
            " a tensor, a list, or an array of up to 1 MiB."
        ),
        changes_loss=(
            "Not by itself. Random augmentation continues its stream instead of being"
            " reseeded at each epoch."
        ),
        source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return loader_of(job).persistent_workers

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        host_loader_of(job)
        return [False, True]

    def check_value(self, value: Value) -> str | None:
        return true_or_false(value)

    def active(self, config: Config, defaults: Config) -> bool:
        return config.get("num_workers", defaults.get("num_workers")) != 0

    def apply(self, live: LiveJob, value: Value) -> None:
        if live.loader is not None:
            live.loader.set(persistent_workers=value)

    def snippet(self, value: Value) -> str:
        return f"DataLoader(..., persistent_workers={value})"
