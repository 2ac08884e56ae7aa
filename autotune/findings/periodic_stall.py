"""One iteration takes much longer, at regular intervals."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import at, iteration_s
from autotune.findings.sites import LEAST_S, LEAST_SHARE, statement_of, within
from autotune.findings.stalls import (
    LEAST_PERIOD,
    LEAST_SEEN,
    RHYTHM_SHARE,
    SLOW_DEVIATIONS,
    SLOW_SHARE,
    Blamed,
    Stall,
    blamed,
    spent_s,
    stalls,
    writing_at,
)
from autotune.words import duration_words
from autotune_trials.protocol.evidence import Calls

WRITTEN_SHARE = 0.5  # of a stall's cost: above it, writing the file is taken for the cause


class PeriodicStall(Rule):
    name = "periodic-stall"
    title = "Training stops at regular intervals"
    card = (
        f"Every N-th iteration (N is at least {LEAST_PERIOD}; seen at least {LEAST_SEEN} times and"
        f" in at least {RHYTHM_SHARE:.0%} of the iterations where it was expected) takes longer"
        f" than usual by more than {SLOW_SHARE:.0%} and by more than {SLOW_DEVIATIONS:g} times the"
        f" scatter of the others, or writes files for more than {SLOW_SHARE:.0%} of the usual time:"
        " a checkpoint, images, statistics in the loop. The cost is the extra time, spread over"
        f" all iterations. Threshold: {LEAST_SHARE:.0%} of an iteration. The finding"
        " points to the line where the training thread was seen during the stall. Evaluation and"
        " new epochs do not count, unless they write files."
    )

    def judge(self, case: Case) -> list[Finding]:
        whole, evidence = iteration_s(case), case.evidence
        if len(evidence.times_s) < 3 * LEAST_SEEN:
            raise NotJudgeable(f"only {len(evidence.times_s)} iterations were watched")
        found, slow = stalls(evidence)
        return [
            self._told(case, stall, slow, whole)
            for stall in found
            if stall.amortised_s >= max(LEAST_SHARE * whole, LEAST_S)
        ]

    def _told(self, case: Case, stall: Stall, slow: set[int], whole: float) -> Finding:
        lines = [
            line for line in blamed(case.evidence, stall.iterations, slow) if line.excess_s > 0
        ][:3]
        text = (
            f"Every {stall.period} iterations training stops for {duration_words(stall.cost_s)},"
            f" which is {duration_words(stall.amortised_s)} per iteration"
            f" ({stall.amortised_s / whole:.0%})."
        )
        writing = writing_at(case.evidence, stall.iterations)
        if writing is not None and _causes(writing, stall, lines):
            told = (
                f"The time is spent in {writing.detail}"
                if writing.direct
                else f"A library writes files, above all {writing.detail},"
            )
            text += f" {told} at {at(writing.place)}."
            advice = (
                "Write less often, or write a copy of the data from a thread"
                " (torch.distributed.checkpoint.async_save does so for checkpoints)."
            )
            places = [writing.place, *(line.place for line in lines)]
        else:
            if lines:
                text += (
                    f" Meanwhile the training thread was seen at {at(lines[0].place)}"
                    f" ({lines[0].leaf})."
                )
            advice = (
                "Do it less often, or move it out of the training loop: to a thread, another"
                " process or the end of the epoch."
            )
            places = [line.place for line in lines]
        return self.finding(case, text, advice, stall.amortised_s, places)


def _causes(writing: Calls, stall: Stall, lines: Sequence[Blamed]) -> bool:
    """Whether writing the file, or the statement that does so, takes most of the stall."""
    statement = statement_of(writing)
    statement_s = sum(line.excess_s for line in lines if within(statement, line.place))
    written_s = spent_s(writing, stall.iterations)
    return max(written_s, statement_s) > WRITTEN_SHARE * stall.cost_s * len(stall.iterations)
