"""Rules for the watched window, on constructed evidence: rhythms, thresholds, attribution, and what
cannot be judged.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from cases import case, evidence, gpu_case, phases

from autotune.explain.records import Finding, Side
from autotune.findings import RULES, Case, NotJudgeable
from autotune.findings.stalls import slow_iterations, stalls
from autotune_trials.protocol.evidence import Calls, Evidence, Frames, Pause, Place

LINE = Place("/home/me/train.py", 17, "main", "total += loss.item()")
OTHER = Place("/home/me/train.py", 30, "main", "save(model)")
EVERY = tuple(range(60))


def ask(name: str, about: Case) -> list[Finding]:
    return next(rule for rule in RULES if rule.name == name).judge(about)


def calls(
    kind: str,
    each_s: float,
    device: str = "cpu",
    iterations: tuple[int, ...] = EVERY,
    place: Place = LINE,
    phase: str = "other",
) -> Calls:
    return Calls(
        kind,
        place,
        len(iterations),
        each_s * len(iterations),
        iterations,
        device=device,
        phase=phase,
        each_s=(each_s,) * len(iterations),
        lines=(place.line, place.line),
        detail=kind,
    )


def stalling(
    times: list[float], place: Place = OTHER, usual: float = 0.1, leaf: str = "train.save"
) -> Evidence:
    """Iterations of ``times`` seconds; time beyond the usual is spent at ``place``."""
    frames = tuple(
        Frames(i, "other", place, t - usual, leaf) for i, t in enumerate(times) if t > 1.2 * usual
    )
    return Evidence(times_s=tuple(times), frames=frames)


@pytest.mark.parametrize(
    ("wait_s", "idle", "cost_s"),
    [(0.02, 0.5, 0.02), (0.08, 0.03, 0.003), (0.08, 0.001, None), (0.001, 0.5, None)],
)
def test_a_wait_costs_no_more_than_the_device_stands_idle(
    wait_s: float, idle: float, cost_s: float | None
) -> None:
    about = gpu_case(
        seen=evidence(calls=(calls("item", wait_s, "cuda"),)), side=Side(idle_share=idle)
    )
    found = ask("device-sync", about)
    assert [f.cost_s for f in found] == ([] if cost_s is None else [pytest.approx(cost_s)])
    assert all(f.place == LINE and "train.py:17" in f.evidence for f in found)


@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        ("log-printing", evidence(calls=(calls("print", 0.02),))),
        ("gc-pauses", evidence(pauses=tuple(Pause(i, 0.2, 2, LINE, 1, 0.2) for i in range(6)))),
    ],
)
def test_what_the_host_does_costs_no_more_than_the_device_stands_idle(
    rule: str, seen: Evidence
) -> None:
    for idle, cost_s in ((0.5, 0.02), (0.03, 0.003)):
        (found,) = ask(rule, gpu_case(seen=seen, side=Side(idle_share=idle)))
        assert found.cost_s == pytest.approx(cost_s)
    assert not ask(rule, gpu_case(seen=seen, side=Side(idle_share=0.001)))
    assert ask(rule, case(seen=seen, side=Side(idle_share=0.001))), "on a CPU it all counts"
    with pytest.raises(NotJudgeable, match="does not show when the device was busy"):
        ask(rule, gpu_case(seen=seen))


def test_on_a_cpu_there_is_nothing_to_wait_for() -> None:
    with pytest.raises(NotJudgeable, match="no device to wait for"):
        ask("device-sync", case(seen=evidence(calls=(calls("item", 0.02),))))


def test_what_is_read_now_and_then_is_no_part_of_every_step() -> None:
    assert ask("tensor-readout", case(seen=evidence(calls=(calls("tolist", 0.05),))))
    assert not ask(
        "tensor-readout",
        case(seen=evidence(calls=(calls("tolist", 0.05, iterations=EVERY[::10]),))),
    )


@pytest.mark.parametrize(
    ("kind", "advised"),
    [("bool", "torch.isfinite(loss)"), ("int", "whole tensors"), ("item", "whole tensors")],
)
def test_only_a_check_is_advised_another_check(kind: str, advised: str) -> None:
    (found,) = ask("tensor-readout", case(seen=evidence(calls=(calls(kind, 0.05),))))
    assert ("isfinite" in found.advice) is (kind == "bool") and advised in found.advice


def test_an_array_that_has_to_be_converted_is_advised_its_tensors_type() -> None:
    made = replace(calls("tensor_from_array", 0.05), detail="float32[128, 4] of a numpy array")
    (found,) = ask("array-copies", case(seen=evidence(calls=(made,))))
    assert "from_numpy" in found.advice and "float64" in found.advice


def test_a_cheap_call_in_a_dear_statement_costs_the_statement() -> None:
    seen = evidence(
        calls=(calls("bool", 1e-5),),
        frames=tuple(Frames(i, "other", LINE, 0.02, "train.main") for i in EVERY),
    )
    (found,) = ask("tensor-readout", case(seen=seen))
    assert found.cost_s == pytest.approx(0.02)
    training = evidence(
        calls=(calls("bool", 1e-5),),
        frames=tuple(
            Frames(i, "other", LINE, 0.02, "torch.nn.modules.linear.Linear.forward") for i in EVERY
        ),
    )
    assert not ask("tensor-readout", case(seen=training))


def test_what_a_library_reads_costs_its_calls_and_not_the_training_it_runs() -> None:
    frames = tuple(Frames(i, "other", LINE, 0.02, "transformers.trainer.Trainer.go") for i in EVERY)
    for kind, rule in (("bool", "tensor-readout"), ("file_write", "file-writes")):
        for seconds, cost_s in ((1e-5, []), (0.005, [pytest.approx(0.005)])):
            made = replace(calls(kind, seconds), direct=False)
            seen = evidence(phases(other=0.021), calls=(made,), frames=frames)
            assert [f.cost_s for f in ask(rule, case(seen=seen))] == cost_s
            (work,) = ask("host-work", case(seen=seen))
            assert work.cost_s == pytest.approx(0.02 - seconds)


@pytest.mark.parametrize("kind", ["numpy", "item"])
def test_what_another_library_makes_of_a_tensor_is_no_readout(kind: str) -> None:
    frames = tuple(Frames(i, "other", LINE, 0.02, "sklearn.metrics.f1_score") for i in EVERY)
    seen = evidence(phases(other=0.021), calls=(calls(kind, 1e-5),), frames=frames)
    assert not ask("tensor-readout", case(seen=seen))
    (found,) = ask("host-work", case(seen=seen))
    assert found.cost_s == pytest.approx(0.02) and found.place == LINE


def test_of_several_files_written_at_a_line_the_costliest_is_named() -> None:
    small, large = calls("file_write", 0.01), calls("file_write", 0.02)
    seen = evidence(
        calls=(replace(small, detail="open('a', 'w')"), replace(large, detail="torch.save"))
    )
    (found,) = ask("file-writes", case(seen=seen))
    assert found.cost_s == pytest.approx(0.03)
    assert "torch.save and 1 more, 2 times an iteration" in found.evidence


def test_host_work_leaves_alone_what_other_rules_look_at() -> None:
    frames = tuple(Frames(i, "other", LINE, 0.02, "train.main") for i in EVERY)
    (found,) = ask("host-work", case(seen=evidence(phases(other=0.021), frames=frames)))
    assert found.cost_s == pytest.approx(0.02) and found.place == LINE
    assert not ask(
        "host-work",
        case(seen=evidence(phases(other=0.021), frames=frames, calls=(calls("print", 0.02),))),
    )


def test_updates_by_hand_are_no_host_work() -> None:
    frames = tuple(Frames(i, "other", LINE, 0.02, "train.main") for i in EVERY)
    seen = evidence(phases(other=0.021), frames=frames, optimizers=())
    with pytest.raises(NotJudgeable, match="updates its parameters itself"):
        ask("host-work", case(seen=seen))


def test_host_work_does_not_name_the_line_that_collections_interrupt() -> None:
    worked = replace(LINE, line=LINE.line + 20)
    frames = tuple(
        Frames(i, "other", place, s, "train.main")
        for i in EVERY
        for place, s in ((LINE, 0.03), (worked, 0.02))
    )
    pauses = tuple(Pause(i, 0.028, 1, LINE, 1, 0.028) for i in EVERY)
    (found,) = ask(
        "host-work", case(seen=evidence(phases(other=0.051), frames=frames, pauses=pauses))
    )
    assert found.place == worked and found.cost_s == pytest.approx(0.02)


@pytest.mark.parametrize(("period", "offset"), [(3, 0), (7, 2), (20, 13), (50, 49)])
def test_a_rhythm_is_found_among_noise(period: int, offset: int) -> None:
    dice = random.Random(period)
    times = [dice.gauss(0.1, 0.004) + (0.2 if i % period == offset else 0.0) for i in range(300)]
    times[11] += 0.15  # an outside disturbance
    (found,) = ask("periodic-stall", case(seen=stalling(times, usual=0.1)))
    assert found.evidence.startswith(f"Every {period} iterations") and found.place == OTHER
    assert found.cost_s == pytest.approx(0.2 / period, rel=0.1)


@pytest.mark.parametrize("scatter", [0.02, 0.15, 0.25])
def test_a_checkpoint_keeps_its_rhythm_however_much_iterations_scatter(scatter: float) -> None:
    dice = random.Random(7)
    saves = tuple(range(9, 150, 10))
    times = [max(0.04, dice.gauss(0.1, 0.1 * scatter)) + 0.1 * (i in saves) for i in range(150)]
    written = calls("file_write", 0.1, iterations=saves, place=OTHER)
    seen = Evidence(
        times_s=tuple(times),
        calls=(written,),
        frames=tuple(Frames(i, "other", OTHER, 0.1, "torch.serialization.save") for i in saves),
    )
    (found,) = ask("periodic-stall", case(seen=seen))
    assert found.evidence.startswith("Every 10 iterations") and found.place == OTHER
    assert found.cost_s == pytest.approx(0.01, rel=0.25)


def test_a_stall_beside_a_file_that_every_step_writes() -> None:
    times = [0.1 + 0.2 * (i % 20 == 4) for i in range(300)]
    written = calls("file_write", 0.05, iterations=tuple(range(300)), place=LINE)
    (found,) = ask("periodic-stall", case(seen=replace(stalling(times), calls=(written,))))
    assert found.evidence.startswith("Every 20 iterations") and found.place == OTHER


def test_two_rhythms_are_told_apart() -> None:
    times = [
        0.1 + (0.2 if i % 20 == 4 else 0.0) + (0.5 if i % 70 == 9 else 0.0) for i in range(400)
    ]
    assert {s.period for s in stalls(stalling(times))[0]} == {20, 70}


def test_slow_steps_without_a_rhythm_are_no_stall() -> None:
    slow = set(random.Random(1).sample(range(300), 15))
    times = [0.1 + (0.2 if i in slow else 0.0) for i in range(300)]
    assert not ask("periodic-stall", case(seen=stalling(times)))


def test_time_without_a_core_waiting_for_batches_and_collections_are_no_stalls() -> None:
    bursts = tuple(0.3 if i % 10 == 0 else 0.1 for i in range(300))
    extra = tuple(t - 0.1 for t in bursts)
    for cause in (
        {"queued_s": extra},
        {"phase_times_s": {"data": extra}},
        {"pauses": tuple(Pause(i, s, 2) for i, s in enumerate(extra) if s)},
    ):
        assert not ask("periodic-stall", case(seen=Evidence(times_s=bursts, **cause)))  # type: ignore[arg-type]


def test_a_checkpoint_between_epochs_is_a_stall_and_evaluation_is_not() -> None:
    ends = tuple(range(9, 300, 50))
    healthy = Evidence(times_s=(0.1,) * 300)
    assert not ask("periodic-stall", case(seen=healthy))
    saving = Evidence(
        times_s=(0.1,) * 300,
        calls=(calls("file_write", 1.5, iterations=ends, place=OTHER, phase="away"),),
    )
    (found,) = ask("periodic-stall", case(seen=saving))
    assert (
        found.place == OTHER
        and found.cost_s == pytest.approx(1.5 * 6 / 300)
        and "file_write" in found.evidence
    )


def test_what_is_copied_while_a_batch_is_made_is_counted_once() -> None:
    made = calls("tensor_from_array", 0.03, phase="data")
    again = calls("tensor_from_array", 0.01, place=OTHER)

    def costs(wait_s: float, *copies: Calls) -> list[object]:
        seen = case(seen=evidence(phases(data=wait_s), calls=copies))
        found = [*ask("loader-bound", seen), *ask("array-copies", seen)]
        return [finding.cost_s for finding in found]

    assert costs(0.04, made) == [pytest.approx(0.04), None]
    assert costs(0.04, made, again) == [pytest.approx(0.04), pytest.approx(0.01)]
    (told,) = ask("array-copies", case(seen=evidence(phases(data=0.04), calls=(made,))))
    assert "(22%), part of the wait for batches: train.py:17" in told.evidence
    assert costs(0.001, made) == [pytest.approx(0.03)], "no wait is reported"


def test_a_print_of_a_tensor_is_told_in_words() -> None:
    printed = replace(calls("print", 0.02), detail="a tensor")
    (found,) = ask("log-printing", case(seen=evidence(calls=(printed,))))
    assert "prints a tensor, once an iteration" in found.evidence


def test_what_half_of_the_iterations_do_is_no_exception() -> None:
    assert slow_iterations([0.1, 0.3] * 50) == {}


def test_a_full_collection_or_two_say_nothing_about_how_often() -> None:
    few, many = (tuple(Pause(i, 0.2, 2, LINE, 1, 0.2) for i in range(n)) for n in (2, 6))
    assert not ask("gc-pauses", case(seen=evidence(pauses=few)))
    (found,) = ask("gc-pauses", case(seen=evidence(pauses=many)))
    assert found.cost_s == pytest.approx(0.02) and found.place == LINE


def test_what_could_not_be_watched_is_not_judged() -> None:
    for rule, what in (
        ("array-copies", "copies"),
        ("log-printing", "calls"),
        ("host-work", "frames"),
        ("gc-pauses", "garbage collections"),
    ):
        seen = evidence(blind={what: "it broke"}, calls=(calls("tensor_from_array", 0.1),))
        with pytest.raises(NotJudgeable, match="it broke"):
            ask(rule, case(seen=seen))


def test_a_statement_is_charged_once() -> None:
    """Its calls share what is left of it: formatting and printing, or several checks."""
    frames = tuple(Frames(i, "other", LINE, 0.010, "train.main") for i in EVERY)

    def cost_s(rule: str, *made: Calls) -> float:
        found = ask(rule, case(seen=evidence(phases(other=0.011), frames=frames, calls=made)))
        return sum(finding.cost_s or 0.0 for finding in found)

    assert cost_s("log-printing", calls("format", 0.009), calls("print", 0.001)) == pytest.approx(
        0.010
    )
    read = (calls("item", 1e-5, "cpu"), calls("print", 0.0099))
    assert cost_s("log-printing", *read) == pytest.approx(0.0099)
    assert cost_s("tensor-readout", *read) == 0
    checks = (calls("bool", 1e-5, "cpu"), calls("item", 1e-5, "cpu"))
    assert cost_s("tensor-readout", *checks) == pytest.approx(0.010)
