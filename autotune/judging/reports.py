"""A judgement as JUnit XML, for the test page of a CI."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from autotune.judging.conditions import EVERYTHING, Condition
from autotune.judging.records import Judgement


def junit(it: Judgement, conditions: Sequence[Condition]) -> str:
    """One test case for the speed and one for the loss.

    A case has failed where a condition holds; it is an error where one is open.
    """
    suite = ElementTree.Element(
        "testsuite", name="autotune judge", tests="2", time=f"{it.wall_s:.1f}"
    )
    counts = {"failure": 0, "error": 0}
    for name, said, reason in (
        ("speed", it.speed, it.speed_reason),
        ("loss", it.loss, it.loss_verdict.reason),
    ):
        case = ElementTree.SubElement(suite, "testcase", classname="autotune.judge", name=name)
        own = [
            c for c in conditions or EVERYTHING if (c.kind == "loss-changed") == (name == "loss")
        ]
        kind = "error" if any(c.open(it) for c in own) else ""
        if conditions and any(c.holds(it) for c in own):
            kind = "failure"
        if kind:
            counts[kind] += 1
            ElementTree.SubElement(case, kind, message=f"{name} {said}").text = reason
        ElementTree.SubElement(case, "system-out").text = f"{said}: {reason}"
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
