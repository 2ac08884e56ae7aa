"""Python's garbage collector interrupts training."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, Rule, of_iteration
from autotune.findings.measures import iteration_s, need
from autotune.findings.sites import LEAST_S, LEAST_SHARE, lost_s, sites
from autotune.findings.stalls import LEAST_SEEN
from autotune.words import duration_words, plural
from autotune_trials.protocol.evidence import Place

FULL = 2  # the generation in which all objects are examined


class GcPauses(Rule):
    name = "gc-pauses"
    title = "Garbage collection pauses"
    knob = "gc"
    card = (
        "Training stops while Python's garbage collector examines objects, by itself or in"
        " gc.collect(). The cost is the time of all collections on the training thread (of full"
        f" ones only if there were at least {LEAST_SEEN}); on a GPU at most the device's idle time."
        f" Threshold: {LEAST_SHARE:.0%} of an iteration. The finding points to the line that"
        " collections interrupted most."
    )
    explains = ("host-bound", "host-work")
    one_finding = True

    def judge(self, case: Case) -> list[Finding]:
        need(case, "garbage collections")
        evidence, whole = case.evidence, iteration_s(case)
        steps = len(evidence.times_s)
        full = sum(p.count for p in evidence.pauses if p.generation == FULL)
        pauses = [p for p in evidence.pauses if p.generation != FULL or full >= LEAST_SEEN]
        paused = sum(p.seconds for p in pauses) / steps
        cost = lost_s(case, paused)
        if cost < max(LEAST_SHARE * whole, LEAST_S):
            return []
        seconds: dict[Place, float] = {}
        for pause in pauses:
            if pause.place is not None:
                seconds[pause.place] = seconds.get(pause.place, 0.0) + pause.seconds
        asked = sites(evidence, ("gc_collect",)) if "calls" not in evidence.blind else []
        by_hand = sum(s.call_s for s in asked) > 0.5 * paused
        text = (
            f"{of_iteration(cost, whole)} goes to garbage collection:"
            f" {plural(sum(p.count for p in pauses), 'collection')} in {steps} iterations"
            f"{f', {full} of them full' if full >= LEAST_SEEN else ''}, longest pause"
            f" {duration_words(max(p.longest_s for p in pauses))}."
        )
        advice = (
            "Remove gc.collect() from the loop: Python collects by itself."
            if by_hand
            else (
                "Call gc.freeze() once everything is built, to leave out long-lived objects; or"
                " gc.disable(), and gc.collect() every few thousand steps. Fewer cycles and fewer"
                " small objects per step help, too."
            )
        )
        places = (
            [s.place for s in asked]
            if by_hand
            else sorted(seconds, key=lambda place: -seconds[place])
        )
        return [self.finding(case, text, advice, cost, places[:3], knob="" if by_hand else None)]
