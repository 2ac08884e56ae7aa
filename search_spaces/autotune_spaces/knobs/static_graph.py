"""Whether DistributedDataParallel may take the graph of the first iteration for that of all."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, NotApplicable, Value
from autotune_spaces.ddp import DdpSwitch, ddp_of
from autotune_spaces.facts import JobFacts, Machine


class StaticGraph(DdpSwitch):
    """Where it is offered follows from what it saves and from what it forbids.

        find_unused_parameters=False   nothing is searched for, so nothing is saved: withdrawn
        … =True, and DDP's own count has seen another set of parameters take part: withdrawn
        … =True, always the same so far                                            offered, but by no preset save ``thorough``

    A graph that changes later is not trained wrongly in silence: DDP counts on, and raises. In a
    trial that ends the trial; in the owner's training it would end that, which is why somebody has
    to ask for this knob.
    """

    name = "static_graph"
    range = "false, true (DistributedDataParallel with find_unused_parameters)"
    card = Card(
        what=(
            "DistributedDataParallel takes the parameters used in the first iteration for those of"
            " every iteration. It then need not walk the graph after each forward to find the"
            " unused ones."
        ),
        when_it_helps=(
            "The job asks for find_unused_parameters=True, and the same parameters are unused all"
            " the time."
        ),
        when_it_does_not=(
            "With find_unused_parameters=False nothing is walked, and nothing saved. It is unsound"
            " where the graph depends on the data, the step or a random number (layers dropped or"
            " added, experts, several heads in turn), also if that begins late in training:"
            " DistributedDataParallel then raises in the iteration that differs. So it is tried"
            " only if it is asked for by name or by the preset thorough, and only if no iteration"
            " seen has differed."
        ),
        changes_loss=(
            "Buckets are put together anew in the order gradients arrive, so sums may round"
            " differently. The loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        values = super().candidates(machine, job)
        if not ddp_of(job).find_unused_parameters:
            raise NotApplicable(
                "the job does not ask for find_unused_parameters, so there is no search for them to"
                " be saved"
            )
        if not all(d.seen_static for d in job.ddp):
            raise NotApplicable(
                "the parameters that take part differ from iteration to iteration, which a static"
                " graph forbids"
            )
        return values
