"""Whether gradients lie in the buckets they are exchanged in."""

from __future__ import annotations

from autotune_spaces.base import Card
from autotune_spaces.ddp import DdpSwitch


class GradientAsBucketView(DdpSwitch):
    name = "gradient_as_bucket_view"
    range = "false, true (DistributedDataParallel)"
    card = Card(
        what=(
            "Gradients are views into the buckets DistributedDataParallel exchanges, instead of"
            " being copied there and back."
        ),
        when_it_helps=(
            "The model is large: one copy of all gradients is saved in memory and in every"
            " backward."
        ),
        when_it_does_not=(
            "Small models. Code that calls detach_() on gradients raises with it; the trial then"
            " fails, and the knob is left alone."
        ),
        changes_loss=(
            "The arithmetic is the same. Gradients lie elsewhere in memory, so a kernel may round"
            " differently. The loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )
