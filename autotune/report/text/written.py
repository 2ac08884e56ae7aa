"""Sentences on files that trials wrote.

Restored files share one quiet line; each file that was not restored comes with what to do about it.
"""

from __future__ import annotations

import os

from autotune import words
from autotune.results import Written

SHOWN = 4  # names in one sentence


def written_lines(written: Written, who: str = "trials") -> list[tuple[str, bool]]:
    """(sentence, whether the user has to act). ``who`` wrote: trials, or the profiled job."""
    quiet = [
        f"{what} {_names(names, written.counts.get(kind, len(names)))}"
        for kind, what, names in (
            ("restored", "restored:", written.restored),
            ("removed", "removed:", written.removed),
            ("prepared", "prepared before training and kept:", written.prepared),
        )
        if names
    ]
    urgent = [
        f"{words.clean(path)} was changed by {who} and not put back: {words.clean(why)}. {REMEDY}"
        for path, why in written.unkept.items()
    ]
    if written.left:
        names = _names(written.left, written.counts.get("left", len(written.left)))
        urgent.append(
            f"Left in place, because another program may have written it: {names}. Remove what you"
            " do not need."
        )
    if written.noticed:
        urgent.append(
            "Changed while a trial ran, by something autotune could not watch:"
            f" {_names(written.noticed, len(written.noticed))}. {REMEDY}"
        )
    for path, original in written.failed.items():
        what = (
            f"its original content is in {words.clean(original)}"
            if os.path.isabs(original)
            else words.clean(original)
        )
        urgent.append(f"{words.clean(path)} could not be put back; {what}.")
    said = [(f"Files that {who} wrote: {'; '.join(quiet)}.", False)] if quiet else []
    return said + [(line, True) for line in urgent]


REMEDY = "Have the job write to {trial_dir}, or see docs/side-effects.md."


def _names(names: tuple[str, ...], count: int) -> str:
    shown = ", ".join(words.clean(name, 60) for name in names[:SHOWN])
    return shown if count <= SHOWN else f"{shown} and {count - SHOWN} more"
