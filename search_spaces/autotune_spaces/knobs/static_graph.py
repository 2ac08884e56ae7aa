"""Whether DistributedDataParallel may assume that every iteration has the first one's graph."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, NotApplicable, Value
from autotune_spaces.ddp import DdpSwitch, ddp_of
from autotune_spaces.facts import JobFacts, Machine


class StaticGraph(DdpSwitch):
    """It is offered only where it can save something and does not break the job.

        find_unused_parameters=False   no search for unused ones, so nothing to save: withdrawn
        … =True, and DDP's own count has seen different sets of parameters in use: withdrawn
        … =True, always the same so far                                            offered, but only by the preset ``thorough``

    A graph that changes later does not silently train wrongly: DDP keeps counting, and raises. In a
    trial this ends the trial; in the user's own training it would end the training, so this knob
    has to be requested.
    """

    name = "static_graph"
    range = "false, true (DistributedDataParallel with find_unused_parameters)"
    card = Card(
        what=(
            "DistributedDataParallel assumes that every iteration uses the same"
            " parameters as the first one. It then does not search the graph for unused"
            " ones after each forward."
        ),
        when_it_helps=(
            "The job sets find_unused_parameters=True, and the same parameters are unused"
            " in every iteration."
        ),
        when_it_does_not=(
            "With find_unused_parameters=False there is no search to save. It is wrong where the"
            " graph depends on the data, the step or a random number (layers dropped or added,"
            " experts, several heads in turn), even if that begins late in training:"
            " DistributedDataParallel then raises an error in the iteration that differs. It is"
            " therefore tried only if you request it by name or with the preset thorough, and only"
            " if no iteration has differed so far."
        ),
        changes_loss=(
            "Buckets are rebuilt in the order in which gradients arrive, so sums may"
            " round differently. The loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        values = super().candidates(machine, job)
        if not ddp_of(job).find_unused_parameters:
            raise NotApplicable(
                "the job does not set find_unused_parameters=True, so there is no search to save"
            )
        if not all(d.seen_static for d in job.ddp):
            raise NotApplicable(
                "the parameters in use differ from iteration to iteration, which a static"
                " graph does not allow"
            )
        return values
