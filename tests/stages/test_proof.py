"""Adopted is only what is proven faster with an unchanged loss; one bad knob does not cost the
others.
"""

from __future__ import annotations

import errno
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replay import Loss
from replayed import CHANGES, SPACE, Machine, job, run, table

from autotune import tuner
from autotune.errors import BaselineError
from autotune.executors.base import FixedRun, SessionFailed
from autotune.report.text.story import evidence
from autotune.results import KnobGain, LossState, LossVerdict, Trial, TrialState
from autotune.stages.prove import _milder, _why_nothing
from autotune.stages.search import Finalist, Searched
from autotune.verdict.iterations import first_counted, part_of
from autotune.verdict.speedup import LOOKS
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Record, Window

HARMLESS = Loss()


def test_everything_harmless_is_adopted_together(tmp_path: Path) -> None:
    result = run(tmp_path, Machine(table(HARMLESS)))
    assert result.verdict == "tuned"
    assert set(result.knobs) == {"num_workers", "amp_dtype", "optimizer_impl"}
    assert result.loss.verdict == "unchanged"
    assert result.loss.config == result.knobs
    truth = 1 / (0.7 * 0.6 * 0.9)
    assert result.speedup.low < truth < result.speedup.high


def test_a_broken_precision_does_not_cost_the_loaders_gain(tmp_path: Path) -> None:
    result = run(tmp_path, Machine(table(CHANGES)))
    assert result.verdict == "tuned"
    assert set(result.knobs) == {"num_workers", "optimizer_impl"}
    assert result.loss.verdict == "unchanged"
    (rejected,) = result.rejected
    assert "amp_dtype" in rejected.config
    assert rejected.reason.startswith("loss changed because of amp_dtype: ")


def test_two_culprits_are_both_found(tmp_path: Path) -> None:
    both = Loss(changed_by={"amp_dtype": {"bfloat16": 0.2}, "optimizer_impl": {"fused": -0.15}})
    result = run(tmp_path, Machine(table(both)))
    assert dict(result.knobs) == {"num_workers": 2}
    assert "amp_dtype (and also optimizer_impl)" in result.rejected[0].reason or (
        "optimizer_impl (and also amp_dtype)" in result.rejected[0].reason
    )


def test_a_knob_that_calls_itself_exact_is_not_believed(tmp_path: Path) -> None:
    lying = Loss(changed_by={"num_workers": {"2": 0.2}})
    result = run(tmp_path, Machine(table(lying)))
    assert set(result.knobs) == {"amp_dtype", "optimizer_impl"}
    assert "because of num_workers" in result.rejected[0].reason


def test_the_only_gain_changes_the_loss(tmp_path: Path) -> None:
    result = run(tmp_path, Machine(table(CHANGES, factors={"amp_dtype": {"bfloat16": 0.6}})))
    assert result.verdict == "keep-baseline"
    assert result.knobs == {}
    assert result.speedup.estimate == 1.0
    assert result.loss.verdict == "changed"


def test_where_nothing_matters_the_baseline_is_kept(tmp_path: Path) -> None:
    machine = Machine(table(HARMLESS, factors={}, block_noise=0.01))
    result = run(tmp_path, machine)
    assert result.verdict == "keep-baseline"
    assert result.reason


@pytest.mark.parametrize("seed", range(4))
def test_equal_configurations_on_a_noisy_machine_are_not_adopted(tmp_path: Path, seed: int) -> None:
    result = run(tmp_path, Machine(table(HARMLESS, factors={}, block_noise=0.08), seed=seed))
    assert result.verdict == "keep-baseline"


@pytest.mark.slow
def test_noise_that_hides_the_gain_is_said_and_what_to_do(tmp_path: Path) -> None:
    losses = table(HARMLESS, factors={"amp_dtype": {"bfloat16": 0.8}}, block_noise=0.4)
    spec = job(tmp_path, "{amp_dtype: [bfloat16]}")
    kept = []
    for seed in range(4):
        result = run(tmp_path / str(seed), Machine(losses, seed=seed), spec)
        # (benchmarks/verdicts tells how often those that are adopted are too good)
        if result.confirmation is not None and result.confirmation.too_noisy:
            kept.append(result)
    assert kept
    for result in kept:
        assert result.confirmation.pairs in LOOKS
        assert (
            "Stop other work on this machine, or allow more time (budget.minutes)" in result.reason
        )


def time_is_up_in(label: str, machine: Machine, elapsed_s: float = 1e6) -> Callable[[float], float]:
    """The budget ends during the runs with this label."""
    return lambda before: (
        elapsed_s if any(r.label.startswith(label) for r in machine.requests) else before
    )


def test_a_start_that_is_not_paid_back_is_the_reason_to_keep(tmp_path: Path) -> None:
    config = {"compile_mode": "default"}
    gain = KnobGain("compile_mode", "default", None, False, "", 60.0, 30_000)
    trial = Trial(0, config, TrialState.COMPLETE, log_ratio=-0.11)
    context: Any = SimpleNamespace(
        spec=SimpleNamespace(objective="throughput", planned_steps=20_000)
    )
    observation: Any = SimpleNamespace(domains={"compile_mode": ("off", "default")})
    for gains, words in (
        ((gain,), "paid back only after 30000 steps"),
        ((), "clearly more than 2%"),
    ):
        assert words in _why_nothing(context, observation, Searched((trial,), (), gains))


def test_why_nothing_could_be_tried_is_told_if_few_knobs_were_asked_for() -> None:
    context: Any = SimpleNamespace(spec=SimpleNamespace(objective="throughput"))
    for count, told in ((1, True), (9, False)):
        withdrawn = {f"flag{n}": "its samples cannot be counted" for n in range(count)}
        observation: Any = SimpleNamespace(domains={}, withdrawn=withdrawn)
        reason = _why_nothing(context, observation, Searched((), (), ()))
        assert ("flag0: its samples cannot be counted" in reason) is told


NOISE = 0.22  # five pairs prove nothing, a few more may


def test_a_proof_may_take_as_long_as_was_announced(tmp_path: Path) -> None:
    """It may exceed the budget of one minute by the time that was announced before the search."""
    spec = job(tmp_path, "{amp_dtype: [bfloat16]}", "budget: {minutes: 1}\n")
    for elapsed_s, longer in ((61.0, True), (1e6, False)):
        factors = {"amp_dtype": {"bfloat16": 0.8}}
        machine = Machine(table(HARMLESS, factors=factors, block_noise=NOISE), seed=1)
        clock = time_is_up_in("confirm1", machine, elapsed_s)
        result = run(tmp_path / f"{elapsed_s}", machine, spec, clock)
        assert result.confirmation is not None and (result.confirmation.pairs > 5) == longer


def test_when_the_time_is_up_the_first_look_is_the_last_and_the_reason_says_so(
    tmp_path: Path,
) -> None:
    machine = Machine(
        table(HARMLESS, factors={"amp_dtype": {"bfloat16": 0.8}}, block_noise=NOISE), seed=1
    )
    spec = job(tmp_path, "{amp_dtype: [bfloat16]}", "budget: {minutes: 7}\n")
    result = run(tmp_path, machine, spec, time_is_up_in("confirm1", machine))
    assert result.verdict == "keep-baseline"
    assert result.confirmation is not None and result.confirmation.pairs == 5
    assert {r.label for r in machine.confirmed()} == {
        f"confirm1-{side}-{n}" for side in ("reference", "candidate") for n in range(5)
    }
    assert "5 pairs" in result.reason
    assert "allow more time (budget.minutes)" in result.reason


def test_further_looks_are_taken_only_where_they_end_within_the_budget_and_a_tenth(
    tmp_path: Path,
) -> None:
    losses = table(
        HARMLESS, factors={"amp_dtype": {"bfloat16": 0.8}}, block_noise=NOISE, startup_s=30.0
    )
    # a pair takes at least 68 s; traces: none, so there is no explanation
    spec = job(tmp_path, "{amp_dtype: [bfloat16]}", "budget: {minutes: 10}\n")
    for left_s, most in ((30.0, 5), (100.0, 7)):
        machine = Machine(losses, seed=1)

        def clock(before: float, left_s: float = left_s, machine: Machine = machine) -> float:
            proving = len({r.label for r in machine.confirmed()})
            return 600.0 - left_s + 34.0 * max(proving - 10, 0) if proving >= 10 else before

        result = run(tmp_path / str(most), machine, spec, clock)
        assert result.confirmation is not None and result.confirmation.pairs == most


class FirstEpochs(Machine):
    """The candidate is 1.25 times as fast in the first epoch, and gains nothing afterwards."""

    def __init__(self, epoch: int) -> None:
        super().__init__(table(HARMLESS, factors={"optimizer_impl": {"fused": 0.8}}))
        self.epoch, self.alter = epoch, self._in_epochs

    def window(self, times_s: Sequence[float], samples: float) -> Window:
        ends = tuple(range(self.epoch, len(times_s), self.epoch))
        return replace(
            super().window(times_s, samples),
            turnovers_s=(0.0,) * len(ends),
            turnovers_at=ends,
            epoch_iterations=self.epoch,
        )

    def _in_epochs(self, request: FixedRun, record: Record) -> Record:
        slow = 1.25 if request.config else 1.0  # undoes the table's factor of 0.8
        times = record.window.times_s
        after = tuple(t * slow for t in times[self.epoch :])
        return replace(record, window=replace(record.window, times_s=times[: self.epoch] + after))


def test_a_gain_of_the_first_epoch_alone_is_none(tmp_path: Path) -> None:
    space = job(tmp_path, "{optimizer_impl: [fused]}")
    machine = FirstEpochs(300)
    result = run(tmp_path, machine, space)
    assert result.verdict == "keep-baseline"
    made = [r for r in machine.requests if r.label.startswith("confirm1")]
    assert len(made) <= 12, "at most the first run of the comparison is made again, for its length"


def test_where_the_second_epoch_is_too_far_the_result_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, FirstEpochs(1500), job(tmp_path, "{optimizer_impl: [fused]}"))
    assert result.verdict == "tuned" and result.confirmation is not None
    assert result.confirmation.first_epoch_only
    assert "Not every run reached the second epoch" in " ".join(evidence(result))
    near = run(tmp_path / "near", Machine(table(HARMLESS)))
    assert near.verdict == "tuned" and "second epoch" not in " ".join(evidence(near))


@pytest.mark.parametrize(("minutes", "foretold"), [(0.1, True), (60, False)])
def test_a_budget_too_small_for_one_proof_is_said_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], minutes: float, foretold: bool
) -> None:
    spec = job(tmp_path, "{amp_dtype: [bfloat16]}", f"budget: {{minutes: {minutes}}}\n")
    run(tmp_path, Machine(table(HARMLESS)), spec, shown="auto")
    said = " ".join(capsys.readouterr().out.split())
    assert ("confirming one finalist takes about" in said) is foretold
    assert (f"budget.minutes ({minutes})" in said) is foretold


def test_a_proof_that_was_planned_for_few_pairs_is_not_taken_up_again_with_more_minutes(
    tmp_path: Path,
) -> None:
    """Its share of the risk is spent; a new run has its own."""
    machine = Machine(table(HARMLESS, factors={"amp_dtype": {"bfloat16": 0.8}}, block_noise=0.3))
    spec = job(tmp_path, "{amp_dtype: [bfloat16]}")
    first = run(tmp_path, machine, spec, time_is_up_in("confirm1", machine))
    again = Machine(table(HARMLESS, factors={"amp_dtype": {"bfloat16": 0.8}}, block_noise=0.3))
    assert run(tmp_path, again, spec, lambda before: 0.0).reason == first.reason
    assert again.requests == []
    longer = replace(spec, budget=replace(spec.budget, minutes=30.0))
    assert run(tmp_path, again, longer, lambda before: 0.0).reason == first.reason
    assert not again.confirmed()


def test_a_culprit_is_looked_for_in_untimed_runs_and_only_the_first_tried_when_the_time_is_up(
    tmp_path: Path,
) -> None:
    """The one most likely to change the loss: without it, the others may be kept."""
    lying = {"num_workers": {"2": 0.2}}
    both = {**lying, "amp_dtype": {"bfloat16": 0.2}}
    spec = job(tmp_path / "job", extra="budget: {minutes: 5}\n")
    # 31 s left: enough for a pair, but not for a run of each
    for case, (changed, elapsed_s) in enumerate(((lying, 1e6), (lying, 299.0), (both, 1e6))):
        machine = Machine(table(Loss(changed_by=changed)))
        clock = time_is_up_in("confirm1", machine, elapsed_s)
        result = run(tmp_path / f"{case}", machine, spec, clock)
        assert result.verdict == "keep-baseline"
        alone = [r for r in machine.requests if "-only-" in r.label]
        assert {name for r in alone for name in r.config} == {"amp_dtype"}
        assert {r.min_seconds for r in alone} == {0.0}


def test_no_further_finalist_is_begun_when_the_time_is_up_but_a_proven_one_is_seen_through(
    tmp_path: Path,
) -> None:
    machine = Machine(table(CHANGES))
    result = run(tmp_path, machine, clock=time_is_up_in("confirm1", machine))
    assert set(result.knobs) == {"num_workers", "optimizer_impl"}, (
        "what was proven faster is tried without the knob that changed the loss"
    )
    ten_minutes = job(tmp_path / "job", extra="budget: {minutes: 10}\n")
    explained = replace(ten_minutes, traces="finalists")
    # the budget is used up, or five pairs do not fit, or only without the explanation after them
    for elapsed_s, spec in ((1e6, ten_minutes), (599.0, ten_minutes), (550.0, explained)):
        lost = Machine(table(HARMLESS), fails_at({"confirm1-candidate-2": 2}))
        clock = time_is_up_in("confirm1", lost, elapsed_s)
        result = run(tmp_path / f"lost{elapsed_s}", lost, spec, clock)
        assert result.verdict == "keep-baseline"
        assert "there was no time for another finalist" in result.reason
        assert [r.reason.split(":")[0] for r in result.rejected] == [
            "not proven faster",
            "not tried in fresh processes",
        ]


def test_a_finalist_that_another_one_came_down_to_is_not_told_as_left_out(tmp_path: Path) -> None:
    """The second finalist is a single knob of the first, whose other knobs are reverted."""
    losses = table(HARMLESS, factors={"amp_dtype": {"bfloat16": 0.9}}, block_noise=0.02)
    for seed in range(4):
        machine = Machine(losses, fails_at({"confirm1-candidate-2": 2}), seed=seed)
        result = run(tmp_path / str(seed), machine, clock=time_is_up_in("confirm1", machine))
        told = [json.dumps(r.config, sort_keys=True) for r in result.rejected]
        assert len(set(told)) == len(told), result.rejected


def test_a_knob_that_changed_the_loss_is_not_proven_with_other_knobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finalists = (
        Finalist({"amp_dtype": "bfloat16", "num_workers": 2}),
        Finalist({"amp_dtype": "bfloat16"}),
    )
    monkeypatch.setattr(tuner, "search", lambda *_, **__: Searched((), finalists))
    machine = Machine(table(CHANGES, factors={"num_workers": {"2": 1.0}}))
    result = run(tmp_path, machine)
    assert result.verdict == "keep-baseline"
    assert not [r for r in machine.requests if r.label.startswith("confirm3")]


def test_a_loss_that_does_not_move_proves_nothing_and_stops_the_search_for_variants(
    tmp_path: Path,
) -> None:
    machine = Machine(table(Loss(first=1.0, last=1.0, noise=0.0)))
    result = run(tmp_path, machine)
    assert result.verdict == "keep-baseline"
    assert result.loss.verdict == "no-proof"
    assert "stays at 1" in result.reason
    assert not [r for r in machine.requests if "-only-" in r.label], "no culprit is looked for"


def test_a_batch_size_that_cannot_be_judged_does_not_cost_the_other_knobs(tmp_path: Path) -> None:
    """Another batch size needs longer runs than a rounding knob."""
    spec = job(tmp_path, "{batch_size: [512], amp_dtype: [bfloat16], num_workers: [2]}")
    config: Config = {"batch_size": 512, "amp_dtype": "bfloat16", "num_workers": 2}
    no_proof = LossVerdict(LossState.NO_PROOF, "the runs have 240 and 15 steps", 5, 15)
    context: Any = SimpleNamespace(spec=spec)
    assert _milder(context, config, no_proof, {}) == [
        {"amp_dtype": "bfloat16", "num_workers": 2},
        {"num_workers": 2},
    ]


def test_in_a_chaotic_job_only_exact_knobs_are_tried_again(tmp_path: Path) -> None:
    spec = job(tmp_path, "{amp_dtype: [bfloat16], optimizer_impl: [fused], num_workers: [2]}")
    config: Config = {"amp_dtype": "bfloat16", "optimizer_impl": "fused", "num_workers": 2}
    chaotic = LossVerdict(LossState.UNDECIDED, "", 5, 240, chaotic=True)
    context: Any = SimpleNamespace(spec=spec)
    assert _milder(context, config, chaotic, {}) == [{"num_workers": 2}]


def fails_at(labels: dict[str, int], kind: str = "crash") -> Any:
    """Fail runs whose label starts with a key of ``labels``, as many times as its value."""
    left = dict(labels)

    def alter(request: FixedRun, record: Record) -> Record:
        for label in left:
            if request.label.startswith(label) and left[label]:
                left[label] -= 1
                raise SessionFailed(kind, "exit code 1")
        return record

    return alter


@pytest.mark.parametrize(
    ("labels", "kind"),
    [({"confirm1-candidate-2": 2}, "killed"), ({"confirm1-reference-3": 1}, "crash")],
)
def test_what_the_machine_does_to_a_run_is_done_again(
    tmp_path: Path, labels: dict[str, int], kind: str
) -> None:
    machine = Machine(table(HARMLESS), fails_at(labels, kind))
    assert set(run(tmp_path, machine).knobs) == {"num_workers", "amp_dtype", "optimizer_impl"}


@pytest.mark.parametrize("kills", [2, 99])
def test_a_run_that_lost_a_worker_is_made_again(tmp_path: Path, kills: int) -> None:
    """The job goes on with its own settings: such a run says nothing about the candidate."""
    left = [kills]

    def lost(request: FixedRun, record: Record) -> Record:
        if not request.label.startswith("confirm1-candidate-2") or not left[0]:
            return record
        left[0] -= 1
        why = "loader settings num_workers=2: RuntimeError: a DataLoader worker is killed by signal"
        return replace(record, no_effect={"num_workers": f"{why}: Killed"})

    machine = Machine(table(HARMLESS), lost)
    result = run(tmp_path, machine)
    made = [r for r in machine.requests if r.label == "confirm1-candidate-2"]
    assert len(made) == 3  # three times in a row is the configuration's doing
    if kills == 2:
        assert set(result.knobs) == {"num_workers", "amp_dtype", "optimizer_impl"}
    else:
        assert "was killed 3 times" in result.rejected[0].reason


@pytest.mark.parametrize("kind", ["crash", "hang", "oom"])
def test_what_the_job_does_under_a_configuration_is_the_configurations(
    tmp_path: Path, kind: str
) -> None:
    machine = Machine(table(HARMLESS), fails_at({"confirm1-candidate-2": 1}, kind))
    result = run(tmp_path, machine)
    assert "it failed in a fresh process" in result.rejected[0].reason
    assert len([r for r in machine.requests if r.label == "confirm1-candidate-2"]) == 1
    assert result.rejected[0].config != result.knobs


def test_the_second_epoch_counts_however_few_iterations_its_warm_up_leaves(tmp_path: Path) -> None:
    """Seen with a U-Net: an epoch of 54 steps and, within the run's limit, 40 of the next one."""

    def short(request: FixedRun, record: Record) -> Record:
        if not request.label.startswith("confirm"):
            return record
        window = part_of(record.window, 0, 94)
        slow = [t * (1.5 if 54 <= at < 70 else 1.0) for at, t in enumerate(window.times_s)]
        window = replace(
            window,
            times_s=tuple(slow),
            turnovers_s=(0.01,),
            turnovers_at=(54,),
            epoch_iterations=54,
        )
        assert 94 - first_counted(window) < 30
        losses = record.losses[:94]
        return replace(record, window=window, losses=losses, ended_early=True)

    result = run(tmp_path, Machine(table(HARMLESS), short))
    assert result.verdict == "tuned", result.reason


def test_a_baseline_that_fails_twice_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="exit code 1"):
        run(tmp_path, Machine(table(HARMLESS), fails_at({"confirm1-reference-2": 2})))


def test_a_candidate_too_short_to_time_is_its_own_failure(tmp_path: Path) -> None:
    """A batch size may leave the job with few steps: that ends the finalist, not the run."""

    def short(request: FixedRun, record: Record) -> Record:
        if not request.label.startswith("confirm") or "num_workers" not in request.config:
            return record
        window = replace(
            record.window,
            times_s=record.window.times_s[:24],
            samples=record.window.samples[:24],
            data_s=record.window.data_s[:24],
        )
        return replace(record, window=window, ended_early=True)

    result = run(tmp_path, Machine(table(HARMLESS), short))
    assert "24 optimizer steps" in result.rejected[0].reason
    assert "num_workers" not in result.knobs


def test_disturbed_windows_are_measured_again_and_counted(tmp_path: Path) -> None:
    disturbed: set[str] = set()

    def busy_once(request: FixedRun, record: Record) -> Record:
        if (
            request.label in ("confirm1-candidate-2", "confirm1-reference-4")
            and request.label not in disturbed
        ):
            disturbed.add(request.label)
            return replace(record, window=replace(record.window, foreign_load=1.5))
        return record

    machine = Machine(table(HARMLESS), busy_once)
    result = run(tmp_path, machine)
    assert result.disturbed == 2
    assert "1.5" in result.disturbed_why
    labels = [r.label for r in machine.confirmed()]
    assert labels.count("confirm1-candidate-2") == labels.count("confirm1-reference-4") == 2
    assert labels.count("confirm1-candidate-3") == 1


def test_load_that_stays_is_the_usual_load(tmp_path: Path) -> None:
    """On a shared machine every run would otherwise be made three times."""

    def shared(request: FixedRun, record: Record) -> Record:
        return replace(record, window=replace(record.window, foreign_load=0.6))

    machine = Machine(table(HARMLESS), shared)
    result = run(tmp_path, machine)
    labels = [r.label for r in machine.confirmed() if not r.label.endswith("-again")]
    again = {label for label in labels if labels.count(label) > 1}
    assert again == {"confirm1-reference-0", "confirm1-candidate-0"}
    assert result.disturbed == 2, "and not the first run, which is compared with no other"


def test_a_window_with_little_left_after_warm_up_is_made_longer(tmp_path: Path) -> None:
    def slow_start(request: FixedRun, record: Record) -> Record:
        times = list(record.window.times_s)
        for i in range(min(220, len(times) - 20)):
            times[i] *= 3.0
        return replace(record, window=replace(record.window, times_s=tuple(times)))

    machine = Machine(table(HARMLESS, factors={"amp_dtype": {"bfloat16": 0.6}}), slow_start)
    run(tmp_path, machine, job(tmp_path, "{amp_dtype: [bfloat16]}"))
    asked = [r.min_seconds for r in machine.confirmed() if not r.label.endswith("-again")]
    assert asked[0] < asked[-1], "later runs are longer from the start"
    assert asked[1:] == sorted(asked[1:])


def test_a_running_job_is_asked_for_more_instead_of_being_started_again(tmp_path: Path) -> None:
    class Patient(Machine):
        """Like the local executor: a window that is too short is continued."""

        goes_on = True

        def run_fixed(self, request: FixedRun) -> Record:
            record = super().run_fixed(request)
            steps = request.more(record) if request.more is not None else 0
            return super().run_fixed(replace(request, steps=steps)) if steps else record

    def slow_start(request: FixedRun, record: Record) -> Record:
        times = [t * (3.0 if i < 180 else 1.0) for i, t in enumerate(record.window.times_s)]
        return replace(record, window=replace(record.window, times_s=tuple(times)))

    machine = Patient(table(HARMLESS, factors={"amp_dtype": {"bfloat16": 0.6}}), slow_start)
    assert run(tmp_path, machine, job(tmp_path, "{amp_dtype: [bfloat16]}")).knobs == {
        "amp_dtype": "bfloat16"
    }
    first, longer, *later = [r for r in machine.confirmed() if not r.label.endswith("-again")]
    assert (first.label, first.steps) == (longer.label, 240) and longer.steps > 240
    assert {r.min_seconds for r in later} == {first.min_seconds}, "each is as long as it must be"


def with_metric(values: dict[str, float]) -> Any:
    """Every run reports val_acc four times; ``values`` are factors of some knobs."""

    def alter(request: FixedRun, record: Record) -> Record:
        factor = 1.0
        for knob in request.config:
            factor *= values.get(knob, 1.0)
        course = (0.3, 0.6, 0.7, 0.75)
        spread = 1 + 0.002 * ((request.seed * 7) % 5 - 2)
        return replace(record, metrics={"val_acc": tuple(factor * spread * x for x in course)})

    return alter


def test_a_metric_of_the_jobs_own_is_checked_too(tmp_path: Path) -> None:
    result = run(tmp_path, Machine(table(HARMLESS), with_metric({"amp_dtype": 0.9})))
    assert set(result.knobs) == {"num_workers", "optimizer_impl"}
    assert "val_acc converges differently" in result.rejected[0].reason
    (metric,) = result.loss.metrics
    assert (metric.name, metric.verdict) == ("val_acc", "unchanged")


def test_a_metric_that_was_asked_for_and_never_reported_is_not_passed_over(tmp_path: Path) -> None:
    spec = job(tmp_path, SPACE, "convergence: {metrics: {val_acc: }}\n")
    result = run(tmp_path, Machine(table(HARMLESS)), spec)
    assert result.verdict == "keep-baseline"
    assert "val_acc cannot be judged" in result.reason
    assert "raise convergence.steps" in result.reason


def test_a_verdict_stands_even_if_it_cannot_be_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.tuner.explain", lambda *_: 1 // 0)
    result = run(tmp_path, Machine(table(HARMLESS)))
    assert result.verdict == "tuned"
    (note,) = result.explanation.notes
    assert "could not be explained (ZeroDivisionError" in note
    assert "ZeroDivisionError" in (tmp_path / "run" / "explain-error.txt").read_text()


def test_a_full_disk_is_no_failure_to_explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops the run, and once there is space, the same command explains the result."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "trace-0.json.gz")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("autotune.tuner.explain", full)
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path, Machine(table(HARMLESS)))
    assert not any(
        "could not be explained" in note
        for note in run(tmp_path, Machine(table(HARMLESS))).explanation.notes
    )
    assert not (tmp_path / "run" / "explain-error.txt").exists()


def test_a_resumed_run_measures_nothing_twice(tmp_path: Path) -> None:
    first = run(tmp_path, Machine(table(CHANGES)))
    machine = Machine(table(CHANGES))
    again = run(tmp_path, machine)
    assert machine.requests == []
    assert again.knobs == first.knobs
    assert again.speedup == first.speedup
    assert again.loss == first.loss
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    ]
    keys = [(line["kind"], line["key"]) for line in lines if line["kind"] == "run"]
    assert len(keys) == len(set(keys))


def test_the_unchanged_job_is_no_finalist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left of a single knob that changes the loss."""
    changed = table(Loss(changed_by={"amp_dtype": {"bfloat16": 0.2}}))
    result = run(tmp_path, Machine(changed), job(tmp_path, "{amp_dtype: [bfloat16]}"), shown="auto")
    said = capsys.readouterr().out
    assert not result.knobs and "loss changed for amp_dtype=bfloat16" in said
    assert "finalist: baseline" not in said


def test_a_larger_batch_is_compared_over_as_many_samples(tmp_path: Path) -> None:
    """Eight times the batch: not eight times the training time."""

    def by_samples(request: FixedRun, record: Record) -> Record:
        noise = random.Random(request.seed)
        falling = (math.exp(-seen / 32 / 80) for seen in record.samples_before)
        losses = tuple(0.4 + 1.9 * rest + noise.gauss(0, 0.02) for rest in falling)
        return replace(record, losses=losses)

    speeds = {"batch_size": {"256": 0.7}}
    machine = Machine(
        table(Loss(), factors=speeds, cost_s=0.02 / 32, epoch_iterations=10000), by_samples
    )
    made: dict[int, set[int]] = {0: set(), 256: set()}
    fixed = machine.run_fixed

    def noted(request: FixedRun) -> Record:
        record = fixed(request)
        made[int(str(request.config.get("batch_size", 0)))].add(len(record.losses))
        return record

    machine.run_fixed = noted  # type: ignore[method-assign]
    result = run(tmp_path, machine, job(tmp_path, "{batch_size: [256]}"))
    assert dict(result.knobs) == {"batch_size": 256} and result.loss.verdict == "unchanged"
    assert min(made[0]) >= 240 and max(made[256]) <= 120


def test_a_resumed_run_does_not_forget_a_failure(tmp_path: Path) -> None:
    first = run(tmp_path, Machine(table(HARMLESS), fails_at({"confirm1-candidate-2": 2})))
    journal = tmp_path / "run" / "journal.jsonl"
    kept = [e for e in journal.read_text().splitlines() if json.loads(e)["kind"] != "finished"]
    journal.write_text("\n".join(kept) + "\n")
    well = Machine(table(HARMLESS))
    again = run(tmp_path, well)
    assert well.requests == [] and again.knobs == first.knobs


def test_one_variant_is_seen_through_when_the_time_is_up(tmp_path: Path) -> None:
    both = Loss(changed_by={"amp_dtype": {"bfloat16": 0.2}, "optimizer_impl": {"fused": 0.2}})
    machine = Machine(table(both))
    run(tmp_path, machine, clock=time_is_up_in("confirm1", machine))
    begun = {request.label.split("-")[0] for request in machine.confirmed()}
    assert begun == {"confirm1", "confirm2"}


def test_a_resumed_search_neither_announces_nor_gets_more_time(tmp_path: Path) -> None:
    spec = job(tmp_path, "{amp_dtype: [bfloat16]}", "budget: {minutes: 10}\n")
    factors = {"amp_dtype": {"bfloat16": 0.8}}
    run(tmp_path, Machine(table(HARMLESS, factors=factors)), spec)
    journal = tmp_path / "run" / "journal.jsonl"
    entries = journal.read_text().splitlines()
    place = next(n for n, e in enumerate(entries) if json.loads(e)["kind"] == "search-done")
    journal.write_text("\n".join(entries[:place]) + "\n")
    machine = Machine(table(HARMLESS, factors=factors))
    run(tmp_path, machine, spec, clock=lambda before: 0.99 * 600)
    kinds = [json.loads(e)["kind"] for e in journal.read_text().splitlines()]
    assert "announced" not in kinds and kinds.count("search-began") == 1


@pytest.mark.parametrize(
    ("why", "kept"),
    [
        ("not supported", False),
        ("the job never moves a batch", False),
        ("on rank 1: not supported", True),
        ("the job set it back", True),
        ("optimizer_impl: RuntimeError: no kernel", True),  # while it was set
    ],
)
def test_a_knob_without_effect_in_its_proof_is_told_and_left_out_of_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], why: str, kept: bool
) -> None:
    """Unless it acted on some ranks, or for some time: then the proof is not one without it."""
    machine = Machine(table(HARMLESS), useless({"optimizer_impl": why}, acted=kept))
    result = run(tmp_path, machine, shown="auto")
    said = " ".join(capsys.readouterr().out.split())
    assert f"in fresh processes optimizer_impl had no effect: {why}" in said
    others = {"num_workers": 2, "amp_dtype": "bfloat16"}
    assert result.knobs == ({**others, "optimizer_impl": "fused"} if kept else others)
    assert result.knobs == result.loss.config == result.confirmation.config
    (gain,) = (g for g in result.gains if g.knob == "optimizer_impl")
    assert gain.kept is kept and (kept or why in gain.reason)


def test_a_finalist_without_any_effect_in_its_proof_is_not_adopted(tmp_path: Path) -> None:
    machine = Machine(
        table(HARMLESS, factors={"amp_dtype": {"bfloat16": 0.8}}),
        useless({"amp_dtype": "not supported"}),
    )
    result = run(tmp_path, machine, job(tmp_path, "{amp_dtype: [bfloat16]}"))
    assert result.verdict == "keep-baseline" and len(machine.confirmed()) == 10
    assert "in fresh processes amp_dtype had no effect: not supported" in result.reason


def test_a_knob_that_means_nothing_without_an_idle_one_does_not_save_it(tmp_path: Path) -> None:
    factors = {"num_workers": {"2": 0.7}, "prefetch_factor": {"8": 0.8}}
    machine = Machine(table(HARMLESS, factors=factors), useless({"num_workers": "no DataLoader"}))
    spec = job(tmp_path, "{num_workers: [2], prefetch_factor: [8]}")
    rejected = run(tmp_path, machine, spec).rejected[0]
    assert rejected.config.keys() == {"num_workers", "prefetch_factor"}
    assert "in fresh processes num_workers had no effect: no DataLoader" in rejected.reason


def test_no_variant_is_announced_that_means_nothing_without_the_culprit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = {"num_workers": {"2": 0.7}, "prefetch_factor": {"8": 0.8}}
    lying = Loss(changed_by={"num_workers": {"2": 0.2}})
    machine = Machine(table(lying, factors=factors))
    spec = job(tmp_path, "{num_workers: [2], prefetch_factor: [8]}")
    clock = time_is_up_in("confirm1-only", machine)
    result = run(tmp_path, machine, spec, clock, shown="auto")
    assert "tried once more" not in " ".join(capsys.readouterr().out.split())
    assert all(rejected.config for rejected in result.rejected)


@pytest.mark.parametrize(("first", "noise"), [(5, 0.005), (7, 0.05)])
def test_memory_that_only_a_later_run_of_the_proof_needs_counts_too(
    tmp_path: Path, first: int, noise: float
) -> None:
    """The loss check needs a sixth pair; with noise, the figure needs further ones."""

    def alter(request: FixedRun, record: Record) -> Record:
        label, _, run_of = request.label.rpartition("-")
        grown = label == "confirm1-candidate" and int(run_of) >= first
        window = replace(record.window, peak_memory_gib=4.0 if grown else 1.0)
        if label == "confirm1-candidate" and int(run_of) < 5:  # too far apart for the loss check
            shift = 0.991 if int(run_of) % 2 else 1.009
            record = replace(record, losses=tuple((loss or 0.0) * shift for loss in record.losses))
        return replace(record, window=window)

    factors = {"amp_dtype": {"bfloat16": 0.8}}
    machine = Machine(table(HARMLESS, factors=factors, block_noise=noise), alter)
    limits = "constraints: {host_memory_gib: 2}\n"
    result = run(tmp_path, machine, job(tmp_path, "{amp_dtype: [bfloat16]}", limits))
    assert any(request.label == f"confirm1-candidate-{first}" for request in machine.requests)
    assert result.verdict == "keep-baseline"
    assert "more than host_memory_gib allows" in result.rejected[0].reason


def useless(no_effect: dict[str, str], acted: bool = False) -> Callable[[FixedRun, Record], Record]:
    """Knobs without effect in the runs of the first proof. ``acted``: they had one for a time."""

    def alter(request: FixedRun, record: Record) -> Record:
        told = request.label.startswith("confirm1-candidate")
        idle = () if acted else tuple(no_effect)
        return replace(record, no_effect=no_effect, idle=idle) if told else record

    return alter
