"""Findings as text: page rows, closing-screen lines, the list of ``autotune show --findings``.

Everything from the job (paths, lines of code, dynamo's reasons) goes through :func:`words.clean`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from autotune import words
from autotune.explain.records import Finding
from autotune.report.terminal.layout import indented
from autotune.report.text import story
from autotune.results import Result
from autotune_trials.protocol.evidence import Place

LONGEST = 600  # characters of one sentence
LONGEST_CODE = 160
FURTHER = 4  # places listed after the first
TOP = 3  # findings on the closing screen


@dataclass(frozen=True)
class PlaceRow:
    """A place in the source; ``own``: it is in the job's own code."""

    where: str  # "train.py:41 in main"
    full: str  # full path and line
    code: str  # the line of code; "" if it could not be read
    own: bool


@dataclass(frozen=True)
class FindingRow:
    title: str
    cost: str  # "27.0 ms per iteration (34%)"; "" if it was not measured
    width: float  # share of the iteration in percent, for the bar
    after: str  # the cost left in the winner; "" if cured or unknown
    evidence: str
    advice: str
    knob: str
    tried: str  # what became of the knob in the search; "": it is in the answer, or was not tried
    cured: str  # "by num_workers=4"; "" if it is still there
    new: bool  # found only in the winner
    places: tuple[PlaceRow, ...]
    more: int  # places left out


@dataclass(frozen=True)
class FindingsStory:
    """``summary``: one sentence; "" if no rule was evaluated, so there is nothing to show."""

    summary: str
    open: tuple[FindingRow, ...]
    cured: tuple[FindingRow, ...]
    not_judged: tuple[tuple[str, str], ...]


def findings_story(result: Result) -> FindingsStory:
    """Everything the page says about findings."""
    explanation = result.explanation
    if not explanation.rules and not explanation.not_judged:
        return FindingsStory("", (), (), ())
    still = tuple(_row(f, result) for f in explanation.findings if not f.cured)
    cured = tuple(_row(f, result) for f in explanation.findings if f.cured)
    refused = tuple(
        (words.clean(n.title, 120), words.clean(n.reason, LONGEST)) for n in explanation.not_judged
    )
    return FindingsStory(_summary(result, len(still), len(cured)), still, cured, refused)


def _summary(result: Result, still: int, cured: int) -> str:
    rules = words.plural(result.explanation.rules, "rule")
    if not result.explanation.rules:
        return "Nothing could be judged."
    if not still and not cured:
        return f"Nothing found ({rules} checked)."
    looked = f"{rules} checked"
    if not story.tuned(result):
        return f"{words.plural(still, 'finding')}; {looked}."
    if not still:
        found = words.plural(cured, "finding")
        return f"{found} in the unchanged job, none left after tuning; {looked}."
    return f"{words.plural(still, 'finding')} left after tuning, {cured} fixed by it; {looked}."


def _row(finding: Finding, result: Result) -> FindingRow:
    places = [p for p in (finding.place, *finding.places) if p is not None]
    workdir = str(result.environment.get("workdir", "") or "")
    share = finding.share if words.known(finding.share) else 0.0
    return FindingRow(
        title=words.clean(finding.title, 120),
        cost=_cost(finding),
        width=round(100 * min(max(share, 0.0), 1.0), 2),
        after=_after(finding),
        evidence=words.clean(finding.evidence, LONGEST),
        advice=words.clean(finding.advice, LONGEST),
        knob=words.clean(finding.knob, 60),
        tried=_tried(finding, result),
        cured=(words.clean(finding.how_cured, 120) or "gone") if finding.cured else "",
        new=finding.side == "winner" and not finding.cured,
        places=tuple(_place(p, workdir) for p in places[: FURTHER + 1]),
        more=max(0, len(places) - FURTHER - 1),
    )


def _tried(finding: Finding, result: Result) -> str:
    if why := result.observation.withdrawn.get(finding.knob):
        return f"It does not apply here: {words.clean(why, LONGEST)}."
    measured = any(finding.knob in t.config and t.log_ratio is not None for t in result.trials)
    if not measured or finding.knob in result.knobs:
        return ""
    if re.search(rf"\b{re.escape(finding.knob)}\b", result.untried):
        return "It was only partly tried and is not part of the answer: see what was not tried."
    return "It was tried and is not part of the answer."


def _cost(finding: Finding) -> str:
    if not words.known(finding.cost_s):
        return ""
    share = f" ({100 * finding.share:.0f}%)" if words.known(finding.share) else ""
    return f"{words.duration_words(finding.cost_s)} per iteration{share}"


def _after(finding: Finding) -> str:
    if finding.cured or not words.known(finding.cost_after_s):
        return ""
    return f"{words.duration_words(finding.cost_after_s)} per iteration after tuning"


def _place(place: Place, workdir: str) -> PlaceRow:
    file = words.clean(place.file, 300)
    shown = (
        os.path.relpath(file, workdir)
        if workdir and file.startswith(os.path.join(workdir, ""))
        else os.path.join(*file.split(os.sep)[-2:])
    )
    named = place.function not in ("", "<module>")
    function = f" in {words.clean(place.function, 80)}" if named else ""
    where, full = f"{shown}:{place.line}{function}", f"{file}:{place.line}"
    return PlaceRow(where, full, words.clean(place.code, LONGEST_CODE), place.own)


# ---------------------------------------------------------------- in the terminal


def findings_lines(result: Result) -> list[Text]:
    """Lines for the closing screen: at most three open findings, and all that tuning cured."""
    told = findings_story(result)
    if not told.summary:
        return []
    lines = []
    for row in told.open[:TOP]:
        where = f", {row.places[0].where}" if row.places else ""
        cost = f": {row.after or row.cost}" if row.after or row.cost else ""
        lines.append(Text.assemble((row.title, "yellow"), f"{where}{cost}"))
    if len(told.open) > TOP:
        lines.append(Text(f"and {len(told.open) - TOP} more, in the report", style="dim"))
    for row in told.cured:
        cost = f" ({row.cost})" if row.cost else ""
        lines.append(Text.assemble(("fixed: ", "green"), f"{row.title}{cost}: {row.cured}"))
    return lines or [Text(told.summary, style="dim")]


def findings_group(result: Result) -> Group:
    """All findings, open ones first. The console must have markup and emoji off."""
    told = findings_story(result)
    if not told.summary:
        return Group(Text(words.why_not_profiled(result.explanation)))
    lines: list[RenderableType] = [Text(told.summary, style="bold")]
    for row in (*told.open, *told.cured):
        style = "green" if row.cured else "yellow"
        badge = f"  fixed: {row.cured}" if row.cured else "  only after tuning" if row.new else ""
        lines += [Text(), Text.assemble((row.title, f"bold {style}"), (badge, style))]
        body = [Text(", ".join(filter(None, (row.cost, row.after))))] if row.cost else []
        for place in row.places:
            code = f"    {place.code}" if place.code else ""
            body.append(Text(f"{place.where}{code}", style="cyan"))
        if row.more:
            body.append(Text(f"and {words.plural(row.more, 'more place')}", style="dim"))
        knob = f"Knob: {row.knob}." if row.knob else ""
        advice = " ".join(filter(None, (row.advice, knob, row.tried)))
        body += [Text(row.evidence), Text(advice, style="dim")]
        lines += map(indented, body)
    if told.not_judged:
        lines += [Text(), Text("Not judged", style="bold")]
        for title, reason in told.not_judged:
            lines.append(indented(Text.assemble(title, (f": {reason}", "dim"))))
    return Group(*lines)
