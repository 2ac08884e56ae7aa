"""Which optimizer's step ends an iteration, where a job has several; and which evaluation of a closure gives the loss."""

from __future__ import annotations

import pytest

from autotune_trials.agent.loop.closures import Evaluations
from autotune_trials.agent.loop.lead_optimizer import SILENT, Lead


class Optimizer:
    """Stands for one; only its identity matters."""


def ends(steps: str) -> str:
    """``steps``: a letter an optimizer. Returns the same with a bar after every step that ends an iteration, ``+`` where the end moved on."""
    lead, known = Lead(), {letter: Optimizer() for letter in steps}
    drawn = ""
    for letter in steps:
        end = lead.ends_iteration(known[letter])
        drawn += letter + ("+" if end and lead.same_turn else "|" if end else "")
    return drawn


@pytest.mark.parametrize(
    ("steps", "drawn"),
    [
        ("aaaa", "a|a|a|a|"),
        ("dgdgdg", "d|g+dg|dg|"),  # a GAN: the generator's step ends it
        ("gabgabgab", "g|a+b+gab|gab|"),  # two critics
        ("ddddgddddg", "d|d|d|d|gd|d|d|d|g"),  # the critic steps more often: each of its steps is an iteration
        ("dgdddgdddg", "d|g+dd|d|gd|d|d|g"),  # the same, with both in the first round: one long iteration, once
        ("dggdgg", "d|g+gd|gg"),  # the generator steps twice: the critic ends it
    ],
)
def test_the_last_of_a_turn_ends_the_iteration(steps: str, drawn: str) -> None:
    assert ends(steps) == drawn


def test_another_leads_once_the_lead_has_fallen_silent() -> None:
    drawn = ends("aab" + "b" * (SILENT + 3))
    assert drawn.startswith("a|a|b") and drawn.endswith("b|b|b|")
    assert drawn.count("|") < 8


def test_a_closures_first_evaluation_counts() -> None:
    evaluations, calls = Evaluations(), []

    def closure() -> int:
        calls.append(evaluations.repeated)
        return len(calls)

    assert evaluations.watch(("self",), {}) is None and evaluations.watch(("self", None), {}) is None
    args, kwargs = evaluations.watch(("self", closure, "more"), {})
    assert args[0] == "self" and args[2] == "more" and kwargs == {}
    assert [args[1](), args[1](), args[1]()] == [1, 2, 3] and calls == [False, True, True]
    evaluations.end()
    _, kwargs = evaluations.watch(("self",), {"closure": closure, "scale": 2})
    kwargs["closure"]()
    assert calls[-1] is False and kwargs["scale"] == 2
    evaluations.end()
    assert not evaluations.repeated
