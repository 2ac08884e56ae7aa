"""Whether gradients are views into the buckets in which they are exchanged."""

from __future__ import annotations

from autotune_spaces.base import Card
from autotune_spaces.ddp import DdpSwitch


class GradientAsBucketView(DdpSwitch):
    name = "gradient_as_bucket_view"
    range = "false, true (DistributedDataParallel)"
    card = Card(
        what=(
            "Makes gradients views into the buckets that DistributedDataParallel"
            " exchanges, instead of copying them there and back."
        ),
        when_it_helps=(
            "The model is large: it saves one copy of all gradients, in memory and in"
            " every backward."
        ),
        when_it_does_not=(
            "Small models. With it, code that calls detach_() on gradients raises an error; the"
            " trial then fails, and the knob is not adopted."
        ),
        changes_loss=(
            "The arithmetic is the same. Gradients are elsewhere in memory, so a kernel"
            " may round differently. The loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )
