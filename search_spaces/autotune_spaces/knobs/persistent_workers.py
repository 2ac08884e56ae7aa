"""Whether workers are kept from one epoch to the next."""

from __future__ import annotations

from autotune_spaces.base import Card
from autotune_spaces.loader_argument import LoaderArgument


class PersistentWorkers(LoaderArgument):
    name = "persistent_workers"
    least_workers = 1
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
            "There are no workers, or one epoch takes minutes. If the training process changes the"
            " dataset or its collate_fn between epochs, persistent workers do not see the change."
            " autotune restarts them after a change to an attribute, a tensor, a list, or an array"
            " of up to 1 MiB."
        ),
        changes_loss=(
            "Not by itself. Random augmentation continues its stream instead of being"
            " reseeded at each epoch."
        ),
        source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    )
