"""An optimizer that goes over its parameters one by one."""

from __future__ import annotations

from statistics import fmean

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import iteration_s, need, place_of
from autotune.words import duration_words

COST_SHARE = 0.05
# below, there is little for foreach and fused to gather: a loop over so few takes well under a
# millisecond
TENSORS = 50
FASTER = 1.5  # times; less would be the noise of a few steps


class EagerOptimizer(Rule):
    name = "eager-optimizer"
    title = "The optimizer goes over its parameters one by one"
    card = (
        f"An optimizer with at least {TENSORS} parameters whose step, tried out on copies of them"
        f" after the watched iterations, is at least {FASTER:g} times as fast by one of torch's"
        " other implementations (foreach, fused). The cost is that share of the watched optimizer"
        f" phase, reported from {COST_SHARE:.0%} of an iteration. The place is where the optimizer"
        " is built."
    )
    knob = "optimizer_impl"
    also = ("compile_mode",)
    explains = ("launch-bound", "host-bound")

    def judge(self, case: Case) -> list[Finding]:
        whole = iteration_s(case)
        need(case, "settings")
        optimizers = case.evidence.optimizers
        tried = [o for o in optimizers if o.get("own_s") and o.get("best_s")]
        if optimizers and not tried:
            why = next((str(o["untried"]) for o in optimizers if o.get("untried")), "")
            if why:
                raise NotJudgeable(why)
        phase = case.evidence.phase_times_s.get("optimizer") or ()
        step_s = sum(float(o["own_s"]) for o in tried)
        found = []
        for each in tried:
            own = float(each["own_s"])
            best = float(each["best_s"])
            tensors = int(each.get("tensors", 0))
            # of the optimizer phase as it was watched
            part = fmean(phase) * own / step_s if phase else own
            cost = part * (1.0 - best / own)
            if tensors < TENSORS or own < FASTER * best or cost < COST_SHARE * whole:
                continue
            evidence = (
                f"{each.get('class', 'The optimizer')} takes {duration_words(part)} of an"
                f" iteration's {duration_words(whole)} for {tensors:,} parameters;"
                f" {each.get('best')} takes {duration_words(part * best / own)} for the same."
            )
            advice = f"Build it with {each.get('best')}=True."
            found.append(self.finding(case, evidence, advice, cost, [place_of(each.get("place"))]))
        return found
