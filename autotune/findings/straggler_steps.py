"""Now and then an iteration takes much longer."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import at, iteration_s
from autotune.findings.sites import LEAST_S, LEAST_SHARE
from autotune.findings.stalls import LEAST_SEEN, SLOW_SHARE, blamed, stalls
from autotune.words import duration_words

# What the machine does to a job hits its lines in proportion to the time they take. A line is to
# blame if it holds more of
# the extra time than that: this share, and more the more of an ordinary iteration it takes.
BLAME_SHARE = 0.6
COMPILING = ("torch._dynamo", "torch._inductor", "torch._functorch")


class StragglerSteps(Rule):
    name = "straggler-steps"
    title = "Some iterations take much longer"
    card = (
        f"Some iterations, without a rhythm, take more than {SLOW_SHARE:.0%} longer than the usual"
        f" one, {LEAST_SEEN} of them at least, and spend {BLAME_SHARE:.0%} or more of the extra"
        " time at one line. Time without a core, batches waited for, garbage collection and"
        " recompilation do not count. The cost is the extra time, spread over all iterations;"
        f" threshold {LEAST_SHARE:.0%}."
    )

    def judge(self, case: Case) -> list[Finding]:
        whole, evidence = iteration_s(case), case.evidence
        if len(evidence.times_s) < 3 * LEAST_SEEN:
            raise NotJudgeable(f"only {len(evidence.times_s)} iterations were watched")
        if not evidence.frames:
            raise NotJudgeable(
                evidence.blind.get("frames", "nobody looked where they spend the time")
            )
        found, rest = stalls(evidence)
        if rest is None:
            return []
        periodic = {index for stall in found for index in stall.iterations}
        lines = blamed(evidence, rest.iterations, periodic)
        excess = rest.cost_s * len(rest.iterations)
        if not lines or lines[0].leaf.startswith(COMPILING):
            return []
        first = lines[0]
        if (
            first.excess_s
            < (BLAME_SHARE + (1 - BLAME_SHARE) * min(1.0, first.usual_s / whole)) * excess
            or first.seen_in < LEAST_SEEN
        ):
            return []
        if rest.amortised_s < max(LEAST_SHARE * whole, LEAST_S):
            return []
        text = (
            f"{len(rest.iterations)} of {len(evidence.times_s)} iterations take"
            f" {duration_words(rest.cost_s)} longer than the others, at irregular intervals, which is"
            f" {duration_words(rest.amortised_s)} an iteration ({rest.amortised_s / whole:.0%})."
            f" Most of it is spent at {at(first.place)} ({first.leaf})."
        )
        advice = (
            "Look at what this line waits for: a network, a disk, a lock. A thread or a queue ahead"
            " of it takes the wait out of the step."
        )
        return [self.finding(case, text, advice, rest.amortised_s, [first.place])]
