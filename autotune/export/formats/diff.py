"""Exports a unified diff of the user's source, for `patch -p1` and `git apply`.

With the diff applied, the job needs no wrapper.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from autotune.errors import InputError
from autotune.export.formats.base import Format
from autotune.export.shell_words import comment, head, in_words
from autotune.export.tuned import TunedConfig
from autotune.words import clean

if TYPE_CHECKING:
    from autotune.export.patch.plan import Patch

CONTEXT_LINES = 3
MISSING = "Not in this patch."


def write(tuned: TunedConfig) -> str:
    """The diff, with a header that both patch and git ignore.

    Raises:
        InputError: no knob can be written into the source.
    """
    if not tuned.knobs:
        raise InputError(
            "there is nothing to write: the job runs as it is",
            where=tuned.name,
            expected="tuned settings",
        )
    # imports libcst, which no other format needs
    from autotune.export.patch.plan import make_patch

    patch = make_patch(tuned)
    if not patch.files:
        raise InputError(
            _why_nothing(patch),
            where=str(tuned.workdir),
            expected="the source as it was when the job was tuned",
            remedy="use `autotune launch`, or --format shell, which need no change to the source",
        )
    return "\n".join([*_header(tuned, patch), ""]) + "".join(_diffs(patch))


def _why_nothing(patch: Patch) -> str:
    reasons: dict[str, list[str]] = {}
    for item in patch.unwritten:
        reasons.setdefault(item.reason, []).append(item.knob)
    if not reasons:
        return "the source already has all the settings"
    return "no setting can be written into the source: " + "; ".join(
        f"{', '.join(knobs)}: {reason}" for reason, knobs in reasons.items()
    )


def _header(tuned: TunedConfig, patch: Patch) -> list[str]:
    lines = head(tuned, "a patch that writes the tuned settings into the source")
    lines += [
        "#",
        *comment(f"Apply it in {shlex.quote(str(tuned.workdir))}, with one of"),
        "#     patch -p1 < FILE",
        "#     git apply FILE",
    ]
    lines += ["#", *comment("Written:")]
    for item in patch.written:
        for knob in item.knobs:
            lines += comment(
                f"  {in_words(knob, tuned.knobs[knob])}: {', '.join(item.change.where)}"
            )
    notes = dict.fromkeys(note for item in patch.written for note in item.change.notes)
    lines += [text for note in notes for text in comment(f"  Note: {clean(note)}.")]
    if patch.unwritten:
        lines += [
            "#",
            *comment(
                f"{MISSING} Do this by hand, or leave the source unchanged and keep using `autotune"
                " launch`, which sets everything"
            ),
        ]
        lines += comment("(`autotune launch` on a patched source would set some of it twice):")
    for missing in patch.unwritten:
        lines += comment(
            f"  {in_words(missing.knob, tuned.knobs[missing.knob])}: {clean(missing.reason)}."
        )
        lines += comment(missing.instead, "#       ") if missing.instead else []
    return lines


def _diffs(patch: Patch) -> Iterator[str]:
    for name, (before, after) in sorted(patch.files.items()):
        # without a tab, patch ends a file name at its first space
        end = "\t" if " " in name else ""
        lines = difflib.unified_diff(
            _lines(before), _lines(after), f"a/{name}{end}", f"b/{name}{end}", n=CONTEXT_LINES
        )
        for line in lines:
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    """Split at line feeds only: str.splitlines also splits at form feeds etc., unlike patch."""
    return [line + "\n" for line in text.split("\n")[:-1]] + (
        [text.rpartition("\n")[2]] if not text.endswith("\n") and text else []
    )


def remark(text: str) -> str:
    """A note on the settings missing from the diff ``text``, from its header; "" if none are."""
    _, _, missing = text.partition("\n--- ")[0].partition(f"# {MISSING}")
    names = re.findall(r"^#   (\S+) = ", missing, re.MULTILINE)
    return (
        f"not in the patch: {', '.join(names)}; its header says why, and what to do"
        if names
        else ""
    )


DIFF = Format("diff", "a patch that writes the settings into your own source", write, remark=remark)
