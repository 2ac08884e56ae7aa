"""Whether DistributedDataParallel may take the graph of the first iteration for that of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune_spaces.base import Card, Knob, LiveJob, Numerics, Scope, Value, Withdrawn
from autotune_spaces.ddp import ddp_of, give, unlike
from autotune_spaces.domains import true_or_false
from autotune_spaces.facts import JobFacts, Machine

VARIABLE = "AUTOTUNE_KNOB_STATIC_GRAPH"


class StaticGraph(Knob):
    """Where it is offered follows from what it saves and from what it forbids.

        find_unused_parameters=False   nothing is searched for, so nothing is saved: withdrawn
        … =True, and DDP's own count has seen another set of parameters take part: withdrawn
        … =True, always the same so far                                            offered, but by no preset save ``thorough``

    A graph that changes later is not trained wrongly in silence: DDP counts on, and raises. In a trial that ends the trial; in
    the owner's training it would end that, which is why somebody has to ask for this knob.
    """

    name = "static_graph"
    scope = Scope.PROCESS
    numerics = Numerics.ROUNDING
    range = "false, true (DistributedDataParallel with find_unused_parameters)"
    card = Card(
        what="DistributedDataParallel takes the parameters used in the first iteration for those of every iteration. It then need not "
        "walk the graph after each forward to find the unused ones.",
        when_it_helps="The job asks for find_unused_parameters=True, and the same parameters are unused all the time.",
        when_it_does_not="With find_unused_parameters=False nothing is walked, and nothing saved. It is unsound where the graph depends on "
        "the data, the step or a random number (layers dropped or added, experts, several heads in turn), also if that begins late in "
        "training: DistributedDataParallel then raises in the iteration that differs. So it is tried only if it is asked for by name or "
        "by the preset thorough, and only if no iteration seen has differed.",
        changes_loss="Buckets are put together anew in the order gradients arrive, so sums may round differently. It is checked.",
        source="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return ddp_of(job).static_graph

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        ddp = ddp_of(job)
        if ddp.static_graph:
            raise Withdrawn(f"the job sets static_graph=True itself ({ddp.site})")
        if not ddp.find_unused_parameters:
            raise Withdrawn("the job does not ask for find_unused_parameters, so there is no search for them to be saved")
        if not all(d.seen_static for d in job.ddp):
            raise Withdrawn("the parameters that take part differ from iteration to iteration, which a static graph forbids")
        return [False, True]

    def check_value(self, value: Value) -> str | None:
        return true_or_false(value)

    def environment(self, value: Value) -> dict[str, str]:
        return {VARIABLE: "1" if value else "0"}

    def at_import(self, torch: Any, environ: Mapping[str, str]) -> None:
        if environ.get(VARIABLE) in ("0", "1"):
            give(torch, "static_graph", environ[VARIABLE] == "1")

    def effect(self, live: LiveJob, value: Value) -> str | None:
        return unlike(live, value, lambda ddp: bool(ddp.static_graph))

    def snippet(self, value: Value) -> str:
        return f"DistributedDataParallel(..., static_graph={value})"
