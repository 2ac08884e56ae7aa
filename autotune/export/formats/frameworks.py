"""Exports the settings as arguments of a framework's Trainer; those it lacks become comments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from pprint import pformat

from autotune.errors import InputError
from autotune.export.formats.base import Format
from autotune.export.launching import knobs_of
from autotune.export.shell_words import comment, head, in_words
from autotune.export.tuned import TunedConfig
from autotune_spaces.base import Value
from autotune_spaces.sites import JobSites

Arguments = Mapping[str, Value]


@dataclass(frozen=True)
class Framework:
    """A framework.

    ``spell``: (tuned, knob) -> argument group -> arguments for the knob's value; {} if it has none.
    ``notes``: comments on those arguments.
    """

    name: str  # of the format
    title: str
    libraries: tuple[str, ...]  # packages that build the loader or run the loop for the job
    usage: str
    spell: Callable[[TunedConfig, str], Mapping[str, Arguments]]
    notes: Callable[[TunedConfig, Mapping[str, Arguments]], Sequence[str]] = lambda tuned, groups: ()


def write(framework: Framework, tuned: TunedConfig) -> str:
    """The file's text: one dict per argument group, everything else as comments.

    Raises:
        InputError: the job does not train with this framework.
    """
    _check(framework, tuned.provenance.sites)
    groups: dict[str, dict[str, Value]] = {}
    said, unsaid = [], []
    knobs = knobs_of(tuned)
    for name, choice in tuned.knobs.items():
        words = framework.spell(tuned, name)
        for group, arguments in words.items():
            groups.setdefault(group, {}).update(arguments)
        if words:
            said.append(in_words(name, choice))
        else:
            unsaid.append((in_words(name, choice), knobs[name].snippet(choice.value)))
    lines = [*head(tuned, f"tuned settings as arguments of {framework.title}"), "#"]
    lines += comment(framework.usage)
    lines += [text for words in said for text in comment(f"  {words}")]
    lines += [text for note in framework.notes(tuned, groups) for text in comment(note)]
    if "batch_size" in tuned.knobs:
        snippet = knobs["batch_size"].snippet(tuned.knobs["batch_size"].value)
        _, scaled, factor = snippet.rpartition(" *= ")
        lines += comment(
            f"Multiply the learning rate by {factor}: this batch size was proven with that."
            if scaled
            else "Leave the learning rate as it is: this batch size was proven with it."
        )
    for group, arguments in groups.items():
        lines += ["", f"{group} = {pformat(dict(arguments), sort_dicts=False)}"]
    if unsaid:
        lines += [
            "",
            *comment(f"Not arguments of {framework.title}. `autotune launch` sets them; as code:"),
        ]
        for name, snippet in unsaid:
            lines += [*comment(f"  {name}"), *comment(snippet, "#     ")]
    return "\n".join(lines) + "\n"


def loader_words(knob: str, value: Value) -> Arguments:
    """Arguments of a DataLoader; without workers, torch refuses two that the job may pass."""
    if knob == "num_workers" and not value:
        return {knob: value, "persistent_workers": False, "prefetch_factor": None}
    return {knob: value}


def _check(framework: Framework, sites: JobSites) -> None:
    files = [site.call.file for site in (sites.loader, *sites.optimizers) if site is not None]
    files += [site.stack[0].file for site in sites.forwards if site.stack]
    files += [site.stack[0].file for site in sites.backwards if site.stack]
    files += [step.file for step in sites.steps]
    seen = {PurePath(file).parts[0] for file in files if file}
    if not seen & set(framework.libraries):
        raise InputError(
            f"the job does not train with {framework.title}",
            where=f"--format {framework.name}",
            expected=f"a job whose loop is run by {' or '.join(framework.libraries)}",
            remedy="--format python has the lines for a loop of your own",
        )


def format_of(framework: Framework) -> Format:
    """The export format of ``framework``."""
    summary = f"arguments for {framework.title}"
    return Format(framework.name, summary, partial(write, framework))
