"""What is recorded of a study: parameters, metrics and artifacts under fixed names.

MLflow's compare, parallel-coordinates and contour views need the same keys in all siblings, so
every trial has every ``knob.*`` parameter (the job's own value if it was not changed) and, if it
was measured, every metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.explain.summary import metrics as summary_metrics
from autotune.job.configs import in_words, key_of
from autotune.job.spec import JobSpec
from autotune.objectives import metric
from autotune.report.text import gains, story
from autotune.results import Anatomy, Interval, Observation, Result, Trial
from autotune.secrets import mask_command
from autotune.tracking.base import BOTH_TAG, NOTE_TAG, SEARCHED_TAG, Tracker
from autotune_spaces.base import Value

STUDY_FILES = (
    "tuned.yaml",
    "report.html",
    "result.json",
    "findings.json",
    "history.json",
    "loss.png",
    "waterfall.png",
    "traces/roofline.png",
)


def begin(tracker: Tracker, spec: JobSpec, run_dir: Path) -> None:
    """Open the study (parent run)."""
    params = {
        "command": " ".join(mask_command(spec.command)),
        "search_space": spec.search_space.preset,
        "objective": spec.objective,
        "planned_steps": spec.planned_steps,
        "budget.minutes": spec.budget.minutes,
        "budget.trials": spec.budget.trials or "no limit",
    }
    tracker.start_study(spec.digest(), spec.name, params, {"autotune.run_dir": str(run_dir)})


def record_baseline(tracker: Tracker, observation: Observation) -> None:
    """Record the unchanged job as a sibling of the trials: the row every comparison starts from."""
    tracker.trial(
        "baseline",
        "baseline",
        _params({}, observation.defaults),
        {"speedup": 1.0, **_anatomy(observation.anatomy)},
        {"autotune.state": "baseline"},
    )
    metrics = {"observe/noise": observation.noise}
    if observation.ceiling is not None:
        metrics["observe/loader_ceiling"] = observation.ceiling
    tracker.study_metrics(metrics)


def record_trial(tracker: Tracker, trial: Trial, defaults: Mapping[str, Value]) -> None:
    """Record one configuration that was tried."""
    metrics = _anatomy(trial.anatomy) if trial.anatomy else {}
    if trial.log_ratio is not None and trial.speedup is not None:
        metrics |= {
            "speedup": trial.speedup,
            "log_ratio": trial.log_ratio,
            "log_ratio_se": trial.standard_error or 0.0,
        }
    metrics |= {"wall_s": trial.wall_s, "settle_s": trial.settle_s}
    tags = {
        "autotune.state": trial.state,
        "autotune.origin": trial.origin,
        "autotune.reason": trial.reason,
    }
    if trial.node:
        tags["autotune.node"] = trial.node
    tracker.trial(
        trial_key(trial),
        f"{trial.number:03d} {in_words(trial.config)}",
        _params(trial.config, defaults),
        metrics,
        tags,
    )


def record_trace(tracker: Tracker, trial: Trial, path: Path) -> None:
    """Record a trial's profiler trace."""
    tracker.trial_artifact(trial_key(trial), path, "traces")


def trial_key(trial: Trial) -> str:
    """The key of a trial's run: fresh processes may measure what the live search left in doubt."""
    return ("process:" if trial.origin == "process" else "") + key_of(trial.config)


def record_result(tracker: Tracker, result: Result, run_dir: Path) -> None:
    """Record the verdict, the loss curves as step metrics, and every file a person would open."""
    metrics = _speedup(result.speedup)
    metrics |= {"wall_s": result.wall_s, "trials": float(len(result.trials))}
    training = result.confirmation.training if result.confirmation else None
    if training is not None:
        after_s = training.after_s if result.knobs else training.before_s
        metrics |= {"training_before_s": training.before_s, "training_after_s": after_s}
    if result.loss.margin is not None:
        metrics["loss/margin"] = result.loss.margin
    metrics |= summary_metrics(
        {name: side.summary for name, side in result.explanation.sides.items()}
    ) | _explained(result)
    tracker.study_metrics(metrics)
    _record_finalist(tracker, result)
    _record_points(tracker, result)
    for name in STUDY_FILES:
        if (run_dir / name).exists():
            tracker.study_artifact(run_dir / name)
    for side in result.explanation.sides.values():
        for path in (side.trace, side.stacks, side.table, side.nsight, side.ncu):
            if path and (run_dir / path).exists():
                tracker.study_artifact(run_dir / path, "traces")


def _explained(result: Result) -> dict[str, float]:
    """The figures of the explain stage; none if it was left out."""
    explanation = result.explanation
    if not explanation.sides:
        return {}
    metrics = {"explain/wall_s": explanation.wall_s}
    if explanation.rules or explanation.findings:
        metrics["explain/findings"] = float(
            sum(not finding.cured for finding in explanation.findings)
        )
    for knob, share in explanation.importance.items():
        metrics[f"importance/{knob}"] = share
    return metrics


def _record_points(tracker: Tracker, result: Result) -> None:
    """Record both objectives of every trial, and whether no other trial beats it."""
    objectives = _both(result)
    keys = {trial.number: trial_key(trial) for trial in result.trials}
    for point in result.points:
        key = "baseline"
        if point.number is not None:
            key = keys.get(point.number, key_of(point.config))
        figures = (point.first, point.second, float(not point.beaten))
        for name, value in zip((*objectives, "unbeaten"), figures, strict=True):
            tracker.trial_series(key, name, {0: value})


def _both(result: Result) -> tuple[str, str]:
    first, second = (
        metric(str(result.environment.get(name))) for name in ("objective", "second_objective")
    )
    return first, second


def _record_finalist(tracker: Tracker, result: Result) -> None:
    """Record the configuration whose loss was compared, as a sibling of the baseline.

    Its curve has the name of the baseline's, so that comparing the two draws both in one chart.
    """
    loss, confirmation = result.loss, result.confirmation
    if loss.baseline_curve:
        tracker.trial_series("baseline", "loss", _steps(loss.baseline_curve))
    if confirmation is None:
        return
    # without pairs, it failed in its first fresh process
    metrics = _speedup(confirmation.speedup) if confirmation.pairs else {}
    metrics |= _anatomy(confirmation.anatomy) if confirmation.anatomy else {}
    tracker.trial(
        "finalist",
        f"finalist {in_words(confirmation.config)}",
        _params(confirmation.config, result.baseline),
        metrics,
        {
            "autotune.state": "confirmed" if confirmation.adopted else "rejected",
            "autotune.reason": confirmation.reason,
        },
    )
    if loss.candidate_curve and loss.config == confirmation.config:
        tracker.trial_series("finalist", "loss", _steps(loss.candidate_curve))


def _speedup(it: Interval) -> dict[str, float]:
    return {"speedup": it.estimate, "speedup_low": it.low, "speedup_high": it.high}


def _steps(curve: Mapping[int, float]) -> dict[int, float]:
    return {int(float(samples)): value for samples, value in curve.items()}


def finish(tracker: Tracker, status: str, result: Result | None = None) -> None:
    """Close the study. ``status``: FINISHED, FAILED, KILLED."""
    if result is None:
        tracker.finish(status, {}, {})
        return
    params = {**_params(result.knobs, result.baseline), "verdict": result.verdict}
    tags = {
        "autotune.verdict": result.verdict,
        "autotune.reason": result.reason,
        "autotune.loss": result.loss.verdict,
    }
    searched = dict.fromkeys(knob for trial in result.trials for knob in trial.config)
    if searched:
        tags[SEARCHED_TAG] = ",".join(searched)
    if result.points:
        tags[BOTH_TAG] = ",".join(_both(result))
    tracker.finish(status, params, {**tags, NOTE_TAG: description(result)})


def description(result: Result) -> str:
    """What MLflow shows at the top of the study's page, as Markdown."""
    lines = [f"**{story.headline(result)}.**"]
    if story.tuned(result):
        lines += ["", *(f"- `{it.knob}`: {it.was} → **{it.now}**" for it in gains.changes(result))]
    said = (
        "The full report is `report.html` under Artifacts; `tuned.yaml` beside it launches the job."
    )
    return "\n".join([*lines, "", said])


def _params(config: Mapping[str, Value], defaults: Mapping[str, Value]) -> dict[str, object]:
    return {f"knob.{name}": value for name, value in {**defaults, **config}.items()}


def _anatomy(anatomy: Anatomy) -> dict[str, float]:
    metrics = {f"anatomy/{phase}_ms": 1e3 * seconds for phase, seconds in anatomy.phases_s.items()}
    return metrics | {
        "samples_per_s": anatomy.samples_per_s,
        "iteration_ms": 1e3 * anatomy.iteration_s,
        "reader_ratio": anatomy.reader_ratio,
        "peak_memory_gib": anatomy.peak_memory_gib,
    }
