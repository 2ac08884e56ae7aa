"""What the command line does, from Python.

    import autotune
    result = autotune.tune("digits/job.yaml", minutes=10)          # -> autotune.results.Result
    judgement = autotune.judge("digits/job.yaml", "tuned.yaml")    # -> autotune.judging.records.Judgement
    profile = autotune.profile("digits/job.yaml")                  # -> autotune.results.Profile
    result = autotune.load_result("autotune-runs/digits")          # of an earlier run
    text = autotune.export_settings("autotune-runs/digits", "shell")    # tuned settings in another form

The first three run the job. Each writes its directory as the command does, prints nothing, and
raises the errors of :mod:`autotune.errors`. ``tune`` and ``judge`` resume where an earlier call
stopped; ``profile`` starts over.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.job.spec import JobSpec
    from autotune.judging.records import Judgement
    from autotune.results import Profile, Result


def tune(
    job: JobSpec | Path | str,
    *,
    run_dir: Path | str | None = None,
    minutes: float | None = None,
    seed: int = 0,
    fresh: bool = False,
    offline: bool = False,
    history: bool = True,
) -> Result:
    """Find the fastest settings of a job and prove them; as ``autotune run``.

    Args:
        job: a job file, or what :func:`autotune.job.load.load_job` returns for one.
        run_dir: where everything goes; by default ``autotune-runs/<name>``.
        minutes: time budget instead of the job's own.
        seed: of the search.
        fresh: move an earlier run aside instead of resuming it.
        offline: record locally, for ``autotune sync`` to send.
        history: use earlier runs, and keep this one; see docs/history.md.

    Raises:
        InputError, BaselineError, HookError, ClusterLost, Interrupted: see :mod:`autotune.errors`.
    """
    from autotune.running import tune_job

    spec = _spec(job)
    if minutes is not None:
        spec = replace(spec, budget=replace(spec.budget, minutes=_checked(minutes)))
    place = _directory(run_dir, spec.name)
    return tune_job(
        spec,
        place,
        fresh=fresh,
        seed=seed,
        offline=offline,
        progress_kind="silent",
        history=history,
    )


def judge(
    a: Path | str,
    b: Path | str,
    *,
    run_dir: Path | str | None = None,
    minutes: float | None = None,
    margin: float = 0.02,
    loss: str = "",
    fresh: bool = False,
) -> Judgement:
    """Is B faster than A, slower or the same, and does it train the same way?

    As ``autotune judge``.

    Args:
        a, b: job files, tuned.yaml files or run directories.
        run_dir: where everything goes; by default ``autotune-runs/<name>-judge``.
        minutes: time budget; None: 10, or the job file's if it is smaller.
        margin: share within which two speeds are the same.
        loss: how B's loss may differ: "exact", "rounding", "random-stream" or "statistical"; "": as
            its knobs may change it, at least rounding.
        fresh: move an earlier judgement aside instead of resuming it.

    Raises:
        InputError, BaselineError, HookError, Interrupted: see :mod:`autotune.errors`.
    """
    from autotune.judging.run import judge_job
    from autotune.judging.sides import common, load_side

    if minutes is not None:
        minutes = _checked(minutes)
    sides = common(load_side("A", Path(a)), load_side("B", Path(b)), minutes)
    place = _directory(run_dir, f"{sides[0].spec.name}-judge")
    return judge_job(sides, place, margin=margin, loss=loss, fresh=fresh, progress_kind="silent")


def profile(job: JobSpec | Path | str, *, out: Path | str | None = None) -> Profile:
    """Show why a job takes as long as it does; as ``autotune profile``.

    An earlier profile is moved aside.

    Args:
        job: a job file, or what :func:`autotune.job.load.load_job` returns for one.
        out: where page and traces go; by default ``autotune-runs/<name>-profile``.

    Raises:
        InputError, BaselineError, HookError: see :mod:`autotune.errors`.
    """
    from autotune.profiling import profile_job

    spec = _spec(job)
    return profile_job(spec, {}, _directory(out, f"{spec.name}-profile"), shown=False)


def load_result(run: Path | str) -> Result:
    """The result of a finished run; as ``autotune show --json``.

    Args:
        run: a run's directory, its name under ``autotune-runs/``, or a result.json.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    from autotune.report.result_file import load_result as load
    from autotune.run_directory import find_result

    return load(find_result(str(run)))


def export_settings(run: Path | str, form: str = "yaml") -> str:
    """Tuned settings in another form, as the text of a file; as ``autotune export``.

    Args:
        run: a run's directory, its name under ``autotune-runs/``, or a tuned.yaml.
        form: one of ``autotune.export.formats.FORMATS``.

    Raises:
        InputError: no such run or format, or a form that does not fit this job.
    """
    from autotune.export.formats import format_named
    from autotune.export.load import load_tuned

    return format_named(form).write(load_tuned(Path(run)))


def _spec(job: JobSpec | Path | str) -> JobSpec:
    from autotune.job.load import load_job

    return load_job(job) if isinstance(job, (str, Path)) else job


def _checked(minutes: float) -> float:
    from autotune.errors import InputError
    from autotune.job.spec import MOST_MINUTES

    if not 0 < minutes <= MOST_MINUTES:
        raise InputError(
            f"minutes is {minutes:g}",
            where="minutes",
            expected=f"more than 0, at most {MOST_MINUTES:,} (a week)",
        )
    return minutes


def _directory(given: Path | str | None, name: str) -> Path:
    from autotune.run_directory import RUNS, check_run_dir

    place = (Path(given) if given is not None else RUNS / name).absolute()
    check_run_dir(place)
    return place
