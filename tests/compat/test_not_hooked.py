"""A program whose loop no hook can see is told so, with the cause and the way out; and the way out
works.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import truths
from catalogue import LONG, Program
from harness import Place, settle

from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SessionConfig
from autotune_trials.session.session import Session, SessionFailed

pytestmark = pytest.mark.compat
ROOT = Path(__file__).parents[2]
FASTAI = Program(
    "fastai",
    "fastai",
    "Learner: optimizer and loader classes of its own",
    "python fastai_job.py {epochs} {out}",
    truths.by_script,
    (16,) * 20,
    files=("fastai_job.py",),
    loader=None,
)


def session(place: Place, steps: int, **variables: str) -> Session:
    paths = SessionPaths(place.folder / "session")
    argv = place.program.argv(steps, str(place.folder))
    return Session(
        argv,
        place.folder,
        {**place.variables, **variables},
        paths,
        SessionConfig("fixed", "", steps=30),
    )


def test_an_optimizer_class_of_its_own_is_named_as_the_cause(tmp_path: Path) -> None:
    with (
        session(settle(FASTAI, tmp_path / "job"), 40) as running,
        pytest.raises(SessionFailed) as caught,
    ):
        running.wait_hello()
    assert caught.value.kind == "unhooked"
    assert (
        "no torch.optim optimizer made a step: the job updates its parameters itself"
        in caught.value.detail
    )
    assert (
        "import autotune" in caught.value.detail
        and "autotune.step(loss=loss, samples=len(batch))" in caught.value.detail
    )


def test_with_the_two_lines_it_is_measured(tmp_path: Path) -> None:
    marked = replace(FASTAI, command=FASTAI.command + " marked")
    path = os.pathsep.join(str(ROOT / part) for part in ("", "trials", "search_spaces"))
    with session(settle(marked, tmp_path / "job"), LONG, PYTHONPATH=path) as running:
        job, record = running.wait_hello().job, running.wait_record()
    assert job.manual and job.loader is None and job.samples_per_step == 16
    assert set(record.window.samples) == {16.0} and all(loss is not None for loss in record.losses)
