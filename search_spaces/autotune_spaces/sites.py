"""Where in somebody's source the job does what a knob is about: its DataLoader, its optimizers, the
forward region.

Gathered in warm-up, so that a person (or a patch of the source) finds the place again. Files of the
job's own are named relative to the directory it was started in, where they lie below it; library
files relative to where libraries are installed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceCall:
    """One call expression, exactly as it stood."""

    file: str
    line: int  # from 1
    column: int  # in characters, from 0; -1 where Python keeps no columns (PYTHONNODEBUGRANGES)
    end_line: int
    end_column: int  # one past its last character
    text: str  # the call as it stood, so that a later change of the file is noticed
    function: str  # qualified name of the function it stands in, "<module>" at top level
    own: bool  # the job's own source, not a library's
    # in a ForwardSite: what the module is called there ("model", "self.net"), "" if it has no name
    binding: str = ""


@dataclass(frozen=True)
class BuiltSite:
    """Where an object was built."""

    call: SourceCall
    kind: str  # its class, "torch.optim.adamw.AdamW"
    # of its constructor, in order; "*" before those that take no position, "**": any other keyword
    # too
    parameters: tuple[str, ...] = ()
    others: int = 0  # objects for other data that the same call built
    # of an optimizer: its default learning rate, None if it has none or a group has its own
    lr: float | None = None


@dataclass(frozen=True)
class ForwardSite:
    """A call of a top-level module in training. ``stack``: the call first, then the job's own calls
    that led to it, innermost first.
    """

    module: str  # class name
    stack: tuple[SourceCall, ...]
    # arguments with 4 or 5 dimensions: ("0", 4) by position, ("pixels", 4) by name
    images: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class BackwardSite:
    """A call that differentiates. ``stack`` as in ForwardSite: where a library makes the call, that
    one comes first.
    """

    stack: tuple[SourceCall, ...]
    # index in JobSites.forwards of the first call since the last backward; -1: none
    forward: int = -1


@dataclass(frozen=True)
class SettingSite:
    """The job's own call of a global switch of torch."""

    name: str  # "set_num_threads", "set_float32_matmul_precision"
    call: SourceCall


@dataclass(frozen=True)
class JobSites:
    program: str = ""  # the file the process was started with; "" if none of the job's own
    loader: BuiltSite | None = None
    optimizers: tuple[BuiltSite, ...] = ()
    forwards: tuple[ForwardSite, ...] = ()
    backwards: tuple[BackwardSite, ...] = ()
    steps: tuple[SourceCall, ...] = ()  # calls of an optimizer's step
    transfers: tuple[SourceCall, ...] = ()  # copies of tensors to the GPU
    settings: tuple[SettingSite, ...] = ()
