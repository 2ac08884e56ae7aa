"""Memory layout of images and convolution weights."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import need_convolutions
from autotune_spaces.facts import JobFacts, Machine


class ChannelsLast(Knob):
    name = "channels_last"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    in_graph = True
    redraws = ("cpu", "cuda")
    allowed = (False, True)
    range = "false, true"
    card = Card(
        what=(
            "Stores images and convolution weights with the channels of a pixel next to"
            " each other in memory (NHWC), the layout that tensor cores and oneDNN use."
        ),
        when_it_helps="Convolutional networks, especially with bfloat16 or float16.",
        when_it_does_not=(
            "Models without convolutions, or with layers that fall back to the default"
            " layout: each change of layout is a copy. A program that flattens weights or gradients"
            " by view(-1), as torch.nn.utils.parameters_to_vector does, ends with an error."
        ),
        changes_loss=(
            "It uses a different convolution kernel, which rounds differently. Dropout"
            " follows the order in memory: between convolutions it drops different"
            " elements. The loss check covers it."
        ),
        source="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return job.own_settings.get("channels_last", "") != ""

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if not job.models:
            raise NotApplicable(
                "the job calls no torch.nn.Module while training (TorchScript ones do not count),"
                " so there is no model to convert"
            )
        need_convolutions(job)
        if any(optimizer.name == "LBFGS" for optimizer in job.optimizers):
            raise NotApplicable(
                "LBFGS flattens gradients by view(), which needs the default layout"
            )
        if job.sharded:
            raise NotApplicable(
                "the job shards its parameters (FSDP), which keeps each of them in the default layout"
            )
        if job.own_graphs:
            raise NotApplicable(
                "the job captures its model in CUDA graphs, which read the parameters where they"
                " were then; another layout moves them"
            )
        if self.current(machine, job):
            raise NotApplicable(
                f"the job uses channels_last itself ({job.own_settings['channels_last']})"
            )
        return [False, True]

    def apply(self, live: LiveJob, value: Value) -> None:
        for entry in live.entries:
            entry.set_channels_last(bool(value))

    def effect(self, live: LiveJob, value: Value) -> str | None:
        if not value or not live.entries:
            return None
        orders = {4: live.torch.channels_last, 5: live.torch.channels_last_3d}
        weights = [
            p for entry in live.entries for p in entry.module.parameters() if p.dim() in orders
        ]
        if not any(
            p.is_contiguous(memory_format=orders[p.dim()]) and not p.is_contiguous()
            for p in weights
        ):
            # A 1 × 1 kernel or a single channel has the same layout in both orders.
            return "no convolution weight has a different layout in channels_last"
        return None

    def snippet(self, value: Value) -> str:
        if not value:
            return ""
        return (
            "model = model.to(memory_format=torch.channels_last)\nimages ="
            " images.to(memory_format=torch.channels_last)"
        )
