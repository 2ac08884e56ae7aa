"""torch.compile compiles again and again."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, Rule
from autotune.findings.measures import at, iteration_s, need
from autotune.words import duration_words

MOST = 5  # findings of one kind; a few show what they have in common


class Recompiles(Rule):
    name = "recompile"
    title = "Compiled code is recompiled"
    card = (
        "Dynamo recompiled a function while iterations were watched, or gave up because it had"
        " done so too often. The cost is the compile time per iteration. The finding points to the"
        " function, with dynamo's own reason. One recompilation in warm-up, when a size is found"
        " to change, is normal, and is not reported."
    )
    explains = ("periodic-stall", "host-work", "host-bound")

    def judge(self, case: Case) -> list[Finding]:
        need(case, "compiles")
        found = []
        again = [b for b in case.evidence.breaks if b.kind == "recompile"]
        if sum(b.count for b in again) == 1 and again[0].seconds:
            return []
        for each in sorted(again, key=lambda b: -b.seconds)[:MOST]:
            whole, steps = iteration_s(case), len(case.evidence.times_s)
            where = f" {each.place.function} at {at(each.place)}" if each.place else " a function"
            cost = each.seconds / steps if each.seconds else None
            if cost is not None:
                evidence = (
                    f"Dynamo recompiled{where} {each.count} times in {steps} iterations,"
                    f" {duration_words(cost)} of each {duration_words(whole)} iteration:"
                    f" {each.reason}"
                )
            else:
                evidence = (
                    f"Dynamo compiled{where} {each.count} times and then gave up: {each.reason}."
                    " Since then it runs uncompiled"
                )
            advice = (
                "Keep values that change from call to call (a counter, a flag, a length) out of"
                " compiled code, make them tensors, mark changing sizes with"
                " torch._dynamo.mark_dynamic, or pad batches to a few lengths."
            )
            found.append(self.finding(case, evidence.rstrip(".") + ".", advice, cost, [each.place]))
        return found
