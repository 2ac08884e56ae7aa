"""Exports the settings as code to paste into one's own program, so no launcher is needed."""

from __future__ import annotations

from autotune.export.formats.base import Format
from autotune.export.launching import knobs_of
from autotune.export.shell_words import comment, head, in_words
from autotune.export.tuned import TunedConfig
from autotune_spaces.knobs.via import ViaKnob

_DDP = "DistributedDataParallel(..., "
# Calls that several knobs add arguments to: start of such a snippet -> (variable, place)
_CALLS = {
    "DataLoader(..., ": ("loader", "Where the training data is read."),
    _DDP: ("model", "Where the model is wrapped."),
}
# Start of a snippet -> where it belongs; in program order.
_PLACES = (
    ("os.", "Before torch is imported."),
    ("# before Python", "Before Python starts."),
    ("torch.", "Once, at the start."),
    ("data =", "Before the data is read."),
    ("gc.", "Once, after model and data are built."),
    ("model", "Where the model is made."),
    ("for block", "Where the model is made."),
    ("optimizer =", "Where the optimizer is made."),
    (
        "for group",
        "Once, after the optimizer is made and before its scheduler. Code that sets learning rates"
        " of its own (OneCycleLR, eta_min, an assignment to param_groups) needs the factor, too.",
    ),
    ("", "In the training loop."),
)


def write(tuned: TunedConfig) -> str:
    lines = head(tuned, "tuned settings as code")
    if not tuned.knobs:
        return "\n".join(lines) + "\n"
    lines += ["#", *comment("Snippets to paste, not a program: ... stands for your own code.")]
    pieces: dict[str, list[str]] = {}
    # start of a call -> its arguments, collected from several knobs
    arguments: dict[str, list[str]] = {}
    notes: dict[str, list[str]] = {}
    other: list[str] = []
    for name, knob in knobs_of(tuned).items():
        choice = tuned.knobs[name]
        snippet = knob.snippet(choice.value)
        note = comment(in_words(name, choice))
        first, *rest = snippet.splitlines() or [""]
        call = next(
            (start for start in _CALLS if first.startswith(start) and first.endswith(")")), ""
        )
        if call:
            given = arguments.setdefault(call, [])
            given += [word for word in first[len(call) : -1].split(", ") if word not in given]
            notes.setdefault(call, []).extend(note)
            snippet = "\n".join(rest)
            note = comment(f"with {name}:")
        if not snippet:
            if not first:
                other += [*note, *comment(_elsewhere(knob, choice.value))]
            continue
        place = next(text for start, text in _PLACES if snippet.startswith(start))
        body = snippet.splitlines() if _valid(snippet) else comment(snippet)
        pieces.setdefault(place, []).extend([*note, *body])
    for call, given in arguments.items():
        variable, place = _CALLS[call]
        site = (
            f"  # {tuned.provenance.loader_key.rpartition('#')[0]}"
            if variable == "loader" and tuned.provenance.loader_key
            else ""
        )
        pieces[place] = [
            *notes[call],
            f"{variable} = {call}{', '.join(given)})" + " ".join(site.splitlines()),
        ]
    used = [
        name
        for name in ("gc", "os", "shutil", "tempfile")
        if any(f"{name}." in line for body in pieces.values() for line in body)
    ]
    lines += ["", *(f"import {name}" for name in used), *([""] if used else []), "import torch"]
    if "DataLoader(..., " in arguments:
        lines.append("from torch.utils.data import DataLoader")
    if _DDP in arguments:
        lines.append("from torch.nn.parallel import DistributedDataParallel")
    order = (
        [text for _, text in _PLACES[:-1]]
        + [place for _, place in _CALLS.values()]
        + [_PLACES[-1][1]]
    )
    for place in dict.fromkeys(order):  # several starts have the same place
        if place in pieces:
            lines += ["", f"# -- {place}", *pieces[place]]
    if other:
        lines += ["", "# -- Not code.", *other]
    return "\n".join(lines) + "\n"


def _elsewhere(knob: object, value: object) -> str:
    if isinstance(knob, ViaKnob):
        return (
            f"  set it on the command line or in the environment: {knob.via or knob.name} ->"
            f" {value}"
        )
    return "  nothing to write: this is the default"


def _valid(snippet: str) -> bool:
    try:
        compile(snippet, "snippet", "exec")
    except SyntaxError:
        return False
    return True


PYTHON = Format("python", "the lines to write into your own program", write)
