"""Which knobs moved the figures of the search, and by how much: fANOVA over the trials.

A share of the variance is not a gain: a knob that only ever slowed the job down is important, too.
Functional ANOVA fits a forest to all trials and splits its variance by knob (F. Hutter, H. Hoos, K.
Leyton-Brown, "An efficient approach for assessing hyperparameter importance", ICML 2014).
PED-ANOVA, Optuna's default, needs no forest but looks only at the best tenth of the trials. A run
has about a dozen, so that tenth is one trial, and the answer is chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import pstdev

from autotune.results import Trial
from autotune_spaces.base import Value

# measured trials; fewer hold little more than the first guess for each knob, and the trials
# themselves already show that
FEWEST_TRIALS = 8
# times the machine's noise: if the trials differ by less, the importance is that of the noise
CLEAR_SPREAD = 2.0
SEED = 0  # of the forest, so that the same trials give the same figures


def importance(
    trials: Sequence[Trial], defaults: Mapping[str, Value], noise: float
) -> tuple[dict[str, float], str]:
    """(knob -> share of the variance between trials, why there is none or "").

    The shares are sorted, largest first, and add up to 1.

    Args:
        defaults: the job's own value of every knob in the search.
        noise: standard deviation of the log time per sample between baseline blocks.
    """
    points = [(dict(defaults), 0.0)]  # the unchanged job
    points += [({**defaults, **t.config}, t.log_ratio) for t in trials if t.log_ratio is not None]
    varied = [name for name in defaults if len({repr(config[name]) for config, _ in points}) > 1]
    if len(points) <= FEWEST_TRIALS:
        why = f"{len(points) - 1}, at least {FEWEST_TRIALS} are needed"
        return {}, f"too few trials were measured to tell ({why})"
    if pstdev([ratio for _, ratio in points]) < CLEAR_SPREAD * noise:
        return {}, "the trials differ by no more than the machine's noise"
    try:
        return _fanova(points, varied), ""
    # scikit-learn: mlflow depends on it, mlflow-skinny does not
    except ImportError as missing:
        return {}, f"{missing.name} is not installed"


def _fanova(
    points: Sequence[tuple[Mapping[str, Value], float]], knobs: Sequence[str]
) -> dict[str, float]:
    import warnings

    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.importance import FanovaImportanceEvaluator
    from optuna.trial import create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Every knob is an axis with the tried values as categories, whatever the knob's type.
    values = {name: sorted({repr(config[name]) for config, _ in points}) for name in knobs}
    axes = {name: CategoricalDistribution(values[name]) for name in knobs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the study is in memory and not kept
        study = optuna.create_study(direction="minimize")
        for config, ratio in points:
            study.add_trial(
                create_trial(
                    params={name: repr(config[name]) for name in knobs},
                    distributions=axes,
                    value=ratio,
                )
            )
        found = optuna.importance.get_param_importances(
            study, evaluator=FanovaImportanceEvaluator(seed=SEED)
        )
    return {name: float(share) for name, share in sorted(found.items(), key=lambda item: -item[1])}
