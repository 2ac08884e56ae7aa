"""How often Python's garbage collector runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Undone, Value
from autotune_spaces.facts import JobFacts, Machine

THRESHOLD = "threshold-"
TRIED_THRESHOLD = 50_000  # new objects; the interpreter's default is 700 to 2000


class Gc(Knob):
    name = "gc"
    scope = Scope.LIVE
    numerics = Numerics.EXACT
    example = "freeze"
    range = "default, freeze, threshold-50000"
    card = Card(
        what=(
            "When Python's garbage collector runs, and on what. freeze collects once when"
            " training begins and then excludes everything that exists (model, data,"
            " modules) from later collections; threshold-N collects only after N new"
            " objects."
        ),
        when_it_helps=(
            "Many Python objects live as long as the job (samples held in lists, a large"
            " model), and the loop creates new ones: each full collection walks them all"
            " while training waits. With many ranks, one that pauses holds up the others."
        ),
        when_it_does_not=(
            "Data and model consist of few objects, however large. Cycles that hold tensors are"
            " collected later, so memory may grow. DataLoader workers are separate processes:"
            " forked ones inherit the setting, others collect as before."
        ),
        changes_loss="No.",
        source="https://docs.python.org/3/library/gc.html#gc.freeze",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return "default"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if own := job.own_settings.get("gc"):
            raise NotApplicable(f"the job configures Python's garbage collector itself ({own})")
        return ["default", "freeze", f"{THRESHOLD}{TRIED_THRESHOLD}"]

    def check_value(self, value: Value) -> str | None:
        if value in ("default", "freeze") or (isinstance(value, str) and _threshold(value)):
            return None
        return f"{value!r} is neither default, freeze nor {THRESHOLD}N with a whole number N ≥ 1"

    def apply(self, live: LiveJob, value: Value) -> None:
        live.control("gc").set(value if value == "freeze" else _threshold(str(value)))

    def effect(self, live: LiveJob, value: Value) -> str | None:
        import gc

        if not gc.isenabled():
            return Undone("the job has switched the garbage collector off (gc.disable())")
        threshold = _threshold(str(value))
        if threshold and gc.get_threshold()[0] != threshold:
            return Undone(f"the job set the threshold to {gc.get_threshold()[0]} itself")
        return (
            Undone("nothing is frozen: the job has called gc.unfreeze()")
            if value == "freeze" and not gc.get_freeze_count()
            else None
        )

    def snippet(self, value: Value) -> str:
        if value == "freeze":
            return "gc.collect()\ngc.freeze()"
        threshold = _threshold(str(value))
        return f"gc.set_threshold({threshold}, *gc.get_threshold()[1:])" if threshold else ""


def _threshold(value: str) -> int | None:
    """N of ``threshold-N``, None for any other word."""
    found = re.fullmatch(rf"{THRESHOLD}([0-9]+)", value)
    return int(found[1]) or None if found else None
