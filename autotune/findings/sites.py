"""Lines of the job that make calls of some kind in every step: most rules on calls look at these.

Calls (a kind, a line, a phase) ──▶ Site (a kind, a line) ──▶ steady? ──▶ cost of its statement ──▶ one finding per rule
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule, of_iteration
from autotune.findings.loader_bound import wait_s
from autotune.findings.measures import NAMED, NAMED_SHARE, at, iteration_s, need
from autotune.words import duration_words
from autotune_trials.protocol.evidence import Calls, Evidence, Frames, Place

# of an iteration: less is not adopted as a gain, either (MINIMUM_GAIN in verdict/speedup.py), so it
# is not worth a person's time
LEAST_SHARE = 0.02
LEAST_S = 50e-6  # per iteration; below it, watching a call costs as much as the call
# of the iterations; calls in fewer are no part of every step, and are judged as a stall
STEADY_SHARE = 0.4
# From this share of its statement on, a call's exact time stands for the statement; otherwise the
# statement's sampled time counts.
STATEMENT_SHARE = 0.8
TRAINING = (
    "torch.nn.",
    "torch.optim.",
    "torch.autograd.",
    "torch.utils.data.",
    "torch._tensor.Tensor.backward",
    "torch._dynamo.",
    "torch._inductor.",
)
# phases in which a line stands for more than its own calls, so samples do not count
NOT_SAMPLED = frozenset({"data", "backward", "optimizer"})
# tensors turned into Python values: the statement is computed to read the result
READOUTS = frozenset({"item", "tolist", "bool", "float", "int"})
# kinds of calls that wait for the tensor's device, in words
CALLED = {
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
    "cpu": ".cpu()",
    "bool": "evaluates a tensor as a bool",
    "float": "float(…)",
    "int": "int(…)",
    "repr": "calls repr() on a tensor",
    "format": "formats a tensor",
    "print": "prints a tensor",
    "synchronize": "torch.cuda.synchronize()",
}


@dataclass(frozen=True)
class Site:
    """A line and the calls of one kind it makes; seconds are means over all watched iterations."""

    kind: str
    place: Place
    device: str
    detail: str
    per_step: float  # calls per iteration
    call_s: float  # in the calls
    data_s: float  # of which while a batch is made
    # of the statement that makes them, without other calls in it; of the calls alone if a library
    # makes them: the statement may be the whole training
    cost_s: float
    statement: tuple[str, int, int]  # file, first and last line
    iterations: frozenset[int]


def sites(evidence: Evidence, kinds: Collection[str]) -> list[Site]:
    """The lines of training that make calls of ``kinds``, the costliest first."""
    groups: dict[tuple[str, str, int, str, bool], list[Calls]] = {}
    for calls in evidence.calls:
        if calls.kind in kinds and calls.phase != "away":
            groups.setdefault(
                (calls.kind, calls.place.file, calls.place.line, calls.device, calls.direct), []
            ).append(calls)
    return sorted(
        (_site(evidence, group) for group in groups.values()), key=lambda site: -site.cost_s
    )


def _site(evidence: Evidence, group: Sequence[Calls]) -> Site:
    steps, first = max(1, len(evidence.times_s)), group[0]
    call_s = sum(c.seconds for c in group) / steps
    line_s = _line_s(evidence, group) / steps if first.direct else 0.0
    return Site(
        kind=first.kind,
        place=first.place,
        device=first.device,
        detail=_detail(group),
        per_step=sum(c.count for c in group) / steps,
        call_s=call_s,
        data_s=sum(c.seconds for c in group if c.phase == "data") / steps,
        cost_s=call_s if call_s >= STATEMENT_SHARE * line_s else line_s,
        statement=statement_of(first),
        iterations=frozenset().union(*(c.iterations for c in group)),
    )


def _line_s(evidence: Evidence, group: Sequence[Calls]) -> float:
    """Total seconds in the statement that makes the calls, without other calls in it, and without
    what it took to watch all of them.
    """
    first, phases = group[0], {c.phase for c in group} - NOT_SAMPLED
    statement = statement_of(first)
    others_s = math.fsum(
        c.noting_s + (0.0 if c in group else c.seconds)
        for c in evidence.calls
        if c.phase in phases and within(statement, c.place)
    )
    return max(statement_s(evidence, first, phases) - others_s, 0.0)


def _detail(group: Sequence[Calls]) -> str:
    """What the calls were; of several files written at one line, the one that takes longest."""
    details = {c.detail for c in group} if group[0].kind == "file_write" else ()
    if len(details) < 2:
        return group[0].detail
    longest = max(group, key=lambda c: c.seconds)
    return f"{longest.detail} and {len(details) - 1} more"


def statement_s(evidence: Evidence, calls: Calls, phases: Collection[str]) -> float:
    """Total sampled seconds in the statement that makes ``calls``.

    Time that torch spends in it on the training itself does not count, nor does that of other
    libraries if a tensor is read out: they may be given the result.
    """
    statement = statement_of(calls)
    return math.fsum(
        frame.seconds
        for frame in evidence.frames
        if within(statement, frame.place)
        and frame.phase in phases
        and not frame.leaf.startswith(TRAINING)
        and not (calls.kind in READOUTS and elsewhere(frame))
    )


def elsewhere(frame: Frames) -> bool:
    """Whether a library other than torch was at work."""
    file, function = frame.place.file, frame.place.function
    module = file.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2]
    ours = frame.leaf.endswith(f"{module}.{function}")
    return bool(frame.leaf) and not ours and not frame.leaf.startswith("torch.")


def statement_of(calls: Calls) -> tuple[str, int, int]:
    """File, first and last line of the statement that makes ``calls``."""
    line = calls.place.line
    return (calls.place.file, *(calls.lines if any(calls.lines) else (line, line)))


def within(statement: tuple[str, int, int], place: Place) -> bool:
    file, first, last = statement
    return place.file == file and first <= place.line <= last


def steady(evidence: Evidence, site: Site) -> bool:
    """Whether it is part of every step, or nearly every one."""
    return len(site.iterations) >= STEADY_SHARE * len(evidence.times_s)


def lost_s(case: Case, host_s: float) -> float:
    """The part of ``host_s``, an iteration's time on the host, that the job loses.

    On a GPU no more than the time in which the device is idle.

    Raises:
        NotJudgeable: that time is unknown.
    """
    if not case.on_device:
        return host_s
    if case.side.idle_share is None:
        raise NotJudgeable("the profile does not show when the device was busy")
    return min(host_s, case.side.idle_share * iteration_s(case))


class SiteRule(Rule):
    """A rule about calls made in every step: one finding for all its lines together.

    Calls made while the training process waits for a batch cost nothing of their own if that wait
    is reported: :mod:`loader_bound` has its cost.
    """

    kinds: ClassVar[tuple[str, ...]]
    one_finding = True

    def counts(self, site: Site) -> bool:
        """Whether this site is the rule's business."""
        return True

    def cost_s(self, case: Case, found: Sequence[Site]) -> float:
        """What ``found`` cost per iteration."""
        rest: dict[tuple[str, int, int], float] = {}  # of a statement, which its calls share
        for site in found:
            rest[site.statement] = max(rest.get(site.statement, 0.0), site.cost_s - site.call_s)
        return lost_s(case, sum(site.call_s for site in found) + sum(rest.values()))

    @abstractmethod
    def says(self, site: Site) -> str:
        """What happens at a line, as a clause without a full stop: "prints a tensor"."""

    @abstractmethod
    def advice(self, site: Site) -> str:
        """What to do about the costliest line."""

    def judge(self, case: Case) -> list[Finding]:
        need(case, "calls")
        evidence, whole = case.evidence, iteration_s(case)
        found = [s for s in sites(evidence, self.kinds) if self.counts(s) and steady(evidence, s)]
        cost = self.cost_s(case, found)
        if cost < max(LEAST_SHARE * whole, LEAST_S):
            return []
        named = [site for site in found if site.cost_s >= NAMED_SHARE * found[0].cost_s][:NAMED]
        lines = "; ".join(
            f"{at(site.place)} {self.says(site)} ({duration_words(site.cost_s)})" for site in named
        )
        in_wait = min(cost, sum(site.data_s for site in found)) if wait_s(case) else 0.0
        own = cost - in_wait
        some = f"{duration_words(in_wait)} of it " if own >= LEAST_S else ""
        part = f", {some}part of the wait for batches" if in_wait else ""
        return [
            self.finding(
                case,
                f"{of_iteration(cost, whole)}{part}: {lines}.",
                self.advice(found[0]),
                own if own >= LEAST_S else None,
                [site.place for site in named],
            )
        ]


def times(per_step: float) -> str:
    """``once``, ``12 times`` an iteration"""
    return "once" if per_step < 1.5 else f"{per_step:.0f} times"
