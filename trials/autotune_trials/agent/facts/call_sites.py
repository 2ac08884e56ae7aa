"""Records where in the source the job builds, calls and steps the objects that knobs act on. Only
during warm-up: nothing timed pays for it.

A failure in here loses the sites and nothing else.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune_spaces.sites import (
    BackwardSite,
    BuiltSite,
    ForwardSite,
    JobSites,
    SettingSite,
    SourceCall,
)
from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.core.events import Events, Listener
from autotune_trials.agent.facts.construction import construction_frame
from autotune_trials.agent.facts.source_calls import Sources, Spot, spots

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.core.agent import Agent

# distinct calls of one kind; no patch could be written for a job with more
MOST = 32


class Built(NamedTuple):
    """An object of the job and the call that built it.

    A loader that only ``for batch in DataLoader(…)`` refers to is gone after that line; it is then
    identified by its weak reference, of which each object has exactly one.
    """

    reference: Any  # weak
    kind: type
    spot: Spot
    about: object = None  # tells loaders apart that one line builds: dataset, batch size, sampler
    dataset: Any = None  # weak; None if it cannot be referenced weakly
    lr: float | None = None


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Skip ``method`` once recording is over; an exception ends recording."""

    @functools.wraps(method)
    def call(self: SiteRecorder, *args: Any, **kwargs: Any) -> None:
        if self.open:
            try:
                method(self, *args, **kwargs)
            except Exception:
                self.open = False
                log.write_exception("sites")

    return call


class SiteRecorder(Listener):
    """One per process. ``open`` until the facts are requested; in sessions that never request them
    it stays closed.
    """

    def __init__(self, torch: Any, events: Events, wanted: bool) -> None:
        self.open, self._events = wanted, events
        self._torch = torch
        self._torch_directory = os.path.join(os.path.dirname(torch.__file__), "")
        self._root = os.getcwd() if wanted else ""
        self._loaders: list[Built] = []
        self._optimizers: list[Built] = []
        # (module's class, stack, images) of ForwardSite
        self._forwards: dict[Any, tuple[Any, tuple[Spot, ...], tuple[tuple[str, int], ...]]] = {}
        self._backwards: dict[Any, tuple[tuple[Spot, ...], int]] = {}
        self._steps: dict[Any, tuple[Spot, ...]] = {}
        self._transfers: dict[Any, tuple[Spot, ...]] = {}
        self._refilled: dict[Any, tuple[Spot, ...]] = {}
        self._settings: dict[Any, tuple[str, tuple[Spot, ...]]] = {}
        self._first = -1  # index of the first forward since the last backward
        self._facts = JobSites()

    # ------------------------------------------------------------------ what the job does

    @guarded
    def loader_built(self, loader: Any, frame: FrameType) -> None:
        spot = self._construction(loader, frame)
        if spot is not None:
            dataset = loader.dataset
            self._loaders = [
                b for b in self._loaders if b.reference() is not None or b.dataset is not None
            ][-256:]
            about = id(dataset), loader.batch_size, type(loader.sampler)
            self._loaders.append(
                Built(weakref.ref(loader), type(loader), spot, about, _weak(dataset))
            )

    @guarded
    def optimizer_built(self, optimizer: Any, frame: FrameType, own_rates: bool) -> None:
        spot = self._construction(optimizer, frame)
        if spot is not None:
            lr = optimizer.defaults.get("lr")
            uniform = float(lr) if isinstance(lr, float | int) and not own_rates else None
            self._optimizers = [b for b in self._optimizers if b.reference() is not None]
            self._optimizers.append(
                Built(weakref.ref(optimizer), type(optimizer), spot, lr=uniform)
            )

    @guarded
    def module_called(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entry.note_shapes(args, kwargs)
        module, frame = entry.module, sys._getframe(1)
        stack = spots(frame, self._torch_directory)
        if not stack:  # called by one of torch's threads: recomputed for the backward pass
            return
        key = (id(module), _key(stack))
        if key not in self._forwards and len(self._forwards) < MOST:
            images = tuple(
                (str(name), d)
                for name, value in (*enumerate(args), *kwargs.items())
                if (d := self._image(value))
            )
            named = spots(frame, self._torch_directory, module)
            self._forwards[key] = type(module), named, images
        if self._first < 0 and key in self._forwards:
            self._first = list(self._forwards).index(key)

    @guarded
    def backward_started(self, tensors: Any, gradients: Any) -> None:
        stack, first, self._first = spots(sys._getframe(1), self._torch_directory), self._first, -1
        if stack and len(self._backwards) < MOST:
            self._backwards.setdefault((_key(stack), first), (stack, first))

    @guarded
    def step_started(self, optimizer: Any) -> None:
        self._note(self._steps, sys._getframe(1))

    @guarded
    def on_transfer(self, frame: FrameType, refilled: bool) -> None:
        """``refilled``: the tensor may be, while it is being copied."""
        self._note(self._transfers, frame)
        if refilled:
            self._note(self._refilled, frame)

    @guarded
    def on_setting(self, name: str, frame: FrameType) -> None:
        stack = spots(frame, self._torch_directory)
        self._settings.setdefault((name, _key(stack)), (name, stack))

    def _note(self, where: dict[Any, tuple[Spot, ...]], frame: FrameType) -> None:
        stack = spots(frame, self._torch_directory)
        if stack and len(where) < MOST:
            where.setdefault(_key(stack), stack)

    def _construction(self, built: Any, frame: FrameType) -> Spot | None:
        caller = construction_frame(built, frame)
        return None if caller is None else Spot(caller.f_code, caller.f_lineno or 0, caller.f_lasti)

    def _image(self, value: Any) -> int:
        """4 or 5 for a tensor of that many dimensions, else 0."""
        dimensions = value.dim() if isinstance(value, self._torch.Tensor) else 0
        return dimensions if dimensions in (4, 5) else 0

    # ------------------------------------------------------------------ the result

    def facts(self, agent: Agent) -> JobSites:
        """The sites seen up to the first call of this, which ends recording."""
        if self.open:
            self.open = False
            self._events.forget(self)
            try:
                self._facts = self._gather(agent)
            except Exception:
                log.write_exception("sites")
            self._loaders, self._optimizers = [], []
        return self._facts

    def _gather(self, agent: Agent) -> JobSites:
        from autotune_trials.agent.observers.places import Places

        sources = Sources(self._root, Places(self._torch).own)
        program = getattr(sys.modules.get("__main__"), "__file__", None)
        return JobSites(
            program=sources.name(program) if program and sources.own(program) else "",
            loader=self._loader(agent, sources),
            optimizers=tuple(dict.fromkeys(self._optimizer_sites(agent, sources)))[:MOST],
            forwards=tuple(
                ForwardSite(
                    kind.__name__,
                    _led_by(stack, sources),
                    images,
                    getattr(kind.forward, "__module__", "").startswith("torch.nn.modules"),
                )
                for kind, stack, images in self._forwards.values()
            ),
            backwards=tuple(
                BackwardSite(_led_by(stack, sources), first)
                for stack, first in self._backwards.values()
            ),
            steps=tuple(sources.call(stack[0]) for stack in self._steps.values()),
            transfers=tuple(sources.call(stack[0]) for stack in self._transfers.values()),
            refilled=tuple(sources.call(stack[0]) for stack in self._refilled.values()),
            settings=tuple(
                SettingSite(name, sources.call(stack[0]))
                for name, stack in self._settings.values()
                if stack
            ),
        )

    def _loader(self, agent: Agent, sources: Sources) -> BuiltSite | None:
        """The training loader; if a library (accelerate, Lightning) made it from one the job built,
        that one.
        """
        tracked = agent.loaders.choice.loader
        mine = next(
            (b for b in self._loaders if tracked is not None and b.reference is tracked.identity),
            None,
        )
        if mine is None:
            return None
        if not sources.own(mine.spot.code.co_filename):
            data = mine.dataset
            origins = [
                b
                for b in self._loaders
                if data is not None and b.dataset is data and sources.own(b.spot.code.co_filename)
            ]
            mine = origins[-1] if origins else mine
        others = {b.about for b in self._loaders if _key((b.spot,)) == _key((mine.spot,))} - {
            mine.about
        }
        return BuiltSite(
            sources.call(mine.spot), _class(mine.kind), _parameters(mine.kind), len(others)
        )

    def _optimizer_sites(self, agent: Agent, sources: Sources) -> Iterator[BuiltSite]:
        """Where the optimizers that step were built, and those of the job's own that may step
        later (a discriminator's).
        """
        stepping = [control.optimizer for control in agent.live.optimizer_controls]
        for optimizer in stepping:
            if (site := self._optimizer(optimizer, sources)) is not None:
                yield site
        for built in self._optimizers:
            optimizer = built.reference()
            if optimizer is not None and not any(optimizer is other for other in stepping):
                site = self._optimizer(optimizer, sources)
                if site is not None and site.call.own:
                    yield replace(site, stepped=False)

    def _optimizer(self, optimizer: Any, sources: Sources) -> BuiltSite | None:
        mine = next((b for b in self._optimizers if b.reference() is optimizer), None)
        if mine is None or optimizer is None:
            return None
        others = sum(_key((b.spot,)) == _key((mine.spot,)) for b in self._optimizers) - 1
        return BuiltSite(
            sources.call(mine.spot), _class(mine.kind), _parameters(mine.kind), others, mine.lr
        )


def _led_by(stack: tuple[Spot, ...], sources: Sources) -> tuple[SourceCall, ...]:
    """The call itself, and the job's own calls that led to it."""
    return tuple(
        sources.call(spot)
        for index, spot in enumerate(stack)
        if not index or sources.own(spot.code.co_filename)
    )


def _key(stack: tuple[Spot, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((id(spot.code), spot.instruction) for spot in stack)


def _weak(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:  # a list
        return None


def _class(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _parameters(kind: Any) -> tuple[str, ...]:
    """See BuiltSite."""
    names: list[str] = []
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        stars: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        names.append(stars.get(parameter.kind, parameter.name))
    return tuple(names)
