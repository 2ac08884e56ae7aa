"""What trials wrote, in sentences: what was put back is one quiet line, what was not is said with
what to do about it.
"""

from __future__ import annotations

import os

from autotune import words
from autotune.results import Written

SHOWN = 4  # names in one sentence


def written_lines(written: Written, who: str = "Trials") -> list[tuple[str, bool]]:
    """(sentence, does somebody have to do something) each. ``who`` wrote: trials, or the job that
    was profiled.
    """
    lines: list[tuple[str, bool]] = []
    quiet = [
        f"{what} {_names(names, written.counts.get(kind, len(names)))}"
        for kind, what, names in (
            ("restored", "put back as they were:", written.restored),
            ("removed", "removed again:", written.removed),
            ("prepared", "prepared before training and left there:", written.prepared),
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
                    "Changed while a trial ran, by something that could not be watched:"
                    f" {_names(written.noticed, len(written.noticed))}. {REMEDY}"
                ),
                True,
            )
        )
    for path, original in written.failed.items():
        what = (
            f"what it was before lies in {words.clean(original)}"
            if os.path.isabs(original)
            else words.clean(original)
        )
        lines.append((f"{words.clean(path)} could not be put back; {what}.", True))
    return lines


REMEDY = "Have the job write to {trial_dir}, or see docs/side-effects.md."


def _names(names: tuple[str, ...], count: int) -> str:
    shown = ", ".join(words.clean(name, 60) for name in names[:SHOWN])
    return shown if count <= SHOWN else f"{shown} and {count - SHOWN} more"
