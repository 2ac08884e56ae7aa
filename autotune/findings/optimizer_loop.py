"""An optimizer of which torch has a faster implementation."""

from __future__ import annotations

from statistics import fmean

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import iteration_s, need, place_of
from autotune.words import duration_words

COST_SHARE = 0.05
# with fewer, foreach and fused gain little: a loop over so few takes well under a millisecond
TENSORS = 50
FASTER = 1.5  # times as fast; less could be the noise of a few steps


class EagerOptimizer(Rule):
    name = "eager-optimizer"
    title = "The optimizer has a faster implementation"
    card = (
        f"The step of an optimizer with at least {TENSORS} parameters is at least {FASTER:g} times"
        " as fast with another of torch's implementations (foreach, fused), tried on copies of the"
        " parameters after the watched iterations. The cost is what this would save of the timed"
        f" optimizer phase. Threshold: {COST_SHARE:.0%} of an iteration. The finding points to"
        " where the optimizer is built."
    )
    knob = "optimizer_impl"
    also = ("compile_mode",)
    explains = ("launch-bound", "host-bound")

    def judge(self, case: Case) -> list[Finding]:
        whole, phase_s = _timed(case)
        need(case, "settings")
        optimizers = case.evidence.optimizers
        tried = [o for o in optimizers if o.get("own_s") and o.get("best_s")]
        if optimizers and not tried:
            why = next((str(o["untried"]) for o in optimizers if o.get("untried")), "")
            if why:
                raise NotJudgeable(why)
        step_s = sum(float(o["own_s"]) for o in tried)
        found = []
        for each in tried:
            own = float(each["own_s"])
            best = float(each["best_s"])
            tensors = int(each.get("tensors", 0))
            part = phase_s * own / step_s if phase_s else own
            cost = part * (1.0 - best / own)
            if tensors < TENSORS or own < FASTER * best or cost < COST_SHARE * whole:
                continue
            evidence = (
                f"{each.get('class', 'The optimizer')} takes {duration_words(part)} of each"
                f" {duration_words(whole)} iteration for {tensors:,} parameters;"
                f" {each.get('best')} takes {duration_words(part * best / own)}."
            )
            advice = f"Build it with {each.get('best')}=True."
            places = [place_of(each.get("place"))]
            share = cost / whole  # of a timed iteration
            found.append(self.finding(case, evidence, advice, cost, places, share=share))
        return found


def _timed(case: Case) -> tuple[float, float]:
    """Seconds of an iteration and of its optimizer phase, as timed: watching slows steps down that
    read tensors.
    """
    watched_s = iteration_s(case)
    if case.anatomy is not None:
        return case.anatomy.iteration_s, case.anatomy.phases_s.get("optimizer", 0.0)
    return watched_s, fmean(case.evidence.phase_times_s.get("optimizer") or (0.0,))
