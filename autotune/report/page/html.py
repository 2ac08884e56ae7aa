"""Renders report.html: the whole result on one self-contained page.

No scripts and no network requests (a content security policy forbids both); light or dark follows
the browser's setting. The template engine escapes everything that comes from the job; only our own
SVG is inserted unescaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune import words
from autotune.report.plots.both import both_svg
from autotune.report.plots.loss import loss_svg
from autotune.report.plots.parallel import parallel_svg
from autotune.report.plots.trials import trials_svg
from autotune.report.plots.waterfall import waterfall_svg
from autotune.report.text import gains, story, timeline
from autotune.report.text.findings import findings_story
from autotune.report.text.operators import section
from autotune.report.text.reproduce import reproduce
from autotune.report.text.summary import result_summary
from autotune.results import Anatomy, Interval, Result, Trial
from autotune_trials.paths import publish

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


FILE_NAME = "report.html"
# section id -> its label in the navigation
NAVIGATION = {
    "changes": "change",
    "both": "both objectives",
    "time": "time",
    "summary": "summary",
    "findings": "findings",
    "timeline": "timeline",
    "operators": "operators",
    "loss": "loss",
    "trials": "trials",
    "reproduce": "reproduce",
}
LONGEST_TEXT = 600  # characters of job text shown in one cell


def write_report(result: Result, run_dir: Path) -> Path:
    """Write ``report.html`` into the run directory (write, flush, rename) and return its path.

    Raises:
        OSError: the directory cannot be written.
    """
    path = run_dir / FILE_NAME
    publish(path, render(result, run_dir))
    return path


def breakable(name: str) -> Markup:
    """A long name that breaks after its colons and underscores only, if these suffice."""
    from markupsafe import Markup, escape

    return Markup(re.sub("(::|_)", r"\1<wbr>", str(escape(name))))


def page_environment() -> Environment:
    """The Jinja environment: escapes everything, has :mod:`autotune.words` functions as filters."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("autotune.report.page"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        breakable=breakable,
        clean=lambda text: words.clean(text, LONGEST_TEXT),
        config=words.config_words,
        duration=words.duration_words,
        factor=words.factor_words,
        interval=words.interval_words,
        value=words.value_words,
        number=words.number_words,
        sections=_sections,
    )
    return environment


def render(result: Result, run_dir: Path, template: str = "report.html.j2", **more: Any) -> str:
    """Return the page's HTML. ``more``: variables only this template needs."""
    from markupsafe import Markup

    strips = timeline.strips(result)
    before, after = story.anatomies(result)
    ends = [("before", before), ("after", after)] if after else [("now", before)]
    page = (
        page_environment()
        .get_template(template)
        .render(
            result=result,
            bottleneck=_bottleneck(result),
            tuned=story.tuned(result),
            headline=story.headline(result),
            evidence=story.evidence(result),
            tried=story.tried(result),
            loss=story.loss_story(result),
            show_loss=bool(result.knobs) or result.loss.verdict != "not-needed",
            changes=[
                (change, _bar(change.speedup, _top(result))) for change in gains.changes(result)
            ],
            given_back=gains.given_back(result),
            own_gain=gains.own_gain_words(result),
            waterfall_svg=Markup(waterfall_svg(result)),
            waterfall_words=gains.build_up_words(result),
            ends=ends,
            **stacked_bars(ends),
            phases=story.phase_rows(side for _, side in ends),
            epoch_ends=story.epoch_ends(side for _, side in ends),
            unlike_iterations=story.unlike_iterations(result),
            trials=[_trial_row(t) for t in result.trials],
            trials_svg=Markup(trials_svg(result)),
            parallel_svg=Markup(parallel_svg(result)),
            both_svg=Markup(both_svg(result)),
            unbeaten=story.unbeaten_rows(result),
            objectives=story.objective_words(result),
            importance=_shares(result),
            no_importance=gains.no_importance(result),
            loss_svg=Markup(loss_svg(result)),
            operators=section(result.explanation),
            timelines=strips,
            timeline_axis=axis(timeline.whole(result)),
            timeline_kinds=timeline.kinds(strips),
            rejected=story.rejected_rows(result),
            withdrawn=story.withdrawn_rows(result),
            commands=story.next_commands(result, run_dir),
            findings=findings_story(result),
            summary=result_summary(result),
            command=words.clean(story.command_words(result), LONGEST_TEXT),
            again=reproduce(result, run_dir),
            run_dir=story.shown_path(run_dir),
            **more,
        )
    )
    # Paths that are not valid UTF-8 were cleaned above; any that remain must not break the page.
    return page.encode("utf-8", "replace").decode("utf-8")


def _bottleneck(result: Result) -> str:
    observation = result.observation
    ceiling = story.ceiling_words(observation)
    return " ".join(
        filter(None, (story.sentence(observation.bottleneck_why), story.sentence(ceiling)))
    )


def _top(result: Result) -> float:
    """The right end of the gain bars' scale: the largest upper bound, at least 1.1."""
    bounds = [g.speedup.high for g in result.gains if words.measured(g.speedup)]
    return max([*bounds, 1.1])


def _bar(interval: Interval | None, top: float) -> dict[str, float] | None:
    """Left edge, width and mark of an interval, in percent of a scale that ends at ``top``.

    The scale starts at 1, or at the lower bound if that is below 1.
    """
    if interval is None or not words.measured(interval):
        return None
    bottom = min(1.0, interval.low)
    scale = 100 / (top - bottom) if top > bottom else 0.0
    low, high, estimate = (
        (min(max(v, bottom), top) - bottom) * scale
        for v in (interval.low, interval.high, interval.estimate)
    )
    return {"left": round(low, 2), "width": round(high - low, 2), "mark": round(estimate, 2)}


def stacked_bars(sides: Sequence[tuple[str, Anatomy]]) -> dict[str, Any]:
    """Variables for bars.html.j2: one stacked bar per anatomy, widths in percent of the longest."""
    seconds = [
        {p: s for p, s in anatomy.phases_s.items() if words.known(s) and s > 0}
        for _, anatomy in sides
    ]
    whole_s = max(sum(parts.values()) for parts in seconds)
    bars = [
        {
            "name": name,
            "total": words.duration_words(anatomy.iteration_s),
            "parts": [
                {
                    "width": round(100 * s / whole_s, 3),
                    "phase": p if p in story.PHASE_WORDS else "other",
                    "title": (
                        f"{story.PHASE_WORDS.get(p, words.clean(p, 40))}: {words.duration_words(s)}"
                    ),
                }
                for p, s in parts.items()
            ],
        }
        for (name, anatomy), parts in zip(sides, seconds, strict=True)
    ]
    return {"bars": bars if whole_s > 0 else [], "time_axis": axis(whole_s)}


def axis(whole_s: float) -> list[dict[str, Any]]:
    """Round ticks for a scale from 0 to ``whole_s``: position in percent, and label."""
    from matplotlib.ticker import MaxNLocator

    if not words.known(whole_s) or whole_s <= 0:
        return []
    ticks = [
        t
        for t in MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(0, whole_s)
        if 0 <= t <= whole_s
    ]
    factor, unit = next(
        (f, u)
        for limit, f, u in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s"))
        if whole_s < limit
    )
    return [
        {"at": round(100 * t / whole_s, 2), "said": f"{t * factor:g} {unit}" if t else "0"}
        for t in ticks
    ]


def _shares(result: Result) -> list[dict[str, Any]]:
    """Rows of the importance bars; the longest takes the full width."""
    shares = gains.knob_shares(result)
    top = max(shares.values(), default=1.0)
    return [
        {"knob": k, "share": f"{100 * v:.0f}%", "width": round(100 * v / top, 1)}
        for k, v in shares.items()
    ]


def _sections(body: str) -> list[tuple[str, str]]:
    """(id, title) of each rendered section that belongs in the navigation.

    Searching for tags is safe: the job's own text is escaped.
    """
    return [
        (place, NAVIGATION[place])
        for place in re.findall(r'<section id="([\w-]+)"', body)
        if place in NAVIGATION
    ]


def _trial_row(trial: Trial) -> dict[str, Any]:
    interval = words.trial_interval(trial)
    return {
        "number": trial.number,
        "config": words.config_words(trial.config),
        "state": words.clean(trial.state, 40),
        "kind": trial.state
        if trial.state in ("complete", "pruned", "infeasible", "failed")
        else "other",
        "speedup": words.interval_words(interval) if interval else "",
        "pairs": trial.pairs or "",
        "origin": words.clean(trial.origin, 40),
        "wall": words.duration_words(trial.wall_s) if trial.wall_s else "",
        "notes": words.trial_notes(trial, LONGEST_TEXT),
    }
