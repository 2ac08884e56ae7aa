"""What a rule is, and what it looks at.

    Case ──▶ Rule.judge ──▶ findings ([] = nothing found)
                        └─▶ NotJudgeable("why")       this rule cannot be judged here

A cause is reported once. Where two rules can see the same cause, the more specific one names the
more general one in ``explains``: the cost found by the first is subtracted from the second, which
is not reported at all if too little remains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from autotune.explain.records import Finding, Operator, Peak, Side
from autotune.results import Anatomy
from autotune.words import duration_words
from autotune_spaces.base import Value
from autotune_spaces.facts import JobFacts, Machine
from autotune_trials.protocol.evidence import Evidence, Place


class NotJudgeable(Exception):
    """A rule cannot be judged here; the message says why, in a clause."""


@dataclass(frozen=True)
class Case:
    """Everything that is known about one profiled configuration."""

    name: str  # "baseline", "winner"
    side: Side
    evidence: Evidence
    machine: Machine
    job: JobFacts
    # the job's own value of every knob that applies here
    defaults: Mapping[str, Value] = field(default_factory=dict)
    peaks: Sequence[Peak] = ()  # what this machine was measured to reach
    # of the timed iterations, during which nothing watched; None: there were none
    anatomy: Anatomy | None = None

    @property
    def config(self) -> Mapping[str, Value]:
        return {**self.defaults, **self.side.config}

    @property
    def operators(self) -> Sequence[Operator]:
        return self.side.operators

    @property
    def on_device(self) -> bool:
        return self.job.device == "cuda"


class Rule(ABC):
    """One way of losing time.

    Attributes:
        name: in kebab-case, for links: ``device-sync``.
        title: what is wrong, in a few words.
        card: what it looks at, its threshold and where that comes from; text of docs/findings.md.
        knob: the knob that cures it, or "".
        also: further knobs that can cure it.
        explains: names of more general rules that would report the same cause again.
        one_finding: it finds one thing in the whole job; its places are only the costliest lines.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    card: ClassVar[str]
    knob: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()
    explains: ClassVar[tuple[str, ...]] = ()
    one_finding: ClassVar[bool] = False

    @abstractmethod
    def judge(self, case: Case) -> list[Finding]:
        """What is found in ``case``; [] if it is healthy.

        Raises:
            NotJudgeable: with the reason.
        """

    def finding(
        self,
        case: Case,
        evidence: str,
        advice: str,
        cost_s: float | None = None,
        places: Sequence[Place | None] = (),
        knob: str | None = None,
        share: float | None = None,
    ) -> Finding:
        """A finding of this rule.

        Its place is the first of ``places``; ``knob`` defaults to the rule's, ``share`` to that of a
        watched iteration.
        """
        known = tuple(dict.fromkeys(p for p in places if p is not None))
        return Finding(
            rule=self.name,
            title=self.title,
            side=case.name,
            evidence=evidence,
            advice=advice,
            cost_s=cost_s,
            place=known[0] if known else None,
            places=known[1:],
            knob=self.knob if knob is None else knob,
            share=share,
        )


def of_iteration(cost_s: float, whole_s: float) -> str:
    """``12 ms of each 60 ms iteration (20%)``"""
    whole = duration_words(whole_s)
    return f"{duration_words(cost_s)} of each {whole} iteration ({cost_s / whole_s:.0%})"
