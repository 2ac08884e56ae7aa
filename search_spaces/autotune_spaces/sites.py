"""Where in the source code the job does what knobs control: its DataLoader, its optimizers, the
forward region.

Collected during warm-up, so that a person (or a source patch) can find the place again. The job's
own files are named relative to the directory it was started in, if they lie below it; library files
relative to the directory that libraries are installed in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceCall:
    """One call expression, exactly as written."""

    file: str
    line: int  # from 1
    column: int  # in characters, from 0; -1 if Python records no columns (PYTHONNODEBUGRANGES)
    end_line: int
    end_column: int  # one past its last character
    text: str  # the call as written, to detect later changes of the file
    function: str  # qualified name of the enclosing function, "<module>" at top level
    own: bool  # the job's own source, not a library's
    # in a ForwardSite: the module's name there ("model", "self.net"), "" if it has none
    binding: str = ""


@dataclass(frozen=True)
class BuiltSite:
    call: SourceCall
    kind: str  # its class, "torch.optim.adamw.AdamW"
    # constructor parameters in order; "*" precedes keyword-only ones, "**": any other keyword too
    parameters: tuple[str, ...] = ()
    others: int = 0  # objects for other data built by the same call
    # an optimizer's default learning rate; None if it has none or a group states its own
    lr: float | None = None
    stepped: bool = True  # an optimizer: has it stepped while the run was recorded?


@dataclass(frozen=True)
class ForwardSite:
    """A call of a top-level module in training. ``stack``: that call, then the job's own calls that
    led to it, innermost first.
    """

    module: str  # class name
    stack: tuple[SourceCall, ...]
    # arguments with 4 or 5 dimensions: ("0", 4) by position, ("pixels", 4) by name
    images: tuple[tuple[str, int], ...] = ()
    of_torch: bool = False  # its forward is one of torch.nn's own, such as Sequential's


@dataclass(frozen=True)
class BackwardSite:
    """A call that starts a backward pass. ``stack`` as in ForwardSite: if a library makes the call,
    the library's line comes first.
    """

    stack: tuple[SourceCall, ...]
    # index in JobSites.forwards of the first call since the last backward; -1: none
    forward: int = -1


@dataclass(frozen=True)
class SettingSite:
    """The job's own call that sets a global torch switch."""

    name: str  # "set_num_threads", "set_float32_matmul_precision"
    call: SourceCall


@dataclass(frozen=True)
class JobSites:
    program: str = ""  # the file the process was started with; "" if it is not the job's own
    loader: BuiltSite | None = None
    optimizers: tuple[BuiltSite, ...] = ()
    forwards: tuple[ForwardSite, ...] = ()
    backwards: tuple[BackwardSite, ...] = ()
    steps: tuple[SourceCall, ...] = ()  # optimizer.step() calls
    transfers: tuple[SourceCall, ...] = ()  # copies of tensors to the GPU
    settings: tuple[SettingSite, ...] = ()
    # transfers of pinned tensors that no DataLoader gave: the job may refill them for the next copy
    refilled: tuple[SourceCall, ...] = ()
