"""What a verdict certifies and what it does not: one paragraph on the loss for the result, the
report and the README; and what a speed-up leaves out.
"""

from __future__ import annotations

from autotune.results import LossVerdict

NOT_CERTIFIED = (
    "Not certified: the final quality, or effects after these steps. Optimizer settings, dtypes,"
    " dropout and frozen parameters were compared directly and are the same, unless the knob"
    " declares a change."
)
FIRST_EPOCH = (
    "Not every run reached the second epoch: what changes there (after an evaluation, or a"
    " smaller last batch) is not included."
)


def certificate(verdict: LossVerdict) -> str:
    """``verdict`` in plain words; the margin is in the loss's own unit."""
    pairs = f"{verdict.pairs} seeded pair{'s' if verdict.pairs != 1 else ''}"
    runs = f"{pairs} of runs" + (
        f" over the first {verdict.steps} optimizer steps" if verdict.steps else ""
    )
    reason = _sentence(verdict.reason)
    if verdict.verdict == "not-needed":
        return "Nothing that could change the loss was changed, so no training was compared."
    if verdict.verdict == "unchanged" and verdict.margin == 0:
        return (
            f"Certified: in {runs}, every loss was bit-identical.{_metrics(verdict)} "
            "Not certified: anything the settings may change after these steps."
        )
    if verdict.verdict == "unchanged":
        margin = ""
        if verdict.margin is not None and verdict.largest_difference is not None:
            margin = (
                f" (worst part: {verdict.largest_difference:+.3g}, margin ±{verdict.margin:.3g})"
            )
        return (
            f"Certified: the same early trajectory. In {runs}, the mean loss of every part of the"
            f" window differed by less than the margin{margin}.{_metrics(verdict)} {NOT_CERTIFIED}"
        )
    if verdict.verdict == "changed":
        # without steps it was a comparison of settings
        return f"{reason} Seen in {runs}." if verdict.steps else reason
    if verdict.verdict == "no-proof":
        return (
            "This job's loss cannot serve as proof, so nothing that may change it is adopted."
            f" {reason}"
        )
    return f"Undecided: neither the same nor different in {runs}. {reason}"


def _metrics(verdict: LossVerdict) -> str:
    """The results for the job's own metrics, as sentences that begin with a space; "" if none."""
    said = ""
    same = [m for m in verdict.metrics if m.verdict == "unchanged"]
    if same:
        margins = ", ".join(
            f"{m.name} (±{m.margin:.3g})" if m.margin else f"{m.name} (bit-identical)" for m in same
        )
        said += f" This also holds for the job's own metrics: {margins}."
    for metric in verdict.metrics:
        if metric.verdict == "not-judged":
            said += f" {metric.name} was not judged: {metric.reason}."
    return said


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""
