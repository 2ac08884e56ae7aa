"""torch.compile that leaves its graph."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, Rule
from autotune.findings.measures import at, duration

MOST = 5  # findings of one kind; what they have in common shows in fewer


class GraphBreaks(Rule):
    name = "graph-break"
    title = "Compiled code leaves its graph"
    card = (
        "Every place at which dynamo broke a graph of the job, since it started, with dynamo's own reason. The cost is the time between "
        "the two graphs, where the "
        "profile shows both; else none is given: what a break costs is mostly what could not be fused across it, and that is not seen."
    )

    def judge(self, case: Case) -> list[Finding]:
        steps = max(1, len(case.evidence.times_s))
        found = []
        breaks = [b for b in case.evidence.breaks if b.kind == "break"]
        for each in sorted(breaks, key=lambda b: -b.seconds)[:MOST]:
            where = f" at {at(each.place)}" if each.place else ""
            evidence = f"Dynamo left its graph{where}: {each.reason.rstrip('.')}."
            cost = each.seconds / steps if each.seconds else None
            evidence += (
                f" {duration(cost)} of an iteration go by between the graphs." if cost is not None
                else " What it costs cannot be told from outside: nothing is fused across it, and the rest runs as plain Python."
            )
            advice = "Take the line out of what is compiled, or write it so that dynamo can follow (TORCH_LOGS=graph_breaks tells more)."
            found.append(self.finding(case, evidence, advice, cost, [each.place]))
        return found
