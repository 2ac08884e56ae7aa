"""Real jobs whose loss is not a single positive number that falls: each has a defined outcome."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from autotune.errors import BaselineError
from autotune.executors.local import LocalExecutor
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.results import LossVerdict
from autotune.stages.context import RunContext
from autotune.stages.converge import converge
from autotune.stages.measuring import fresh
from autotune.stages.measuring.pairs import Pairs
from autotune.tracking import open_tracker
from autotune_spaces.base import Value

pytestmark = pytest.mark.usefixtures("nothing_is_left")

PROGRAMS = Path(__file__).parents[1] / "programs"
SAME = {"optimizer_impl": "foreach"}  # at most, this rounds differently


def check(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    config: dict[str, Value],
    extra: str = "",
) -> LossVerdict:
    """The loss check of ``python odd_losses.py <words>`` with ``config``, in real sessions with
    short windows.
    """
    with pairs_of(folder, monkeypatch, words, config, extra) as pairs:
        return converge(pairs.context, config, pairs)


@contextmanager
def pairs_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    config: dict[str, Value],
    extra: str = "",
) -> Iterator[Pairs]:
    monkeypatch.setattr(fresh, "MIN_SECONDS", 0.2)
    shutil.copytree(PROGRAMS, folder / "job")
    (folder / "job" / "job.yaml").write_text(
        f"command: {sys.executable} odd_losses.py {words}\ntracking: {{uri: null}}\nenv:"
        f" {{OMP_NUM_THREADS: 1}}\nsearch_space: {{optimizer_impl: auto, amp_dtype: auto}}\n{extra}"
    )
    spec, run_dir = load_job(folder / "job" / "job.yaml"), folder / "run"
    journal = Journal(run_dir / "journal.jsonl", lambda before: before + time.monotonic())
    with (
        closing(journal),
        open_progress("quiet", 60.0) as progress,
        closing(LocalExecutor(spec, run_dir)) as executor,
    ):
        context = RunContext(
            spec, executor, journal, progress, open_tracker(None, "e", run_dir), run_dir
        )
        yield Pairs(context, config, {}, "check")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vector", "plain", "negative", "tiny", "two"])
def test_a_harmless_change_passes_whatever_the_loss_looks_like(tmp_path, monkeypatch, kind):
    verdict = check(tmp_path, monkeypatch, kind, SAME)
    assert verdict.verdict == "unchanged", verdict.reason
    assert verdict.steps >= 240
    assert len(verdict.baseline_curve) > 10
    first = next(iter(verdict.baseline_curve.values()))
    if kind in ("plain", "vector"):  # a vector counts by the sum that is differentiated
        assert 1.0 < first < 2.0, "cross entropy over four classes begins near log 4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("unseen", "report it with autotune.step(loss=…)"),
        ("nan", "the job's own loss is NaN or infinite at step 1"),
        (
            "constant",
            (
                "the job's own loss stays at 1: it cannot show whether anything changed."
                " Possible causes: placeholder data"
            ),
        ),
        ("no_progress", "does not move"),
    ],
)
def test_a_loss_that_can_show_nothing_says_so(tmp_path, monkeypatch, kind, said):
    verdict = check(
        tmp_path, monkeypatch, kind, SAME if kind != "no_progress" else {"amp_dtype": "bfloat16"}
    )
    assert verdict.verdict == "no-proof"
    assert said in verdict.reason


@pytest.mark.slow
def test_the_first_gradient_of_float16_is_nearer_to_float32s_than_bfloat16s(tmp_path, monkeypatch):
    """On a healthy model: float16 has three more bits than bfloat16, and the loss is scaled."""
    with pairs_of(tmp_path, monkeypatch, "plain", {"amp_dtype": "float16"}) as pairs:
        assert pairs.float16_gradient() is None, "nothing has been run"
        pairs.ensure(1)
        errors = pairs.float16_gradient()
        again = pairs.float16_gradient()
    assert errors is not None
    assert 0 < errors[0] < errors[1] < 0.1
    assert again == errors, "taken from the journal"
    with pairs_of(tmp_path / "other", monkeypatch, "plain", SAME) as pairs:
        pairs.ensure(1)
        assert pairs.float16_gradient() is None, "not float16"


@pytest.mark.slow
def test_a_metric_that_the_job_prints_is_checked(tmp_path, monkeypatch):
    extra = "convergence: {metrics: {val_acc: 'val_acc=([0-9.]+)'}}\n"
    (metric,) = check(tmp_path, monkeypatch, "plain", SAME, extra).metrics
    assert (metric.name, metric.verdict) == ("val_acc", "unchanged")


@pytest.mark.slow
def test_a_job_with_too_few_steps_says_what_to_raise(tmp_path, monkeypatch):
    # on a busy machine, most of such a short run is warm-up; only the loss matters here
    monkeypatch.setattr(fresh, "FEWEST_ITERATIONS", 5)
    verdict = check(tmp_path, monkeypatch, "plain 58", SAME)
    assert verdict.verdict == "no-proof"
    assert "58 steps in common" in verdict.reason
    assert "give the job more epochs" in verdict.reason


@pytest.mark.slow
def test_a_job_that_is_over_at_once_cannot_be_timed(tmp_path, monkeypatch):
    with pytest.raises(BaselineError, match="it ended after 25 optimizer steps"):
        check(tmp_path, monkeypatch, "plain 25", SAME)
