"""The loop of the loss check: pairs are added at the rule's looks, and more steps are tried if they
may decide.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from autotune.executors.base import SessionFailed
from autotune.stages.converge import Asked, check_loss
from autotune_trials.protocol.messages import Record, Window

PRINT = {"optimizers": [{"name": "SGD", "groups": [{"lr": 0.1, "weight_decay": 0.01}]}]}


class Planted:
    """Runs whose candidate differs by a planted share, with scatter between seeds."""

    def __init__(
        self,
        *,
        share: float = 0.0,
        scatter: float = 0.002,
        most_steps: int = 10_000,
        slope: float = 0.0,
        noise: float = 0.05,
        begin: int = 0,
        **fields: Any,
    ) -> None:
        """``slope``: share of the loss by which it falls per step, if it hardly does; ``begin``:
        the first seed.
        """
        self.slope, self.noise, self.begin = slope, noise, begin
        self.share, self.scatter, self.most_steps, self.fields = share, scatter, most_steps, fields
        self.steps, self.reference, self.candidate = 240, dict[int, Record](), dict[int, Record]()
        self.ensured: list[int] = []
        self.stretched = 1
        self.repeated = 0
        self.gradient: tuple[float, float] | None = None
        self.configs: dict[str, dict[str, str]] = {"candidate": {}}
        self.fail_at: int | None = None

    def ensure(self, pairs: int) -> None:
        self.ensured.append(pairs)
        for seed in range(pairs):
            if seed == self.fail_at:
                raise SessionFailed("crash", "exit code 1")
            self.reference[seed], self.candidate[seed] = (
                self._run(seed, 0.0),
                self._run(seed, self.share, self.fields),
            )

    def repeat_reference(self, seed: int) -> Record:
        self.repeated += 1
        return self._run(seed, 0.0)

    def late(self, pairs: int) -> str:
        return ""

    def lengthen(self, steps: int) -> bool:
        if steps > self.most_steps:
            return False
        self.steps, self.reference, self.candidate = steps, {}, {}
        self.ensured.append(-steps)
        return True

    def float16_gradient(self) -> tuple[float, float] | None:
        return self.gradient

    def _loss(self, step: int) -> float:
        return 7 * (1 - self.slope * step) if self.slope else 0.4 + 2 * math.exp(-step / 80)

    def _run(self, seed: int, share: float, fields: Mapping[str, Any] | None = None) -> Record:
        batches = random.Random(self.begin + seed)
        offset = 0.0 if fields is None else self.scatter * (-1) ** seed
        losses = tuple(
            self._loss(i) * (1 + batches.gauss(0, self.noise)) * (1 + share + offset)
            for i in range(self.steps)
        )
        window = Window((0.01,) * self.steps, (8.0,) * self.steps, {})
        fields = {"fingerprint": PRINT, **(fields or {})}
        return Record(
            0,
            window,
            losses,
            tuple(8.0 * i for i in range(self.steps)),
            (1.0,) * 8,
            (0.1,) * 8,
            **fields,
        )


ROUNDING = Asked("rounding")


def test_two_pairs_are_enough_for_a_harmless_change() -> None:
    runs = Planted()
    verdict = check_loss(runs, ROUNDING)
    assert (verdict.verdict, verdict.pairs, verdict.steps) == ("unchanged", 2, 240)
    assert runs.ensured == [1, 2]


def test_a_planted_change_is_found() -> None:
    assert check_loss(Planted(share=0.05), ROUNDING).verdict == "changed"


@pytest.mark.parametrize(
    ("asked", "share", "scatter", "state", "repeated"),
    [
        ("exact", 0.0, 0.0, "unchanged", False),  # the same bits
        ("exact", 0.0, 0.002, "unchanged", True),  # is that the job, or the knob?
        ("rounding", 0.0, 0.002, "unchanged", False),
        ("rounding", 0.05, 0.002, "changed", True),
        ("random-stream", 0.0, 0.002, "unchanged", False),
        ("random-stream", 0.2, 0.002, "changed", False),
    ],
)
def test_the_job_is_repeated_only_if_that_may_matter(
    asked: str, share: float, scatter: float, state: str, repeated: bool
) -> None:
    runs = Planted(share=share, scatter=scatter)
    assert check_loss(runs, Asked(asked)).verdict == state
    assert bool(runs.repeated) is repeated


def test_a_setting_no_knob_declared_needs_no_training() -> None:
    other = {"optimizers": [{"name": "SGD", "groups": [{"lr": 0.1, "weight_decay": 0.1}]}]}
    runs = Planted(fingerprint=other)
    verdict = check_loss(runs, ROUNDING)
    assert verdict.verdict == "changed"
    assert "weight_decay: 0.01 in the baseline, 0.1 in the candidate" in verdict.reason
    assert runs.ensured == [1]
    assert (
        check_loss(Planted(fingerprint=other), Asked("rounding", declared={"weight_decay"})).verdict
        == "unchanged"
    )


@pytest.mark.parametrize(
    ("slope", "steps"), [(7e-5, 480), (3e-5, 960), (1e-5, 240)], ids=["nearly", "in time", "never"]
)
@pytest.mark.parametrize("share", [0.0, 0.05])
def test_a_loss_that_falls_slowly_gets_more_steps_if_they_may_show_something(
    slope: float, steps: int, share: float
) -> None:
    runs = Planted(slope=slope, share=share, scatter=0.0001, noise=0.001)
    verdict = check_loss(runs, Asked("rounding"))
    assert verdict.steps == steps
    assert [n for n in runs.ensured if n < 0] == ([-steps] if steps > 240 else [])
    expected = "no-proof" if steps == 240 else "changed" if share else "unchanged"
    assert verdict.verdict == expected, verdict.reason


def test_a_loss_that_is_only_noise_gets_no_more_steps() -> None:
    asked = [Planted(slope=1e-9, noise=0.05, scatter=0.0001, begin=n) for n in range(0, 400, 20)]
    assert all(check_loss(runs, Asked("rounding")).verdict == "no-proof" for runs in asked)
    assert sum(any(n < 0 for n in runs.ensured) for runs in asked) <= 6


def test_a_longer_run_that_fails_leaves_no_proof_what_it_was() -> None:
    runs = Planted(slope=3e-5, scatter=0.0001, noise=0.001)
    lengthen = runs.lengthen

    def then_fails(steps: int) -> bool:
        runs.fail_at = 1
        return lengthen(steps)

    runs.lengthen = then_fails  # type: ignore[method-assign]
    verdict = check_loss(runs, Asked("rounding"))
    assert verdict.verdict == "no-proof" and "a further run failed" in verdict.reason


def test_a_part_is_judged_over_the_steps_of_the_whole() -> None:
    runs = Planted(slope=3e-5, share=0.05, scatter=0.0001, noise=0.001)
    assert check_loss(runs, Asked("rounding")).verdict == "changed" and runs.stretched == 4
    part = check_loss(runs, Asked("rounding"), most_pairs=3)
    assert (part.verdict, part.steps) == ("changed", 960)


def test_a_slow_loss_without_time_for_more_steps_proves_nothing() -> None:
    runs = Planted(slope=3e-5, most_steps=500, noise=0.001)
    assert check_loss(runs, Asked("rounding")).verdict == "no-proof"


def test_what_stays_unclear_is_tried_once_more_with_twice_the_steps() -> None:
    runs = Planted(share=0.010, scatter=0.006)
    verdict = check_loss(runs, ROUNDING)
    assert -480 in runs.ensured
    assert runs.ensured.index(-480) == len([n for n in (1, 2, 3, 4, 6, 8) if n in runs.ensured])
    assert verdict.steps == 480


def test_a_job_without_more_steps_stays_undecided() -> None:
    runs = Planted(share=0.010, scatter=0.006, most_steps=240)
    verdict = check_loss(runs, ROUNDING)
    assert verdict.verdict == "undecided"
    assert verdict.pairs == 8
    assert "convergence.steps" in verdict.reason


def test_a_quick_look_adds_no_pairs_beyond_those_there_are() -> None:
    runs = Planted(share=0.010, scatter=0.006)
    verdict = check_loss(runs, ROUNDING, most_pairs=4)
    assert (verdict.verdict, max(runs.ensured)) == ("undecided", 4)


def test_a_run_that_fails_leaves_it_undecided() -> None:
    runs = Planted(share=0.010, scatter=0.006)
    runs.fail_at = 3
    verdict = check_loss(runs, ROUNDING)
    assert verdict.verdict == "undecided"
    assert "exit code 1" in verdict.reason


@pytest.mark.parametrize(
    ("gradient", "state"),
    [((0.002, 0.01), "unchanged"), ((0.05, 0.01), "changed"), (None, "unchanged")],
)
def test_float16s_first_gradient_may_be_no_worse_than_bfloat16s(
    gradient: tuple[float, float] | None, state: str
) -> None:
    runs = Planted()
    runs.gradient = gradient
    verdict = check_loss(runs, ROUNDING)
    assert verdict.verdict == state
    assert ("small gradients underflow" in verdict.reason) == (state == "changed")


@pytest.mark.parametrize(
    ("dtype", "asked", "state"),
    [
        ("bfloat16", "rounding", "unchanged"),
        ("float16", "rounding", "undecided"),
        ("float16", "random-stream", "undecided"),
    ],
)
def test_gradients_that_could_not_be_compared_are_reported_and_rule_out_float16(
    dtype: str, asked: str, state: str
) -> None:
    runs = Planted(notes={"probe": "RuntimeError: no such kernel"})
    runs.configs["candidate"]["amp_dtype"] = dtype
    verdict = check_loss(runs, Asked(asked))
    assert verdict.verdict == state
    assert "not compared: RuntimeError: no such kernel" in verdict.reason


def test_of_the_same_bits_nothing_needs_to_be_probed() -> None:
    runs = Planted(scatter=0.0, notes={"probe": "RuntimeError: no such kernel"})
    verdict = check_loss(runs, Asked("exact"))
    assert verdict.verdict == "unchanged" and "not compared" not in verdict.reason
