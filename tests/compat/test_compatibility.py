"""Whole programs of other projects, with their own command lines. The results become
docs/compatibility.md (see page.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from catalogue import ALL, Program
from checks import hooked, seen_as_it_is, switched_for_real
from harness import Place, note, settle, version

pytestmark = [pytest.mark.compat, pytest.mark.timeout(1800)]
BUDGET = """
"traces": "none", "tracking": {"uri": null}, "budget": {"minutes": MINUTES, "trials": 4}, "convergence": {"steps": 60}"""

each_program = pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)


@pytest.fixture(scope="session")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Program], Place]:
    """Makes the data once per program."""
    places: dict[str, Place] = {}

    def find(program: Program) -> Place:
        if program.name not in places:
            places[program.name] = settle(program, tmp_path_factory.mktemp(program.name))
        return places[program.name]

    return find


@each_program
def test_the_agent_sees_what_the_program_logs_and_changes_no_bit_of_it(
    program: Program, settled: Callable[[Program], Place]
) -> None:
    place = settled(program)
    bare_s = place.bare()
    began = time.perf_counter()
    hello, record = place.recorded()
    agent_s = time.perf_counter() - began
    truth = program.truth(place.out("agent"))
    assert truth.said == program.truth(place.out("bare")).said
    seen_as_it_is(program, truth, hello, record)
    note(
        program,
        "seen",
        {
            "version": version(program, program.package),
            "torch": version(program, "torch"),
            "steps": len(record.losses),
            "bare_s": bare_s,
            "agent_s": agent_s,
        },
    )


@each_program
def test_every_knob_that_applies_is_in_force_when_it_is_set(
    program: Program, settled: Callable[[Program], Place]
) -> None:
    applied = switched_for_real(settled(program))
    for name, words in program.withdrawn.items():
        assert words in applied.withdrawn[name]
    assert not set(applied.values) & set(program.withdrawn)
    note(
        program,
        "knobs",
        {
            "hooked": hooked(applied.hello),
            "applies": applied.listed,
            "switched": applied.values,
            "withdrawn": applied.withdrawn,
        },
    )


@each_program
def test_tuning_it_ends_in_a_verdict(program: Program, settled: Callable[[Program], Place]) -> None:
    place = settled(program)
    result = place.tuned(BUDGET.replace("MINUTES", str(program.minutes)))
    assert result["verdict"] in ("tuned", "keep-baseline")
    measured = [trial for trial in result["trials"] if trial["state"] in ("complete", "pruned")]
    assert len(measured) >= 2 and all(trial["no_effect"] == {} for trial in measured), result[
        "trials"
    ]
    assert all(trial["config"] for trial in measured)
    job = result["observation"]["job"]
    # mean over the steps before the agent's first message: warm-up, or until the first epoch has
    # ended
    means = [sum(place.samples(n)) / n for n in range(3, len(program.epoch) + 2)]
    assert any(job["samples_per_step"] == pytest.approx(mean) for mean in means)
    for name, words in program.withdrawn.items():
        assert words in result["observation"]["withdrawn"].get(name, words)
    kept = ("verdict", "reason", "speedup", "knobs", "wall_s")
    note(
        program,
        "tuned",
        {
            "trials": len(measured),
            "loss": result["loss"]["verdict"],
            **{name: result[name] for name in kept},
        },
    )
