"""Makes docs/findings.md from the cards.

python -m autotune.findings.docs docs/findings.md           write it
python -m autotune.findings.docs --check docs/findings.md   exit with 1 if it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from autotune.findings import RULES
from autotune.findings.base import Rule
from autotune_spaces.docs import write_page

HEAD = """\
# The findings

<!-- Made from the cards in autotune/findings by `python -m autotune.findings.docs docs/findings.md`. -->

At its end, a run examines the baseline and the winner: it profiles a dozen iterations of each, then watches at least 60 from inside the job.
Every rule below judges both. A finding says what was seen, at which line, what it costs per iteration, what to do, and
whether a tuned knob already fixed it. A rule that cannot judge a job says why. A healthy job gets no findings.

Costs refer to the watched iterations. Costs that overlap in time do not add up. Where two rules would report the same
cause, only the more specific one does.
"""


def table() -> str:
    rows = ["| finding | what is wrong | knobs that fix it |", "|---|---|---|"]
    rows += [
        f"| [`{rule.name}`](#{rule.name}) | {rule.title} |"
        f" {_knobs(rule) or 'none: change the code'} |"
        for rule in RULES
    ]
    return "\n".join(rows) + "\n"


def card(rule: Rule) -> str:
    lines = [f"## {rule.name}", "", f"**{rule.title}.** {rule.card}"]
    if knobs := _knobs(rule):
        lines += ["", f"Knobs that fix it: {knobs}."]
    return "\n".join(lines) + "\n"


def _knobs(rule: Rule) -> str:
    return ", ".join(f"[`{name}`](knobs.md#{name})" for name in (rule.knob, *rule.also) if name)


def render() -> str:
    return "\n".join([HEAD, table(), *map(card, RULES)])


def main(arguments: Sequence[str] | None = None) -> int:
    return write_page("autotune.findings.docs", lambda _: render(), arguments)


if __name__ == "__main__":
    sys.exit(main())
