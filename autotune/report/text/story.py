"""A result as sentences and table rows, shared by the closing screen and the page.

Every sentence must hold for every result: nothing measured, nothing gained, an undecided loss
check, a machine too noisy to tell.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotune import words
from autotune.objectives import BETTER, FACTOR
from autotune.results import (
    NO_FASTER,
    PROVEN_ANEW,
    Anatomy,
    Confirmation,
    Interval,
    Observation,
    Result,
    TrainingTime,
)
from autotune.secrets import mask_command, mask_url
from autotune.verdict.words import FIRST_EPOCH, certificate
from autotune_trials.protocol.messages import PHASES

PHASE_WORDS = {
    "data": "waiting for data",
    "to_device": "copy to device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
LOSS_TITLES = {
    "unchanged": "Loss unchanged",
    "changed": "Loss changed",
    "undecided": "Loss check undecided",
    "no-proof": "Loss check impossible",
    "not-needed": "Loss check not needed",
}


@dataclass(frozen=True)
class LossStory:
    """The loss check in words. ``limit``: what is not certified ("" if nothing was claimed)."""

    title: str
    said: str
    limit: str
    good: bool


@dataclass(frozen=True)
class PhaseRow:
    phase: str
    label: str
    seconds: tuple[float, ...]  # per iteration, on each side


def tuned(result: Result) -> bool:
    return result.verdict == "tuned"


def headline(result: Result) -> str:
    """The verdict in one line."""
    if tuned(result):
        loss = {"unchanged": "loss unchanged", "not-needed": "loss check not needed"}.get(
            result.loss.verdict, f"loss {words.clean(result.loss.verdict)}"
        )
        better = BETTER.get(str(result.environment.get("objective")), "faster")
        return f"{faster_words(result.speedup, better)}, {loss}"
    reason = words.clean(result.reason)
    return "Keep your settings" + (f": {reason}" if reason else "")


def faster_words(interval: Interval, better: str = "faster") -> str:
    """``2.10× faster (95% interval 1.93–2.29)``"""
    if not words.known(interval.estimate):
        return "Speed-up not measured"
    how = better if interval.estimate >= 1 else "the original speed"
    said = f"{words.factor_words(interval.estimate)} {how}"
    if not words.measured(interval):
        return said
    return f"{said} (95% interval {words.range_words(interval)})"


def evidence(result: Result) -> list[str]:
    """Sentences on how the verdict was reached and what weakens it."""
    lines = []
    confirmation = result.confirmation
    if confirmation is not None:
        lines.append(_confirmed(result, confirmation))
        if tuned(result) and confirmation.training is not None:
            lines.append(training_words(confirmation.training, result.environment.get("price")))
        if tuned(result) and confirmation.second is not None:
            objective = str(result.environment.get("second_objective"))
            lines.append(
                f"In the same processes, {words.interval_words(confirmation.second)}"
                f" {FACTOR.get(objective, objective)}; not part of the decision."
            )
    elif result.trials:
        lines.append("Nothing was confirmed in fresh processes, so there is no speed-up to report.")
    if tuned(result) and result.loss.verdict != "unchanged" and result.reason:
        lines.append(sentence(result.reason))
    if result.untried:
        lines.append(f"Not tried: {words.clean(result.untried)}.")
    noise = result.observation.noise
    if words.known(noise) and noise >= words.NOISY:
        lines.append(
            f"This machine was noisy: repeated blocks of the unchanged job varied by {100 * noise:.0f}%"
            " (standard deviation). Smaller gains are lost in the noise; stop other programs and"
            " run again."
        )
    return lines


def unbeaten_rows(result: Result) -> list[tuple[str, str, str]]:
    """(knobs, factor by first objective, by second) of each configuration on the Pareto front.

    [] if the run has only one objective.
    """
    return [
        (
            words.config_words(point.config) if point.config else "as it is",
            words.factor_words(point.first),
            words.factor_words(point.second),
        )
        for point in result.points
        if not point.beaten
    ]


def objective_words(result: Result) -> tuple[str, str]:
    """Column headings for the two factors of :func:`unbeaten_rows`."""
    first, second = (
        FACTOR.get(str(result.environment.get(name)), "")
        for name in ("objective", "second_objective")
    )
    return f"× {first}", f"× {second}"


def whole_training(result: Result) -> str:
    """How long the planned training takes with the adopted settings, and what it costs."""
    training = result.confirmation.training if result.confirmation else None
    if training is None:
        return words.NOT_MEASURED
    seconds = training.after_s if tuned(result) else training.before_s
    return priced(seconds, result.environment.get("price"))


def priced(seconds: float, price: object) -> str:
    """``1 h 05 min (2.71)``; ``price``: machine price per hour, None if unknown."""
    cost = f" ({words.number_words(price * seconds / 3600)})" if words.known(price) else ""
    return f"{words.duration_words(seconds)}{cost}"


def training_words(training: TrainingTime, price: object = None) -> str:
    """``20,000 steps (planned_steps), start to end: about 7 min 40 s before, 3 min 55 s after, 1.96×
    overall.``

    ``price``: see :func:`priced`.
    """
    before, after, cold = (
        priced(seconds, price) for seconds in (training.before_s, training.after_s, training.cold_s)
    )
    first = f" ({cold} the first time, while it compiles)" if cold != after else ""
    without = "" if training.whole else ", not counting evaluation and saving (none was seen)"
    return (
        f"{training.steps:,} steps (planned_steps), start to end: about {before} before, {after}"
        f" after{first}, {words.factor_words(training.before_s / training.after_s)} overall{without}."
    )


def _confirmed(result: Result, confirmation: Confirmation) -> str:
    runs = words.plural(confirmation.pairs, "fresh process", "fresh processes")
    if tuned(result):
        how = "in short slices" if confirmation.interleaved else "run by run"
        said = f"Measured in {runs} per side, alternating {how}, with the knobs set from the start."
        return f"{said} {FIRST_EPOCH}" if confirmation.first_epoch_only else said
    reason = words.clean(confirmation.reason).rstrip(".")
    config = words.config_words(confirmation.config)
    if confirmation.pairs == 0:
        return f"The last finalist, {config}, was ruled out" + (f": {reason}." if reason else ".")
    said = (
        f"The last finalist, {config}, came to {words.interval_words(confirmation.speedup)} in"
        f" {runs} per side"
    )
    # often the same as the run's own reason: do not repeat it
    return (
        f"{said}." if not reason or reason in words.clean(result.reason) else f"{said}: {reason}."
    )


def _tried(result: Result) -> str:
    counts = Counter(trial.state for trial in result.trials)
    others = [f"{count} {words.clean(s)}" for s, count in counts.items() if s != "complete"]
    were = "was" if len(result.trials) == 1 else "were"
    said = f"{words.plural(len(result.trials), 'configuration')} {were} tried"
    return f"{said} ({', '.join(others)})" if others else said


def tried(result: Result) -> str:
    """``18 configurations were tried (3 pruned, 1 infeasible) in 6 min 12 s``"""
    if result.trials:
        what = _tried(result)
    elif result.recalled.outcome == PROVEN_ANEW:
        what = "the recorded answer was proven again, without a search,"
    else:
        what = "no configuration was tried"
    said = f"{what} in {words.duration_words(result.wall_s)}"
    if not result.disturbed:
        return said
    windows = words.plural(result.disturbed, "window")
    were = "was" if result.disturbed == 1 else "were"
    return f"{said}; {windows} {were} measured again ({words.clean(result.disturbed_why)})"


def loss_story(result: Result) -> LossStory:
    """What was certified and what was not, from :func:`~autotune.verdict.words.certificate`."""
    loss = result.loss
    title = LOSS_TITLES.get(loss.verdict, f"Loss {words.clean(loss.verdict)}")
    said, mark, limit = words.clean(certificate(loss)).partition("Not certified:")
    return LossStory(
        title, said.strip(), f"{mark}{limit}", loss.verdict in ("unchanged", "not-needed")
    )


def anatomies(result: Result) -> tuple[Anatomy, Anatomy | None]:
    """Anatomies before and after tuning; after is None unless a tuned result was confirmed.

    Both come from fresh processes if confirmed; otherwise "before" is the observed job.
    """
    confirmation = result.confirmation
    if tuned(result) and confirmation is not None and confirmation.anatomy is not None:
        return confirmation.baseline_anatomy or result.observation.anatomy, confirmation.anatomy
    return result.observation.anatomy, None


def iteration_words(anatomy: Anatomy, unit: str) -> str:
    """Iteration time spread, the reader's share, throughput, and the number of iterations measured.

    ``unit``: what throughput counts, see :class:`~autotune_spaces.facts.JobFacts`.
    """
    spread = (
        f"median {words.duration_words(anatomy.median_s)}, from"
        f" {words.duration_words(anatomy.min_s)} to {words.duration_words(anatomy.max_s)}"
    )
    batch = f"mean {words.duration_words(anatomy.batch_cost_s)}"
    if anatomy.reader_cost_s:  # 0: no loader
        reader = words.duration_words(anatomy.reader_cost_s)
        batch += f", of which {reader} ({anatomy.reader_ratio:.0%}) waiting for data"
    counted = f"{anatomy.iterations} iterations, the first {anatomy.left_out} left out"
    return (
        f"{spread}; {batch}; {words.number_words(anatomy.samples_per_s)} {words.clean(unit)}/s;"
        f" {counted}"
    )


LEAST_EPOCH_ENDS = 0.01  # share of an iteration above which they are shown
LIKE_SIZES = 1.2  # iterations whose sample counts differ by a smaller factor count as equal


def unlike_iterations(result: Result) -> str:
    """A warning if iterations are not comparable because the batch size changed; else ""."""
    sizes = [
        side.samples_per_s * (side.iteration_s + side.epoch_ends_s)
        for side in anatomies(result)
        if side is not None and words.known(side.samples_per_s) and words.known(side.iteration_s)
    ]
    if len(sizes) < 2 or min(sizes) <= 0 or max(sizes) / min(sizes) < LIKE_SIZES:
        return ""
    unit = words.clean(result.observation.job.sample_unit)
    return (
        f"After tuning an iteration has about {words.factor_words(sizes[1] / sizes[0])} the {unit}:"
        f" compare {unit} per second, not iterations."
    )


def phase_rows(sides: Iterable[Anatomy]) -> list[PhaseRow]:
    """Seconds per iteration in each phase; phases that take no time on any side are omitted."""
    sides = list(sides)
    names = dict.fromkeys([*PHASES, *(phase for side in sides for phase in side.phases_s)])
    rows = [
        PhaseRow(
            name,
            PHASE_WORDS.get(name, words.clean(name, 40)),
            tuple(_known(side.phases_s.get(name, 0.0)) for side in sides),
        )
        for name in names
    ]
    return [row for row in rows if any(row.seconds)]


def epoch_ends(sides: Iterable[Anatomy]) -> PhaseRow | None:
    """Seconds lost at epoch ends, spread over an epoch's iterations, which do not include them; None
    if they are negligible on every side.
    """
    sides = list(sides)
    seconds = tuple(_known(side.epoch_ends_s) for side in sides)
    if not any(
        lost_s > LEAST_EPOCH_ENDS * side.iteration_s
        for lost_s, side in zip(seconds, sides, strict=True)
    ):
        return None
    return PhaseRow("epoch_ends", "epoch ends, on top", seconds)


def _known(seconds: float) -> float:
    return max(seconds, 0.0) if words.known(seconds) else 0.0


def ceiling_words(observation: Observation) -> str:
    """The speed-up an infinitely fast loader would give.

    "" if unknown or negligible, or if the bottleneck's reason already states it.
    """
    ceiling, told = observation.ceiling, "infinitely fast" in observation.bottleneck_why
    if told or not words.known(ceiling) or ceiling < NO_FASTER:
        return ""
    return f"with an infinitely fast loader it would run {words.factor_words(ceiling)} as fast"


def rejected_rows(result: Result) -> list[tuple[str, str]]:
    """(configuration, reason) of each configuration rejected after the search.

    A reason that the headline already gives is shortened.
    """
    said = headline(result)
    reasons = [(r, words.clean(r.reason)) for r in result.rejected]
    return [
        (words.config_words(r.config), reason.partition(":")[0] if reason in said else reason)
        for r, reason in reasons
    ]


def withdrawn_rows(result: Result) -> list[tuple[str, str]]:
    """(knobs, why they were left out), one row per reason."""
    rows: dict[str, list[str]] = {}
    for knob, reason in result.observation.withdrawn.items():
        rows.setdefault(words.clean(reason, 600), []).append(words.clean(knob, 60))
    return [(", ".join(knobs), reason) for reason, knobs in rows.items()]


def next_commands(result: Result, run_dir: Path) -> list[tuple[str, str]]:
    """(command, what it does); the commands can be typed as shown."""
    shown = shown_path(run_dir)
    where, config = shlex.quote(shown), shlex.quote(str(Path(shown) / "tuned.yaml"))
    lines = {}
    if tuned(result):
        lines[f"autotune launch {config}"] = "run the job, tuned"
        as_patch = f"autotune export {where} --format diff"
        lines[as_patch] = "as a patch to your source; also shell, sbatch …"
    elif result.trials:
        lines[f"autotune show {where} --trials"] = "every configuration tried"
    if _in_mlflow(run_dir):
        lines[f"autotune ui {where}"] = "compare the trials in MLflow"
    return list(lines.items())


def _in_mlflow(run_dir: Path) -> bool:
    """Whether the run was tracked in MLflow; False with `tracking: {uri: null}`."""
    from autotune.errors import InputError
    from autotune.tracking.sync import target_of

    try:
        return target_of(run_dir)[0] is not None
    except InputError:  # a result.json that was copied from elsewhere
        return True


def shown_path(path: Path) -> str:
    """``path`` as a user would type it here: relative if below this directory, else absolute.

    Characters that would disturb the line it is printed in are removed.
    """
    relative = os.path.relpath(path)
    return words.clean(relative if not relative.startswith("..") else str(Path(path).absolute()))


def command_words(result: Result) -> str:
    """The job's command line with secrets masked: pages are shared more than run directories."""
    command = result.environment.get("command", "")
    if isinstance(command, (list, tuple)):
        return words.clean(shlex.join(mask_command([str(word) for word in command])))
    return words.clean(mask_url(str(command)))


def sentence(text: str) -> str:
    """``text`` cleaned, starting with a capital and ending with a full stop; "" stays ""."""
    line = words.clean(text)
    if not line:
        return ""
    first = line.split(" ", 1)[0]
    if first.isalpha() and first != line:  # a word, not a knob name or an assignment
        line = line[0].upper() + line[1:]
    return line if line.endswith((".", "!", "?", "…")) else line + "."
