"""What a knob is.

    domain(machine, job)      the values worth trying here, including the job's own, or why there are none
    current(machine, job)     the job's own value: the baseline
    apply(live, value)        set it in the running job             (live knobs)
    environment(value)        set it before the process starts      (process knobs)
    command(argv, value)      set it on the job's command line      (``via:`` knobs)
    effect(live, value)       after a few iterations: did it really change anything?

Some process knobs need more than a variable. Whoever starts the process, an executor or ``autotune
launch``, calls these hooks for them:

    survey(start)              where sessions run, once, before the domain is requested
    prepare(start, value)      before every start, for variables that depend on what is already set
    at_start(environ)          in every Python process of the command, before any of the job's imports
    at_import(torch, environ)  in the training process, right after ``import torch``

A *configuration* maps knob names to values and holds only what differs from the job's own setting:
the baseline is ``{}``. A new knob is one file in ``knobs/`` and one line in ``knobs/__init__.py``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from autotune_spaces.facts import JobFacts, Machine

Value = str | int | float | bool | None
Config = Mapping[str, Value]

VARIABLE_PREFIX = "AUTOTUNE_KNOB_"  # see Knob.own_variable


class Scope(str, enum.Enum):
    """When a knob can be set."""

    LIVE = "live"  # between two blocks of iterations of a running job
    PROCESS = "process"  # before the process starts


class Numerics(str, enum.Enum):
    """What a knob may change in the job's arithmetic; it decides what the loss check must show."""

    EXACT = "exact"  # the same arithmetic
    ROUNDING = "rounding"  # the same mathematics, rounded differently
    STATISTICAL = "statistical"  # a different training trajectory

    @property
    def severity(self) -> int:
        return list(Numerics).index(self)


class NotApplicable(Exception):
    """This knob is out of the search for this job on this machine; ``str()`` is the reason shown."""


@dataclass(frozen=True)
class Card:
    """What a user should know about a knob. Each field is one or two plain sentences."""

    what: str
    when_it_helps: str
    when_it_does_not: str
    changes_loss: str
    source: str  # documentation or paper


@dataclass(frozen=True)
class Domain:
    """The values of a knob in one search.

    ``values`` is ordered from least to most; it always holds ``default``, the job's own value.
    """

    values: tuple[Value, ...]
    default: Value

    def __post_init__(self) -> None:
        if not any(same(self.default, v) for v in self.values):
            raise ValueError(f"the domain {self.values} lacks the job's own value {self.default!r}")


def same(a: Value, b: Value) -> bool:
    """Equality that also compares types: True is not 1."""
    return type(a) is type(b) and a == b


def not_whole(value: Value, least: int) -> str | None:
    """Why ``value`` is not a whole number of at least ``least``, or None if it is."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return None
    return f"{value!r} is not a whole number ≥ {least}"


def nearest(word: object, words: Iterable[str]) -> str:
    """The valid word most similar to ``word``, or "" if none is close."""
    import difflib

    close = difflib.get_close_matches(str(word).lower(), list(words), 1)
    return close[0] if close else ""


class Undone(str):
    """Why a knob that did something, perhaps only for a time, counts as without effect: the job set
    it back, it failed, or it did not do what it should.
    """


@dataclass(frozen=True)
class Start:
    """What a process is started with."""

    argv: tuple[str, ...]
    env: Mapping[str, str]  # the complete environment
    workdir: str  # absolute


class EntryModule(Protocol):
    """A top-level module that the job calls in training, with hooks through which knobs act on it."""

    @property
    def module(self) -> Any: ...

    def set_compiled(self, mode: str | None) -> None:
        """Run forward through ``torch.compile(mode=mode)``; None undoes this and resets dynamo."""

    def compiled_graphs(self) -> int:
        """Graphs compiled since the last :meth:`set_compiled`; 0 means compilation did nothing."""

    def set_channels_last(self, on: bool) -> None:
        """Keep parameters, optimizer state and 4-D inputs in channels_last (or the default format)."""


class LoaderControl(Protocol):
    """The training DataLoader; changes take effect at the next batch."""

    def set(self, **settings: Any) -> None:
        """Override constructor arguments: num_workers, prefetch_factor, persistent_workers,
        pin_memory, batch_size, in_order. ``None`` restores the job's own value. own_batch_size:
        apply batch_size only to loaders that the job builds with this batch size."""

    def own_batch_size(self) -> int | None:
        """The batch size the job itself built the DataLoader with; None if not known yet."""


class Control(Protocol):
    """One switch in the running job. The files in autotune_trials/agent/controls document names,
    values and effects.
    """

    def set(self, value: Any) -> None:
        """Set the value. Called between two optimizer steps, inside a forward pass or as a step
        begins. Idempotent; the job's own value restores the job exactly.
        """

    def effect(self) -> str | None:
        """Why :meth:`set` has changed nothing; None if it did, or if that cannot be determined."""


class LiveJob(Protocol):
    """What a knob may touch in the running job. Implemented by the agent.

    Every setter is idempotent; given the job's own value, it restores the job exactly.
    """

    torch: Any
    device: str
    cuda: Any  # the torch.device used for training, with its index, if it is a GPU; else None

    @property
    def loader(self) -> LoaderControl | None: ...

    @property
    def entries(self) -> Sequence[EntryModule]: ...

    @property
    def optimizers(self) -> Sequence[Any]: ...

    @property
    def replicas(self) -> Sequence[Any]:
        """The DistributedDataParallel modules the job built."""

    def control(self, name: str) -> Control:
        """The switch ``name``, see :class:`Control`. Raises KeyError if there is none."""


class Knob(ABC):
    """One runtime setting. Subclasses are stateless; one instance serves many jobs."""

    name: str
    # how it is set in the user's own runs: a live knob by the agent or in code, a process knob
    # before the start
    scope: Scope
    # values of a process knob that the search can set in a running job, and undo
    live_values: tuple[Value, ...] = ()
    # a running job shows less of their gain than a fresh one: a missing live gain proves nothing
    live_errs_against: bool = False
    numerics: Numerics
    card: Card
    # fingerprint paths that this knob changes on purpose, e.g. "optimizers.*.lr"
    declares: tuple[str, ...] = ()
    # devices on which dropout draws other random numbers: losses are then compared as
    # "random-stream"
    redraws: tuple[str, ...] = ()
    # True if it costs seconds at start (compile, cuDNN search): reported as break-even
    start_up_cost: bool = False
    # True if switching it in a running job takes seconds: a new source of batches
    costly: bool = False
    loader: bool = False  # True if it affects how batches are delivered, not the computation
    in_graph: bool = False  # True if compiled code depends on it: switching it recompiles
    ordered: bool = True  # numbers are tried in ascending order
    range: str = ""  # the values in words, for tables: "0, 1, 2, 4 … cores"
    allowed: tuple[Value, ...] = ()  # all its values; (): there are others, see check_value
    least: int | None = None  # its values are all whole numbers from this one on
    example: Value = True  # a value other than the usual one, for the card and for tests
    # options a user may give, and the allowed values of each
    accepts: Mapping[str, tuple[Value, ...]] = {}
    variables: tuple[str, ...] = ()  # of the job's environment, which prepare() replaces
    # values that prepare() sets from what it finds on the machine: environment() alone may miss it
    looked_up: tuple[Value, ...] = ()

    def __init__(
        self, values: Sequence[Value] | None = None, options: Mapping[str, Value] | None = None
    ) -> None:
        """``values``: the user's values, tried instead of the knob's own choice; ``options``: e.g.
        lr_scaling.
        """
        self.values = None if values is None else tuple(values)
        self.options = dict(options or {})

    @abstractmethod
    def current(self, machine: Machine, job: JobFacts) -> Value:
        """The value the job uses when left alone."""

    @abstractmethod
    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        """Values worth trying here, in order.

        Raises:
            NotApplicable: there are none; ``str()`` is the reason.
        """

    def domain(self, machine: Machine, job: JobFacts) -> Domain:
        """Candidates (or the user's values) plus the job's own value.

        Raises:
            NotApplicable: the knob does not apply, or only the job's own value is left.
        """
        candidates = list(self.candidates(machine, job))
        own = self.current(machine, job)
        refused: list[str] = []
        values: list[Value] = []
        for value in candidates if self.values is None else self.values:
            reason = None if same(own, value) else self.unusable(value, machine, job)
            if reason:
                refused.append(reason)
            elif not any(same(value, v) for v in values):
                values.append(value)
        if not any(same(own, v) for v in values):
            values.insert(0, own)
        if all(same(own, v) for v in values):
            raise NotApplicable(
                refused[0]
                if refused
                else f"{own!r}, the job's own value, is the only one that applies here"
            )
        if self.ordered and all(isinstance(v, (int, float)) for v in values):
            values.sort()
        return Domain(tuple(values), own)

    def scope_of(self, value: Value) -> Scope:
        """Whether ``value`` can be tried in a running job, or only in one started with it."""
        return Scope.LIVE if value in self.live_values else self.scope

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        """Why this job cannot use ``value`` on this machine, even on request; None if it can."""
        return None

    def parse(self, value: Value) -> Value:
        """``value`` as the user meant it: YAML reads an unquoted ``off`` as False."""
        return "off" if value is False and "off" in self.allowed else value

    def check_value(self, value: Value) -> str | None:
        """Why ``value`` is never valid for this knob (wrong type, unknown word), or None. Needs no
        job.
        """
        if self.least is not None:
            return not_whole(value, self.least)
        if not self.allowed or any(same(value, other) for other in self.allowed):
            return None
        if self.allowed == (False, True):
            return f"{value!r} is neither true nor false"
        return f"{value!r} is not one of {', '.join(map(str, self.allowed))}"

    def active(self, config: Config, defaults: Config) -> bool:
        """False where another knob's value makes this one meaningless (prefetching without
        workers).
        """
        return True

    def apply(self, live: LiveJob, value: Value) -> None:
        """Set ``value`` in the running job; the job's own value restores it. Implemented by live
        knobs, and by process knobs with :attr:`live_values`."""
        raise TypeError(f"{self.name} is set before the process starts, not in a running job")

    def effect(self, live: LiveJob, value: Value) -> str | None:
        """After some iterations with ``value``: why it had no effect (:class:`Undone`: it had one
        for a time); None if it did, or if that cannot be determined.
        """
        return None

    def environment(self, value: Value) -> dict[str, str]:
        """Environment variables that set ``value``. Implemented by process knobs."""
        return {}

    def survey(self, start: Start) -> Any:
        """Look up what the knob needs to know on the machine where sessions run, as JSON data;
        :meth:`candidates` finds it in ``JobFacts.surveys``.

        ``start`` is that of the unchanged job. Never raises; may take seconds. No session runs
        meanwhile.
        """
        return None

    def prepare(self, start: Start, value: Value) -> Start:
        """``start`` with the variables that set ``value``; called after :meth:`command`, before
        every process that is started with ``value``.

        Raises:
            NotApplicable: it cannot be set here and now.
        """
        rest = {name: text for name, text in start.env.items() if name not in self.variables}
        return replace(start, env=rest | self.environment(value))

    @property
    def own_variable(self) -> str:
        """The environment variable that sets this knob, if torch itself reads none for it."""
        return VARIABLE_PREFIX + self.name.upper()

    def at_start(self, environ: Mapping[str, str]) -> None:
        """Act on :meth:`environment` when a Python process of the command starts. Called if
        :attr:`own_variable` is set."""

    def at_import(self, torch: Any, environ: Mapping[str, str]) -> None:
        """Act on :meth:`environment` right after ``import torch``, for variables that torch itself
        does not read.
        """

    def command(self, argv: Sequence[str], value: Value) -> list[str]:
        """The job's command line with ``value`` set. Implemented by ``via:`` knobs."""
        return list(argv)

    def remark(self, value: Value, own: Value) -> str:
        """One sentence on what a user who adopts ``value`` instead of ``own`` should check in their
        job; "" for nothing.
        """
        return ""

    def snippet(self, value: Value) -> str:
        """Python code with which users set ``value`` in their own source; "" if there is none."""
        return ""


@dataclass(frozen=True)
class SearchSpace:
    """The knobs to search, in order. ``preset``: its name, or "custom" for a mapping without one."""

    preset: str
    knobs: tuple[Knob, ...]

    def __getitem__(self, name: str) -> Knob:
        return next(k for k in self.knobs if k.name == name)
