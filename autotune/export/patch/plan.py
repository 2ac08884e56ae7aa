"""Maps each knob to its transformation and combines the results into a patch.

knob ──▶ transformation ──▶ Change (edits) ──┐
                └─ Refused: named in the header, with what to do instead
                                             └▶ edited files ──▶ unified diff
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from autotune.export.launching import knobs_of
from autotune.export.patch.autocast import autocast
from autotune.export.patch.context import Change, Context
from autotune.export.patch.edits import apply
from autotune.export.patch.libraries import option
from autotune.export.patch.loader import KNOBS as LOADER_KNOBS
from autotune.export.patch.loader import loader_arguments
from autotune.export.patch.model import channels_last, compiled
from autotune.export.patch.optimizer import optimizer_implementation
from autotune.export.patch.source import Refused, SourceFile, SourceTree
from autotune.export.patch.start import before_torch, environment, switch
from autotune.export.patch.transfers import non_blocking
from autotune.export.patch.wrapper import ARGUMENT, wrapper_argument
from autotune.export.shell_words import shown
from autotune.export.tuned import TunedConfig
from autotune_spaces.base import VARIABLE_PREFIX, Knob, Value
from autotune_spaces.knobs.via import ViaKnob

CPU_NUMBERS = re.compile(r"[\d,-]+")  # such as 0-3,8

TRANSFORMATIONS: dict[str, Callable[[Context], Change]] = {
    "channels_last": channels_last,
    "compile_mode": compiled,
    "amp_dtype": autocast,
    "optimizer_impl": optimizer_implementation,
    "non_blocking": non_blocking,
}


@dataclass(frozen=True)
class Written:
    """Knobs that the patch sets."""

    knobs: tuple[str, ...]
    change: Change


@dataclass(frozen=True)
class Unwritten:
    """A knob that the patch does not set; ``instead``: what to do about it, may be ""."""

    knob: str
    reason: str
    instead: str = ""


@dataclass(frozen=True)
class Patch:
    """The combined result. ``files``: name -> (text before, text after), changed files only."""

    files: dict[str, tuple[str, str]]
    written: tuple[Written, ...]
    unwritten: tuple[Unwritten, ...]


def make_patch(tuned: TunedConfig) -> Patch:
    """Apply every knob that can be written to an in-memory copy of the job's files."""
    context = Context(tuned, SourceTree(tuned.workdir))
    written: list[Written] = []
    unwritten: list[Unwritten] = []
    for knobs, transformation in _transformations(context):
        try:
            written.append(Written(knobs, transformation()))
        except Refused as reason:
            unwritten += [Unwritten(knob, str(reason), _instead(context, knob)) for knob in knobs]
    files = {}
    for file in context.tree.files.values():
        edits = [e for w in written for e in w.change.edits if e.file is file]
        after = apply(file, edits) if edits else file.text
        if after != file.text:
            _check(after, file)
            files[file.name] = (file.mark + file.text, file.mark + after)
    return Patch(files, tuple(written), tuple(unwritten))


def _check(after: str, file: SourceFile) -> None:
    """Raises SyntaxError: ``after`` is no Python, though the file was. The job's Python may be
    newer than this one.
    """
    try:
        compile(file.text, file.name, "exec", dont_inherit=True)
    except SyntaxError:
        return
    compile(after, file.name, "exec", dont_inherit=True)


def _transformations(context: Context) -> list[tuple[tuple[str, ...], Callable[[], Change]]]:
    """Groups of knobs with their transformation; knobs that share a call form one group."""
    knobs = knobs_of(context.tuned)
    loader = tuple(name for name in knobs if name in LOADER_KNOBS)
    # batch_size is separate, so that it can be refused alone (learning rate not in the call)
    steady = tuple(name for name in loader if name != "batch_size")
    found: list[tuple[tuple[str, ...], Callable[[], Change]]] = []
    for group in (steady, ("batch_size",) if "batch_size" in loader else ()):
        if group:
            found.append((group, partial(loader_arguments, context, group)))
    rest = [name for name in knobs if name not in loader and name not in TRANSFORMATIONS]
    found += [((name,), partial(_at_start, context, name, knobs[name])) for name in rest]
    return found + [
        ((name,), partial(_switched_on, context, name)) for name in TRANSFORMATIONS if name in knobs
    ]


def _switched_on(context: Context, name: str) -> Change:
    if context.value(name) in ("off", False):
        raise Refused("it is off, which is the default; remove what turns it on")
    return TRANSFORMATIONS[name](context)


def _at_start(context: Context, name: str, knob: Knob) -> Change:
    value = context.value(name)
    if isinstance(knob, ViaKnob):
        raise Refused("it is a setting of the job's own, given outside the source")
    variables = _variables(knob, value)
    if variables:
        return environment(context, variables)
    if name == "cpu_affinity" and not CPU_NUMBERS.fullmatch(str(value)):
        raise Refused("which cores these are depends on the machine that the job runs on")
    lines = knob.snippet(value).splitlines()
    code = "\n".join(line.partition("  #")[0].strip() for line in lines)
    if ARGUMENT.fullmatch(code):
        return wrapper_argument(context, code)
    if not code.startswith(("torch.", "os.")) or "\n" in code or "..." in code:
        raise Refused("autotune cannot write this setting into source")
    return switch(context, code) if code.startswith("torch.") else before_torch(context, [code])


def _variables(knob: Knob, value: Value) -> dict[str, str]:
    """Environment variables that set the knob; {} if only the agent reads them."""
    variables = knob.environment(value)
    return {} if any(name.startswith(VARIABLE_PREFIX) for name in variables) else variables


def _instead(context: Context, name: str) -> str:
    """What to do about a knob that could not be written."""
    knob, value, sites = knobs_of(context.tuned)[name], context.value(name), context.sites
    if isinstance(knob, ViaKnob):
        return f"set it yourself: {knob.via or '{' + name + '}'} -> {shown(value)}"
    calls = [sites.loader.call] if sites.loader and name in LOADER_KNOBS else []
    stacks = [*(f.stack for f in sites.forwards), *(b.stack for b in sites.backwards)]
    calls += [stack[0] for stack in stacks if stack and name in TRANSFORMATIONS]
    for call in calls:
        owned = "" if call.own else option(context.tuned, name, call.file)
        if owned:
            # the learning rate of another batch size
            more = knob.snippet(value).splitlines()[1:] if name == "batch_size" else []
            return "\n".join([f"its own option: {owned}", *more])
    variables = _variables(knob, value)
    if variables:
        return "set it where the job is started: " + " ".join(
            f"{k}={v}" for k, v in variables.items()
        )
    return knob.snippet(value)
