"""Some iterations take much longer, at irregular intervals."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import at, iteration_s
from autotune.findings.sites import LEAST_S, LEAST_SHARE
from autotune.findings.stalls import LEAST_SEEN, SLOW_DEVIATIONS, SLOW_SHARE, blamed, stalls
from autotune.words import duration_words

# A slow machine hits lines in proportion to the time they take. A line is to blame only if it holds
# more of the extra time than that: at least this share, and more the more of an ordinary iteration
# it takes.
BLAME_SHARE = 0.6
WHOLE_SHARE = 0.8  # of usual iterations: a line that is the whole training is to blame for nothing
COMPILING = ("torch._dynamo", "torch._inductor", "torch._functorch")


class StragglerSteps(Rule):
    name = "straggler-steps"
    title = "Some iterations take much longer"
    card = (
        f"At least {LEAST_SEEN} iterations, at irregular intervals, take longer than usual by more"
        f" than {SLOW_SHARE:.0%} and by more than {SLOW_DEVIATIONS:g} times the scatter of the"
        f" others, or write files for more than {SLOW_SHARE:.0%} of the usual time, and spend"
        f" {BLAME_SHARE:.0%} or more of the extra time at one line. Waiting for a core or for"
        " batches, garbage collection and recompilation do not count. The cost is the extra time,"
        f" spread over all iterations. Threshold: {LEAST_SHARE:.0%} of an iteration."
    )

    def judge(self, case: Case) -> list[Finding]:
        whole, evidence = iteration_s(case), case.evidence
        if len(evidence.times_s) < 3 * LEAST_SEEN:
            raise NotJudgeable(f"only {len(evidence.times_s)} iterations were watched")
        if not evidence.frames:
            raise NotJudgeable(evidence.blind.get("frames", "the training thread was not sampled"))
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
            or first.usual_s >= WHOLE_SHARE * whole
        ):
            return []
        if rest.amortised_s < max(LEAST_SHARE * whole, LEAST_S):
            return []
        text = (
            f"{len(rest.iterations)} of {len(evidence.times_s)} iterations take"
            f" {duration_words(rest.cost_s)} longer than the others, at irregular intervals, which is"
            f" {duration_words(rest.amortised_s)} per iteration ({rest.amortised_s / whole:.0%})."
            f" Most of it is spent at {at(first.place)} ({first.leaf})."
        )
        advice = (
            "Find out what this line waits for: a network, a disk, a lock. A thread or a queue that"
            " runs ahead takes the wait out of the step."
        )
        return [self.finding(case, text, advice, rest.amortised_s, [first.place])]
