"""Every rule on both sides, and what becomes of each finding.

baseline            winner                      the finding
found               found                       stays
found               not found, or hardly any    is cured
found               cannot be judged            stays, and says so
not found           found                       is new
cannot be judged    cannot be judged            NotJudged
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.explain.records import Finding, NotJudged
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.words import config_words, duration_words
from autotune_spaces.base import Value

# Below this share of its old cost a finding counts as cured. Hardly any cost disappears to the last
# microsecond, and the noise of a watched window of 60 iterations alone can look like a fifth.
CURED_SHARE = 0.2
# A general finding is not reported if more specific ones explain all but this share of its cost.
UNEXPLAINED_SHARE = 0.25


@dataclass(frozen=True)
class Findings:
    findings: tuple[Finding, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    rules: int = 0  # how many were judged


@dataclass(frozen=True)
class _Heard:
    """What all rules say about one side."""

    # rule -> findings; without rules that could not judge
    found: Mapping[str, Sequence[Finding]]
    refused: Mapping[str, str]  # rule -> why it could not judge


def judge_by(rules: Sequence[Rule], cases: Mapping[str, Case]) -> Findings:
    """Ask all ``rules`` about all ``cases`` ("baseline", "winner")."""
    if not cases:
        return Findings()
    heard = {name: _hear(rules, name, case) for name, case in cases.items()}
    before, after = heard.get("baseline"), heard.get("winner")
    changed = cases["winner"].side.config if "winner" in cases else {}
    findings: list[Finding] = []
    for rule in rules:
        old = before.found.get(rule.name) if before is not None else None
        new = after.found.get(rule.name) if after is not None else None
        if old is not None and new is not None:
            findings += _compared(rule, old, new, changed)
        elif old is not None and after is not None:
            why = after.refused.get(rule.name, "")
            findings += [
                replace(f, evidence=f"{f.evidence} Not judged after tuning: {why}.") for f in old
            ]
        else:
            findings += [*(old or ()), *(new or ())]
    first = before or next(iter(heard.values()))
    judged = {
        rule.name for rule in rules if any(rule.name in side.found for side in heard.values())
    }
    return Findings(
        findings=tuple(sorted(findings, key=_weight)),
        not_judged=tuple(
            NotJudged(r.name, r.title, first.refused.get(r.name, ""))
            for r in rules
            if r.name not in judged
        ),
        rules=len(judged),
    )


def _hear(rules: Sequence[Rule], name: str, case: Case) -> _Heard:
    """Ask all rules about one side; report each cause once."""
    found: dict[str, Sequence[Finding]] = {}
    refused: dict[str, str] = {}
    for rule in rules:
        try:
            found[rule.name] = rule.judge(case)
        except NotJudgeable as reason:
            refused[rule.name] = str(reason) or "no reason given"
        except Exception as error:  # a bug in a rule must not cost the run its result
            refused[rule.name] = f"the rule failed: {type(error).__name__}: {error}"
    times = case.evidence.times_s
    whole = sum(times) / len(times) if times else 0.0
    once = _once(rules, found)
    return _Heard(
        {rule: [_placed(f, name, whole) for f in findings] for rule, findings in once.items()},
        refused,
    )


def _placed(finding: Finding, side: str, whole_s: float) -> Finding:
    share = finding.cost_s / whole_s if finding.cost_s is not None and whole_s else None
    return replace(finding, side=side, share=share if finding.share is None else finding.share)


def _once(
    rules: Sequence[Rule], found: Mapping[str, Sequence[Finding]]
) -> dict[str, Sequence[Finding]]:
    """``found`` without what more specific rules explain."""
    explained: dict[str, list[Finding]] = {}
    for rule in rules:
        for general in rule.explains:
            explained.setdefault(general, []).extend(found.get(rule.name, ()))
    return {name: _rest(findings, explained.get(name, ())) for name, findings in found.items()}


def _rest(findings: Sequence[Finding], explaining: Sequence[Finding]) -> list[Finding]:
    """What remains of ``findings`` after ``explaining``, which is charged to the costliest first.

    An explaining finding without a cost explains what is at its own line; how much it explains
    elsewhere is unknown.
    """
    if not explaining:
        return list(findings)
    pool = sum(f.cost_s or 0.0 for f in explaining)
    unmeasured = [f for f in explaining if f.cost_s is None]
    maybe = "".join(
        f' Part of it may be due to "{title}", whose cost is unknown.'
        for title in dict.fromkeys(f.title for f in unmeasured)
    )
    kept = []
    for finding in sorted(findings, key=_weight):
        if finding.cost_s is None or any(_at_one_line(f, finding) for f in unmeasured):
            continue
        rest = finding.cost_s - pool
        pool = max(0.0, -rest)
        if rest >= finding.cost_s:
            kept.append(replace(finding, evidence=finding.evidence + maybe))
        elif rest > UNEXPLAINED_SHARE * finding.cost_s:
            known = duration_words(finding.cost_s - rest)
            kept.append(
                replace(
                    finding,
                    cost_s=rest,
                    evidence=(
                        f"{finding.evidence} {known} of it is reported under another finding.{maybe}"
                    ),
                )
            )
    return kept


def _compared(
    rule: Rule, old: Sequence[Finding], new: Sequence[Finding], changed: Mapping[str, Value]
) -> list[Finding]:
    """One rule's findings on both sides: which stay, which are cured, which are new."""
    left = list(new)
    result = []
    for finding in old:
        same = _counterpart(rule, finding, left)
        if same is not None:
            left.remove(same)
        after_s, before_s = same.cost_s if same else None, finding.cost_s
        small = after_s is not None and before_s is not None and after_s < CURED_SHARE * before_s
        if same is None or small:
            result.append(
                replace(
                    finding,
                    cured=True,
                    how_cured=_cure(rule, finding, changed, same),
                    cost_after_s=after_s,
                )
            )
            continue
        said = (
            f" After tuning it still costs {duration_words(same.cost_s)} per iteration."
            if same.cost_s is not None
            else " Still there after tuning."
        )
        result.append(
            replace(
                finding,
                evidence=finding.evidence + said,
                advice=same.advice,  # what would help the tuned job
                knob=same.knob,
                cost_after_s=same.cost_s,
            )
        )
    return result + left


def _counterpart(rule: Rule, finding: Finding, candidates: Sequence[Finding]) -> Finding | None:
    """The same finding on the other side: at the same line, or the first if a side has no line."""
    if rule.one_finding:
        return candidates[0] if candidates else None
    for other in candidates:
        if _at_one_line(other, finding):
            return other
    loose = [c for c in candidates if c.place is None or finding.place is None]
    return loose[0] if loose else None


def _at_one_line(a: Finding, b: Finding) -> bool:
    return bool(
        a.place and b.place and (a.place.file, a.place.line) == (b.place.file, b.place.line)
    )


def _cure(rule: Rule, finding: Finding, changed: Mapping[str, Value], same: Finding | None) -> str:
    """What cured it, as far as that is known, and what is left: ``same``, the rule's finding after
    tuning, or something below its threshold.
    """
    knobs = dict.fromkeys([finding.knob, rule.knob, *rule.also])
    did = {name: changed[name] for name in knobs if name and name in changed}
    said = [f"by {config_words(did)}"] if did else []
    if same is not None and same.cost_s is not None:
        said.append(f"{duration_words(same.cost_s)} per iteration left")
    return ", ".join(said) or "below the threshold after tuning"


def _weight(finding: Finding) -> tuple[bool, float]:
    """Sort key: current cost, highest first; findings without a known cost come last."""
    cost = finding.cost_s if finding.cost_after_s is None or finding.cured else finding.cost_after_s
    return cost is None, -(cost or 0.0)
