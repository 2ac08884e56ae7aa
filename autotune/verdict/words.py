"""What a loss verdict certifies and what it does not, in one paragraph for the result, the report and the README."""

from __future__ import annotations

from autotune.results import LossVerdict


def certificate(verdict: LossVerdict) -> str:
    """Plain words for ``verdict``; the margin is in the loss's own unit."""
    pairs = f"{verdict.pairs} seeded pair{'s' if verdict.pairs != 1 else ''}"
    runs = f"{pairs} of runs over the first {verdict.steps} optimizer steps"
    if verdict.verdict == "not-needed":
        return "Nothing that could change the loss was changed, so no training was compared."
    if verdict.verdict == "unchanged" and verdict.margin == 0:
        return (
            f"Certified: in {runs}, every loss was the same to the last bit. "
            "Not certified: anything the settings may change after these steps."
        )
    if verdict.verdict == "unchanged":
        return (
            f"Certified: the same early trajectory. In {runs}, the mean loss of every part of the window differed "
            "by less than the margin "
            f"(±{verdict.margin:.3g} where it came nearest, where the difference was "
            f"{verdict.largest_difference:+.3g}). "
            "Not certified: the same final quality, or anything that shows only after these steps; settings whose "
            "effect comes late, such as weight decay, "
            "were compared directly and are the same unless the knob says it changes them."
        )
    if verdict.verdict == "changed":
        return f"Not adopted: in {runs}, the training did not take the same way. {_sentence(verdict.reason)}"
    return f"Nothing is certified: {runs} could not tell. {_sentence(verdict.reason)}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""
