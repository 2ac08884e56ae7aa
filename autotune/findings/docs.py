"""docs/findings.md, made from the cards.

python -m autotune.findings.docs docs/findings.md           write it
python -m autotune.findings.docs --check docs/findings.md   exit with 1 if it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.findings import RULES
from autotune.findings.base import Rule

HEAD = """\
# The findings

<!-- Made from the cards in autotune/findings by `python -m autotune.findings.docs docs/findings.md`. -->

At its end a run looks closely at the baseline and at its answer: some sixty iterations are watched from inside the job, then a few are profiled.
Every rule below is asked about both. A finding says what was seen, at which line, what it costs an iteration as it was measured, what to do, and
whether a knob of the answer already did it. What cannot be judged here says why. A healthy job gets none.

Costs are of the watched iterations and do not add up where one thing hides behind another. Where two rules would report one cause,
the more particular one does.
"""


def table() -> str:
    """All rules as a Markdown table."""
    rows = ["| finding | what is wrong | knobs that cure it |", "|---|---|---|"]
    rows += [f"| [`{rule.name}`](#{rule.name}) | {rule.title} | {_knobs(rule) or 'none: it is in the code'} |" for rule in RULES]
    return "\n".join(rows) + "\n"


def card(rule: Rule) -> str:
    """One rule's card as Markdown."""
    lines = [f"## {rule.name}", "", f"**{rule.title}.** {rule.card}"]
    if knobs := _knobs(rule):
        lines += ["", f"Knobs that cure it: {knobs}."]
    if rule.explains:
        general = [f"[`{other.name}`](#{other.name})" for other in RULES if other.name in rule.explains]
        if general:
            lines += ["", f"What it explains is not reported again as {' or '.join(general)}."]
    return "\n".join(lines) + "\n"


def _knobs(rule: Rule) -> str:
    return ", ".join(f"[`{name}`](knobs.md#{name})" for name in (rule.knob, *rule.also) if name)


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, table(), *map(card, RULES)])


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    check = "--check" in words
    files = [Path(w) for w in words if w != "--check"]
    if len(files) != 1:
        print("usage: python -m autotune.findings.docs [--check] FILE", file=sys.stderr)
        return 2
    text = render()
    if not check:
        files[0].write_text(text, encoding="utf-8")
        return 0
    if files[0].is_file() and files[0].read_text(encoding="utf-8") == text:
        return 0
    print(f"{files[0]} is out of date: run python -m autotune.findings.docs {files[0]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
