"""torch.compile that leaves its graph."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, Rule
from autotune.findings.measures import at, need
from autotune.words import duration_words
from autotune_trials.protocol.evidence import GraphBreak

MOST = 5  # findings of one kind; what they have in common shows in fewer
SEEN_S = 1e-4  # of an iteration: less than this the sampler, who looks every 2 ms, cannot tell


class GraphBreaks(Rule):
    name = "graph-break"
    title = "Graph break in compiled code"
    card = (
        "Every place at which dynamo broke a graph of the job, since it started, with dynamo's own"
        " reason. The cost is the time the training thread was seen standing in that line outside"
        " torch; where that is too short to be seen none is given: what a break costs is then what"
        " could not be fused across it."
    )
    explains = ("host-bound", "host-work")

    def judge(self, case: Case) -> list[Finding]:
        need(case, "compiles", "graph breaks")
        found = []
        breaks = [(b, _standing_s(case, b)) for b in case.evidence.breaks if b.kind == "break"]
        for each, standing in sorted(breaks, key=lambda pair: -pair[1])[:MOST]:
            where = f" at {at(each.place)}" if each.place else ""
            cost = standing if standing >= SEEN_S else None
            evidence = f"Dynamo left its graph{where}: {each.reason.rstrip('.')}."
            evidence += (
                f" The line itself takes {duration_words(cost)} of an iteration; what could not be"
                " fused across it comes on top."
                if cost is not None
                else (
                    " What it costs cannot be told from outside: nothing is fused across it, and"
                    " the line runs as plain Python."
                )
            )
            advice = (
                "Take the line out of what is compiled, or write it so that dynamo can follow"
                " (TORCH_LOGS=graph_breaks tells more)."
            )
            found.append(self.finding(case, evidence, advice, cost, [each.place]))
        return found


def _standing_s(case: Case, broken: GraphBreak) -> float:
    """Seconds an iteration in what broke the graph, without what torch did meanwhile (the graphs
    are called from there).

    Dynamo's rewritten code stands at the function's first line whatever it runs, so time is looked
    for in the whole function: outside torch it holds nothing but what broke the graph. Not told
    where a function has several breaks.
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
        and _name(f.place.function)
        in (function, f"torch_dynamo_resume_in_{function}_at_{place.line}")
        and not f.leaf.startswith("torch.")
    )
    return seen / len(case.evidence.times_s)


def _name(qualified: str) -> str:
    return qualified.rpartition(".")[2]
