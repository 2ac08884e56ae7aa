"""The closing screen is correct for every verdict, fits the terminal, and passes on no control
codes from the job.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from sample_results import HOSTILE, anatomy, hostile, keep, nothing_tried, samples, tuned, undecided

from autotune import words
from autotune.report.page.html import render
from autotune.report.terminal.closing import closing_text
from autotune.report.terminal.compare import phase_rows
from autotune.report.terminal.event_words import confirmed_words, observed_words
from autotune.report.text.comparison import compare, said_of_times
from autotune.report.text.reproduce import reproduce
from autotune.report.text.story import anatomies, headline
from autotune.results import PROVEN_ANEW, Confirmation, Interval, LossVerdict, Result, Trial
from autotune.tracking import open_tracker

RUN = Path("autotune-runs/digits-cnn")


def one_line(text: str) -> str:
    return " ".join(text.split())


def screen(result: Result, width: int = 100) -> str:
    return one_line(closing_text(result, RUN, width))


def test_tuned_says_how_much_what_to_change_and_what_was_certified() -> None:
    text = screen(tuned())
    assert "2.10× faster (95% interval 1.93–2.29), loss unchanged" in text
    assert "num_workers 0 → 2 1.71× (1.60–1.83)" in text
    assert "amp_dtype off → bfloat16 1.24× (1.17–1.31)" in text
    assert (
        "Certified: the same early trajectory. In 3 seeded pairs of runs over the first 240"
        " optimizer steps" in text
    )
    assert "±0.0123" in text
    assert "Not certified: the final quality" in text
    assert "waiting for data 57.1 ms 17.6 ms" in text
    assert "autotune launch autotune-runs/digits-cnn/tuned.yaml" in text


def test_a_gain_that_a_running_job_understates_is_a_lower_bound() -> None:
    result = tuned()
    gains = tuple(replace(gain, at_least=gain.knob == "amp_dtype") for gain in result.gains)
    text = screen(replace(result, gains=gains))
    assert "amp_dtype off → bfloat16 at least 1.24×" in text and "(1.17–1.31)" not in text
    assert "amp_dtype gains more in a fresh process" in text
    assert "num_workers 0 → 2 1.71× (1.60–1.83)" in text


def test_gains_of_the_recorded_run_are_told_as_such() -> None:
    result = tuned()
    anew = replace(result, recalled=replace(result.recalled, outcome=PROVEN_ANEW))
    said = "as measured when last tuned"
    assert said in screen(anew) and said in render(anew, RUN) and said not in screen(result)
    own = (
        "Own gain: all these settings compared with all but this one. Gains do not simply multiply."
    )
    assert own in render(result, RUN) and own not in render(anew, RUN)
    assert own in screen(result) and own not in screen(anew)
    single = replace(result, knobs={"num_workers": 2}, gains=result.gains[:1])
    assert own not in screen(single), "there is nothing to multiply"


def test_the_command_to_reproduce_a_run_has_its_directory_and_budget() -> None:
    result = tuned()
    assert "--run-dir" not in reproduce(result, RUN)["command"]
    budget = {"minutes": 2.5, "trials": None}
    result = replace(result, environment={**result.environment, "budget": budget})
    command = reproduce(result, Path("else where"))["command"]
    assert command.endswith("--run-dir 'else where' --minutes 2.5")


def test_the_figures_of_an_adoption_are_told_once_and_why_another_was_not_adopted() -> None:
    adopted = replace(tuned().confirmation, reason="faster: 2.100× (1.930× to 2.290×, 5 pairs)")
    assert confirmed_words(adopted).endswith("in 5 fresh processes per side")
    reason = "no gain of 2% or more is shown: 0.980× (0.266× to 2.184×, 5 pairs)"
    rejected = confirmed_words(replace(adopted, adopted=False, reason=reason))
    assert rejected.endswith("5 pairs)") and rejected.count("(") == 1


def test_keep_claims_no_speedup_and_offers_no_launch() -> None:
    text = screen(keep())
    assert "Keep your settings: no configuration was faster" in text
    assert "faster (95%" not in text
    assert "autotune launch" not in text
    assert "Loss check" not in text, "nothing is changed, so nothing is to be said about the loss"
    assert "1.01× (0.98–1.04) in 5 fresh processes" in text


def test_a_job_whose_batches_cannot_be_counted_is_told_in_iterations() -> None:
    counted = tuned()
    uncounted = replace(
        counted,
        observation=replace(
            counted.observation, job=replace(counted.observation.job, sample_unit="iterations")
        ),
    )
    told = (
        screen(uncounted)
        + observed_words(uncounted.observation)
        + " ".join(said_of_times(compare(uncounted, uncounted)))
    )
    assert (
        told.count("iterations/s") == 3
        and "in iterations per second" in told
        and "samples/s" not in told
    )


def test_iterations_of_unlike_size_are_not_set_against_each_other_in_silence() -> None:
    """With twice the batch size the forward pass takes longer, although the job is faster."""
    before, after = anatomy(57.1, 14.0, 23.5), anatomy(17.0, 28.0, 47.0)
    grown = replace(
        tuned(),
        confirmation=replace(
            tuned().confirmation,
            baseline_anatomy=before,
            anatomy=replace(after, samples_per_s=128 / after.iteration_s),
        ),
    )
    said = (
        "After tuning an iteration has about 2.00× the samples: compare samples per second, not"
        " iterations."
    )
    assert said in screen(grown) and said in render(grown, RUN)
    assert "After tuning an iteration" not in screen(tuned()) + render(tuned(), RUN)
    # the same number of samples as before; half of the time is lost at the ends of epochs
    quick = anatomy(2.0, 0.5, 0.5)
    ends = replace(
        quick,
        turnover_s=40 * quick.iteration_s,
        epoch_iterations=40,
        samples_per_s=64 / (2 * quick.iteration_s),
    )
    small = replace(grown, confirmation=replace(grown.confirmation, anatomy=ends))
    assert "After tuning an iteration" not in screen(small) + render(small, RUN)


def test_what_epoch_ends_add_to_an_iteration_is_shown() -> None:
    """Found: 44.3 ms were set against 1.56, a job 28 times as fast, where it was 12.7 times: its
    epochs of 40 iterations ended with 71 ms each.
    """
    before, after = anatomy(30.0, 5.0, 9.3), anatomy(0.8, 0.3, 0.4)
    ended = replace(
        tuned(),
        confirmation=replace(
            tuned().confirmation,
            baseline_anatomy=replace(before, turnover_s=0.0357, epoch_iterations=40),
            anatomy=replace(after, turnover_s=0.0711, epoch_iterations=40),
        ),
    )
    assert "epoch ends, on top 893 µs 1.78 ms" in " ".join(screen(ended).split())
    page = render(ended, RUN)
    assert "epoch ends, on top" in page and page.count("1.78 ms") == 1
    rows = phase_rows(anatomies(ended))
    assert rows[-1] == ("epoch ends, on top", "893 µs", "1.78 ms")
    confirmation = ended.confirmation
    quick = replace(after, turnover_s=0.0005, epoch_iterations=40)
    short = replace(
        ended, confirmation=replace(confirmation, baseline_anatomy=before, anatomy=quick)
    )
    assert "epoch ends" not in screen(short) + render(short, RUN), "under a hundredth"


def test_a_knob_that_went_back_is_not_shown_with_the_value_it_left() -> None:
    text = screen(tuned())
    assert (
        "not worth changing: prefetch_factor 2 → 4" in text and "prefetch_factor=4 Loss" not in text
    )


def test_pages_that_are_not_there_are_not_offered(tmp_path: Path) -> None:
    """For a run with `tracking: {uri: null}`, `autotune ui` would say that it was recorded without
    MLflow.
    """
    for uri, offered in ((None, False), (f"sqlite:///{tmp_path}/mlflow.db", True)):
        run_dir = tmp_path / str(offered)
        open_tracker(uri, "digits", run_dir, offline=True).start_study("study", "digits", {}, {})
        assert ("autotune ui" in closing_text(tuned(), run_dir)) is offered


def test_undecided_is_not_sold_as_unchanged() -> None:
    text = screen(undecided())
    assert "Keep your settings" in text
    assert "Loss check undecided" in text
    assert "Undecided: neither the same nor different in 8 seeded pairs" in text
    assert "unchanged." not in text.replace("is unchanged", "")
    assert "ertified" not in text, "nothing is claimed, so there is no claim to limit"


def test_tuned_although_undecided_says_so_in_the_headline() -> None:
    assert "loss undecided" in headline(
        replace(undecided(), verdict="tuned", speedup=Interval(1.24, 1.18, 1.3))
    )


def test_no_trials_and_noise_are_said() -> None:
    text = screen(nothing_tried())
    assert "no configuration was tried" in text
    assert "This machine was noisy" in text
    assert "11%" in text
    assert "autotune launch" not in text
    assert "nan" not in text.lower()
    assert "noisy" not in screen(tuned())


def test_a_run_after_which_there_is_nothing_to_type_is_shown(tmp_path: Path) -> None:
    """No trial to list, and no MLflow."""
    open_tracker(None, "e", tmp_path)
    assert "no configuration was tried" in one_line(closing_text(nothing_tried(), tmp_path, 100))


def test_a_changed_setting_found_without_training_names_no_steps() -> None:
    loss = LossVerdict(
        "changed", "settings differ beyond what the knobs declare: dropout p of net.3", 1, 0
    )
    text = screen(replace(undecided(), loss=loss))
    assert (
        "Loss changed. Settings differ beyond what the knobs declare: dropout p of net.3." in text
    )
    assert "steps" not in text.split("Loss check")[1].split("Where the time goes")[0]


def test_a_finalist_that_could_not_run_has_no_figure() -> None:
    confirmation = Confirmation(
        {"num_workers": 2}, Interval(1, 1, 1), 0, False, "a run failed (crash: exit code 1)"
    )
    text = screen(replace(keep(), confirmation=confirmation))
    assert "was ruled out: a run failed (crash: exit code 1)." in text
    assert "1.00×" not in text


def test_searched_but_nothing_confirmed() -> None:
    assert "Nothing was confirmed in fresh processes" in screen(
        replace(keep(), confirmation=None, rejected=())
    )


def test_bit_equal_losses_are_called_that() -> None:
    loss = LossVerdict("unchanged", "", 1, 20, 0.0, 0.0)
    text = screen(replace(tuned(), loss=loss))
    assert (
        "in 1 seeded pair of runs over the first 20 optimizer steps, every loss was bit-identical."
        in text
    )


def test_unchanged_without_figures_still_says_what_it_is_not() -> None:
    text = screen(replace(tuned(), loss=LossVerdict("unchanged", "", 2, 240)))
    assert (
        "Certified: the same early trajectory. In 2 seeded pairs of runs over the first 240"
        " optimizer steps" in text
    )
    assert "Not certified: the final quality" in text


def test_own_gain_that_was_not_measured_is_not_invented() -> None:
    text = screen(replace(tuned(), gains=()))
    assert text.count("not measured alone") == 2
    assert "all of it" in screen(replace(tuned(), gains=(), knobs={"num_workers": 2}))


def test_many_rejected_are_counted() -> None:
    rejected = tuple(replace(keep().rejected[0], reason=f"reason {n}") for n in range(9))
    text = screen(replace(keep(), rejected=rejected))
    assert "reason 3" in text
    assert "reason 4" not in text
    assert "and 5 more" in text


@pytest.mark.parametrize("name", list(samples()))
@pytest.mark.parametrize("width", [60, 100, 30])
def test_it_fits_and_holds_no_control_codes(name: str, width: int) -> None:
    text = closing_text(samples()[name], RUN, width)
    command_or_fits = [
        line for line in text.splitlines() if len(line) > width and "autotune" not in line
    ]
    assert not command_or_fits
    assert all(char == "\n" or char.isprintable() for char in text)
    text.encode("utf-8")


def test_rich_markup_of_the_job_is_text() -> None:
    assert "[bold red]" in one_line(closing_text(hostile(), RUN, 200))


def test_clean_keeps_letters_and_drops_commands() -> None:
    line = words.clean(HOSTILE)
    assert "é漢字" in line
    for gone in ("\x1b", "\n", "\u202e", "\udc80"):
        assert gone not in line
    assert words.clean("x" * 50, 10) == "x" * 9 + "…"


def test_a_number_never_needs_an_exponent_to_be_rounded() -> None:
    assert [words.number_words(n) for n in (999.4, 999.5, 999.99, 1000)] == ["999"] + ["1,000"] * 3


def test_signs_get_an_ascii_spelling_where_needed() -> None:
    assert words.for_encoding("2.1× ± 4% → é", "ascii") == "2.1x +/- 4% -> ?"
    assert words.for_encoding("2.1× é", "utf-8") == "2.1× é"
    assert words.for_encoding("×", None) == "x"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0.00 µs"),
        (4.2e-7, "0.420 µs"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (59.4, "59.4 s"),
        (60, "1 min"),
        (372, "6 min 12 s"),
        (3599.9, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (math.nan, "not measured"),
        (None, "not measured"),
    ],
)
def test_durations(seconds: float | None, said: str) -> None:
    assert words.duration_words(seconds) == said


def test_trial_intervals_that_cannot_be_told_are_not_shown() -> None:
    one_pair = Trial(1, {"a": 1}, "complete", -math.log(1.5), None, 1)
    assert words.trial_words(one_pair) == "1.50×"
    assert words.trial_words(replace(one_pair, standard_error=0.02)) == "1.50× ± 4%"
    assert words.trial_words(replace(one_pair, standard_error=0.3)) == "1.50× (0.833–2.7)"
    assert words.trial_words(replace(one_pair, log_ratio=None, state="failed")) == "failed"
    assert words.trial_words(replace(one_pair, log_ratio=-5000.0, standard_error=math.inf))
