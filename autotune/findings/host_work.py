"""The training thread does other work between the steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autotune.explain.records import Finding
from autotune.findings.array_copies import ArrayCopies
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.file_writes import FileWrites
from autotune.findings.log_printing import LogPrinting
from autotune.findings.made_on_host import MadeOnHost
from autotune.findings.measures import at, iteration_s, need
from autotune.findings.sites import READOUTS, elsewhere, statement_of, within
from autotune.findings.stalls import slow_iterations, working_s, writing_iterations
from autotune.findings.tensor_readout import TensorReadout
from autotune.words import duration_words
from autotune_trials.protocol.evidence import Calls, Frames, Place

RULES_ON_CALLS = (TensorReadout, LogPrinting, FileWrites, ArrayCopies, MadeOnHost)
JUDGED = frozenset(kind for rule in RULES_ON_CALLS for kind in rule.kinds)

# A tenth of the iteration, as for waiting for batches: the gain of a perfect cure then exceeds the
# noise of sampled lines.
WORK_SHARE = 0.10
LEAST_SAMPLED_S = 0.04  # total: twenty samples of 2 ms, which give the cost to within about a fifth


class HostWork(Rule):
    name = "host-work"
    title = "Python work between steps"
    card = (
        f"The training thread spends at least {WORK_SHARE:.0%} of a typical iteration at one"
        " line of the job outside forward, backward and optimizer, in Python or in libraries"
        " other than torch. The cost is that time, sampled. Printing, file writes, tensor"
        " copies and readouts, and garbage collection have findings of their own. Not judged"
        " on a GPU, where such work may run while the device computes (see host-bound), nor in"
        " jobs that update their parameters themselves."
    )
    one_finding = True

    def judge(self, case: Case) -> list[Finding]:
        evidence, whole = case.evidence, iteration_s(case)
        if case.on_device:
            raise NotJudgeable(
                "the device may compute meanwhile; host-bound judges its idle time instead"
            )
        need(case, "frames")
        if not evidence.optimizers:
            raise NotJudgeable(
                "the job updates its parameters itself, which sampling cannot tell from other work"
            )
        working = working_s(evidence)
        slow = set(slow_iterations(working, writing_iterations(evidence, working)))
        ordinary = max(1, len(evidence.times_s) - len(slow))
        judged = [c for c in evidence.calls if c.kind in JUDGED]
        seconds: dict[Place, float] = {}
        for frame in evidence.frames:
            if (
                frame.phase == "other"
                and frame.iteration not in slow
                and frame.place.own
                and not _told_elsewhere(frame, judged)
            ):
                seconds[frame.place] = seconds.get(frame.place, 0.0) + frame.seconds
        _take_off_calls(seconds, judged, slow)
        for pause in evidence.pauses:  # gc-pauses judges them
            if pause.place in seconds and pause.iteration not in slow:
                seconds[pause.place] -= min(pause.seconds, seconds[pause.place])
        lines = sorted(((s, p) for p, s in seconds.items()), key=lambda line: -line[0])
        lines = [
            (s, p) for s, p in lines if s >= LEAST_SAMPLED_S and s / ordinary >= WORK_SHARE * whole
        ]
        if not lines:
            return []
        cost = sum(s for s, _ in lines) / ordinary
        named = "; ".join(f"{at(place)} {duration_words(s / ordinary)}" for s, place in lines[:3])
        text = f"{of_iteration(cost, whole)} goes to other work in the loop: {named}."
        advice = (
            "Vectorize it, or move it to a thread or to the DataLoader's workers; if training does"
            " not depend on it, do it less often."
        )
        return [self.finding(case, text, advice, cost, [place for _, place in lines])]


def _take_off_calls(
    seconds: dict[Place, float], judged: Sequence[Calls], slow: Collection[int]
) -> None:
    """Subtract the calls that a library makes: other rules judge them, but not their statement."""
    for calls in judged:
        if not calls.direct and calls.phase == "other" and calls.place in seconds:
            spent = sum(s for i, s in zip(calls.iterations, calls.each_s) if i not in slow)
            seconds[calls.place] -= min(spent, seconds[calls.place])


def _told_elsewhere(frame: Frames, judged: Sequence[Calls]) -> bool:
    """Whether torch is at work here, or a statement that other rules judge."""
    return frame.leaf.startswith("torch.") or any(
        c.direct
        and within(statement_of(c), frame.place)
        and not (c.kind in READOUTS and elsewhere(frame))
        for c in judged
    )
