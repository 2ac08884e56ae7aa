"""Sentences on files that trials wrote.

Restored files share one quiet line; each file that was not restored comes with what to do about it.
"""

from __future__ import annotations

import os

from autotune import words
from autotune.results import Written

SHOWN = 4  # names in one sentence


def written_lines(written: Written, who: str = "Trials") -> list[tuple[str, bool]]:
    """(sentence, whether the user has to act). ``who`` wrote: trials, or the profiled job."""
    lines: list[tuple[str, bool]] = []
    quiet = [
        f"{what} {_names(names, written.counts.get(kind, len(names)))}"
        for kind, what, names in (
            ("restored", "restored:", written.restored),
            ("removed", "removed:", written.removed),
            ("prepared", "prepared before training and kept:", written.prepared),
        )
        if names
    ]
    if quiet:
        lines.append((f"Files that {who[0].lower()}{who[1:]} wrote: {'; '.join(quiet)}.", False))
    for path, why in written.unkept.items():
        lines.append(
            (
                (
                    f"{words.clean(path)} was changed by {who[0].lower()}{who[1:]} and not put"
                    f" back: {words.clean(why)}. {REMEDY}"
                ),
                True,
            )
        )
    if written.left:
        names = _names(written.left, written.counts.get("left", len(written.left)))
        lines.append(
            (
                (
                    f"Left in place, because another program may have written it: {names}."
                    " Remove what you do not need."
                ),
                True,
            )
        )
    if written.noticed:
        lines.append(
            (
                (
                    "Changed while a trial ran, by something autotune could not watch:"
                    f" {_names(written.noticed, len(written.noticed))}. {REMEDY}"
                ),
                True,
            )
        )
    for path, original in written.failed.items():
        what = (
            f"its original content is in {words.clean(original)}"
            if os.path.isabs(original)
            else words.clean(original)
        )
        lines.append((f"{words.clean(path)} could not be put back; {what}.", True))
    return lines


REMEDY = "Have the job write to {trial_dir}, or see docs/side-effects.md."


def _names(names: tuple[str, ...], count: int) -> str:
    shown = ", ".join(words.clean(name, 60) for name in names[:SHOWN])
    return shown if count <= SHOWN else f"{shown} and {count - SHOWN} more"
