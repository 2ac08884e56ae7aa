"""Which optimizer's step ends an iteration in a job with several optimizers; and which evaluation
of a closure gives the loss.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from autotune_trials.agent.core.events import Events, Listener
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.core.training_loop import TrainingLoop
from autotune_trials.agent.loop.lead_optimizer import SILENT, LeadOptimizer


class Optimizer:
    """Stands in for an optimizer; only its identity matters."""


def ends(steps: str, backwards: bool = True) -> str:
    """Mark the ends of iterations in ``steps``, which has one letter per optimizer.

    A bar follows every step that ends an iteration; ``+`` follows a step to which the end moved.
    ``backwards``: one runs before each step.
    """
    lead, known = LeadOptimizer(), {letter: Optimizer() for letter in steps}
    drawn = ""
    for number, letter in enumerate(steps):
        end = lead.ends_iteration(known[letter], number * backwards)
        drawn += letter + ("+" if end and lead.same_turn else "|" if end else "")
    return drawn


@pytest.mark.parametrize(
    ("steps", "drawn"),
    [
        ("aaaa", "a|a|a|a|"),
        ("dgdgdg", "d|g+dg|dg|"),  # a GAN: the generator's step ends it
        ("gabgabgab", "g|a+b+gab|gab|"),  # two critics
        # the critic steps more often: each of its steps is an iteration
        ("ddddgddddg", "d|d|d|d|gd|d|d|d|g"),
        # the same, with both in the first round: one long iteration, once
        ("dgdddgdddg", "d|g+dd|d|gd|d|d|g"),
        ("dggdgg", "d|g+gd|gg"),  # the generator steps twice: the critic ends it
    ],
)
def test_the_last_of_a_turn_ends_the_iteration(steps: str, drawn: str) -> None:
    assert ends(steps) == drawn


def test_an_optimizer_that_is_built_anew_takes_the_place_of_the_one_that_is_gone() -> None:
    lead, drawn = LeadOptimizer(), ""
    for _ in range(4):
        one = Optimizer()
        drawn += "a|" if lead.ends_iteration(one, 0) and not lead.same_turn else "a"
    assert drawn == "a|a|a|a|"
    lead, drawn = LeadOptimizer(), ""
    for _ in range(3):  # a GAN
        one = Optimizer()
        drawn += "d|" if lead.ends_iteration(one, 0) and not lead.same_turn else "d"
        other = Optimizer()
        drawn += "g|" if lead.ends_iteration(other, 0) and not lead.same_turn else "g"
    assert drawn == "d|gdg|dg|"  # the first g moves the end
    one = other
    assert [lead.ends_iteration(one, 0) for _ in range(3)] == [True] * 3  # the second stays alone


def test_another_leads_once_the_lead_has_fallen_silent() -> None:
    drawn = ends("aab" + "b" * (SILENT + 3))
    assert drawn.startswith("a|a|b") and drawn.endswith("b|b|b|")
    assert drawn.count("|") < 8


def test_a_lead_that_has_fallen_silent_before_is_followed_soon() -> None:
    """A policy and its value function, each trained for many steps in turn."""
    phases = ("p" * 80 + "v" * 80) * 3
    drawn = ends(phases)
    assert drawn.startswith("p|" * 80 + "v" * SILENT + "v|" * 30 + "p" * SILENT + "p|" * 30)
    assert drawn.endswith("vvv|" + "v|" * 77 + "ppp|" + "p|" * 77 + "vvv|" + "v|" * 77)
    # steps that follow no backward of their own are no sign of a phase
    assert ends(phases, backwards=False).endswith("v" * SILENT + "v|" * 30)


def test_a_generator_leads_however_often_its_critic_steps() -> None:
    """Also after a start in which only the critic was trained."""
    assert ends("g" + "ddddd" + "gddddd" * 4) == "g|d+" + "dddd" + "g|ddddd" * 4
    start = "g" + "d" * (SILENT - 5) + "gddddd" * 4
    assert ends(start).endswith("g|ddddd" * 4)
    # one that has taken over leads on, though it steps less often
    drawn = ends("d" * 60 + "g" * 60 + "dddddg" * 4)
    assert drawn.endswith("g|" * 10 + "dddddg|" * 4)


def test_evaluations_of_a_closure_are_counted() -> None:
    """The loss of a step is that of its first evaluation: LossSelection uses the count."""
    state, one, counts = LoopState(), Optimizer(), []  # type: ignore[var-annotated]
    loop = TrainingLoop(Events(), state, pytest.fail, pytest.fail)  # type: ignore[arg-type]

    def closure(backward: bool = True) -> int:
        assert backward is (len(counts) < 3)
        counts.append(state.closure_calls)
        return len(counts)

    assert (
        loop.start_step(one, ("self",), {}) is None
        and loop.start_step(one, ("self", None), {}) is None
    )
    args, kwargs = loop.start_step(one, ("self", closure, "more"), {})
    assert args[0] == "self" and args[2] == "more" and kwargs == {}
    assert [args[1](), args[1](), args[1]()] == [1, 2, 3] and counts == [1, 2, 3]
    loop.end_step(one, ("self",), {})
    _, kwargs = loop.start_step(one, ("self",), {"closure": closure, "scale": 2})
    kwargs["closure"](backward=False)
    assert counts[-1] == 1 and kwargs["scale"] == 2
    loop.end_step(one, ("self",), {})
    assert not state.closure_calls


def test_a_closure_that_raises_ends_its_step() -> None:
    """The job may catch the error and skip the batch; torch calls no hook after the step then."""

    class Failures(Listener):
        seen: ClassVar[list[object]] = []

        def step_failed(self, optimizer: object) -> None:
            self.seen.append(optimizer)

    state, one, events = LoopState(), Optimizer(), Events()
    events.listen(Failures())
    loop = TrainingLoop(events, state, pytest.fail, pytest.fail)  # type: ignore[arg-type]

    def closure() -> None:
        assert state.in_step
        raise ValueError("a bad batch")

    args, _ = loop.start_step(one, ("self", closure), {})
    with pytest.raises(ValueError, match="a bad batch"):
        args[1]()
    assert not state.closure_calls and not state.in_step and Failures.seen == [one]


def test_another_step_after_the_same_backward_ends_no_iteration() -> None:
    """DeepSpeed's ZeRO steps its optimizer once per param group."""
    state, one, other = LoopState(), Optimizer(), Optimizer()
    loop = TrainingLoop(Events(), state, pytest.fail, pytest.fail)  # type: ignore[arg-type]

    def iterations(*steps: Optimizer) -> int:
        before = state.iterations
        for optimizer in steps:
            loop.end_step(optimizer, (optimizer,), {})
        return state.iterations - before

    assert iterations(one, one) == 2  # the job's backward is not seen: each step counts
    loop.end_backward()
    assert iterations(one, one, one) == 1
    loop.end_backward()
    assert iterations(one, one, one) == 1
    state.in_backward = True
    assert iterations(one, one) == 2  # one step for each gradient, as it becomes ready
    state.in_backward = False
    loop.end_backward()
    assert iterations(one) == 1
    for _ in range(3):  # a phase that takes its gradients by torch.autograd.grad
        state.training_called = True
        assert iterations(one, one) == 1
    loop.end_backward()
    assert iterations(other, other) == 0 and iterations(one, one, other) == 1
    loop.end_backward()
    # each group has an optimizer of its own that is built for this step
    assert iterations(one) == 1
    del one
    assert iterations(Optimizer()) == iterations(Optimizer()) == 0
