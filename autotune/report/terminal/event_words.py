"""Events of a run as text, one line each."""

from __future__ import annotations

from autotune import words
from autotune.report.progress import Event
from autotune.report.text.story import ceiling_words
from autotune.results import Confirmation, LossVerdict, Observation, Trial


def event_words(event: Event) -> str:
    """One event as one line of plain text."""
    data, source = event.data, event.source
    if event.kind == "stage":
        detail = f": {words.clean(data['detail'])}" if data["detail"] else ""
        return f"== {words.clean(data['name'])}{detail}"
    if event.kind == "note":
        return words.clean(data["text"])
    if event.kind == "warning":
        return f"warning: {words.clean(data['text'])}"
    if event.kind == "measuring":
        return f"measuring {words.clean(data['label'])}: {words.config_words(data['config'])}"
    if event.kind == "fixed_run":
        config = "" if data["config"] is None else f": {words.config_words(data['config'])}"
        return f"run {data['index']} of {data['total']}, {words.clean(data['label'])}{config}"
    if event.kind == "observed":
        return observed_words(source["observation"])
    if event.kind == "trial":
        return trial_line(source["trial"], source["best"])
    if event.kind == "confirmed":
        return confirmed_words(source["confirmation"])
    if event.kind == "loss":
        verdict: LossVerdict = source["verdict"]
        reason = f": {words.clean(verdict.reason)}" if verdict.reason else ""
        config = words.config_words(data["config"])
        return f"loss {words.clean(verdict.verdict)} for {config}{reason}"
    return words.clean(event.kind)


def observed_words(observation: Observation) -> str:
    anatomy = observation.anatomy
    parts = [
        f"bottleneck {words.clean(observation.bottleneck)}:"
        f" {words.clean(observation.bottleneck_why)}".rstrip(": ."),
        (
            f"{words.duration_words(anatomy.iteration_s)} per iteration,"
            f" {words.number_words(anatomy.samples_per_s)}"
            f" {words.clean(observation.job.sample_unit)}/s"
        ),
        (
            f"{words.plural(len(observation.domains), 'knob')} to search,"
            f" {len(observation.withdrawn)} not applicable"
        ),
    ]
    ceiling = ceiling_words(observation)
    if ceiling:
        parts.insert(1, ceiling)
    return "; ".join(parts)


def trial_line(trial: Trial, best: Trial | None) -> str:
    text = f"trial {trial.number}: {words.config_words(trial.config)}: {words.trial_words(trial)}"
    if trial.speedup is not None and trial.state != "complete":
        text += f", {words.clean(trial.state)}"
    if trial.reason:
        text += f" ({words.clean(trial.reason, 160)})"
    if best is not None:
        text += (
            "  [best so far]"
            if best.number == trial.number
            else f"  [best {words.factor_words(best.speedup)}]"
        )
    return text


def confirmed_words(confirmation: Confirmation) -> str:
    config = words.config_words(confirmation.config)
    runs = words.plural(confirmation.pairs, "fresh process", "fresh processes")
    # the reason has the figures; that of an adoption has nothing else
    if confirmation.reason and not confirmation.adopted:
        return f"not confirmed {config}, {runs} per side: {words.clean(confirmation.reason)}"
    said = "confirmed" if confirmation.adopted else "not confirmed"
    return f"{said} {config}: {words.interval_words(confirmation.speedup)} in {runs} per side"
