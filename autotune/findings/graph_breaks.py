"""torch.compile leaves its graph."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, Rule
from autotune.findings.measures import at, need
from autotune.words import duration_words
from autotune_trials.protocol.evidence import GraphBreak

MOST = 5  # findings of one kind; a few show what they have in common
SEEN_S = 1e-4  # per iteration: the sampler, which looks every 2 ms, cannot resolve less


class GraphBreaks(Rule):
    name = "graph-break"
    title = "Graph break in compiled code"
    card = (
        "Dynamo broke a graph. Every such place since the job started is listed, with"
        " dynamo's own reason. The cost is the time the training thread was seen at that line"
        " outside torch. If that is too short to be seen, no cost is given: the break then"
        " costs only what could not be fused across it."
    )
    explains = ("host-bound", "host-work")

    def judge(self, case: Case) -> list[Finding]:
        need(case, "compiles", "graph breaks")
        found = []
        breaks = [(b, _standing_s(case, b)) for b in case.evidence.breaks if b.kind == "break"]
        for each, standing in sorted(breaks, key=lambda pair: -pair[1])[:MOST]:
            where = f" at {at(each.place)}" if each.place else ""
            cost = standing if standing >= SEEN_S else None
            evidence = f"Dynamo broke the graph{where}: {each.reason.rstrip('.')}."
            evidence += (
                f" The line itself takes {duration_words(cost)} per iteration; what could not be"
                " fused across it comes on top."
                if cost is not None
                else (
                    " Its cost cannot be measured: nothing is fused across it, and the line runs"
                    " as plain Python."
                )
            )
            advice = (
                "Move the line out of the compiled code, or rewrite it so that dynamo can trace it"
                " (TORCH_LOGS=graph_breaks says more)."
            )
            found.append(self.finding(case, evidence, advice, cost, [each.place]))
        return found


def _standing_s(case: Case, broken: GraphBreak) -> float:
    """Seconds per iteration in the code that broke the graph.

    Without torch's own time meanwhile, since the graphs are called from there. Dynamo's rewritten
    code always reports the function's first line, so the whole function is searched: outside torch
    it contains only the code that broke the graph. 0.0 if the function has several breaks, which
    cannot be told apart.
    """
    place = broken.place
    if place is None or not case.evidence.times_s:
        return 0.0
    function = _name(place.function)
    if (
        sum(
            b.place is not None
            and (b.place.file, _name(b.place.function)) == (place.file, function)
            for b in case.evidence.breaks
        )
        > 1
    ):
        return 0.0
    seen = sum(
        f.seconds
        for f in case.evidence.frames
        if f.place.file == place.file
        and f.phase != "away"
        and _name(f.place.function)
        in (function, f"torch_dynamo_resume_in_{function}_at_{place.line}")
        and not f.leaf.startswith("torch.")
    )
    return seen / len(case.evidence.times_s)


def _name(qualified: str) -> str:
    return qualified.rpartition(".")[2]
