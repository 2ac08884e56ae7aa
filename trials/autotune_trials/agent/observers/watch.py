"""The watched window: runs the observers, and turns what they saw into
:class:`~autotune_trials.protocol.evidence.Evidence`.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.facts.ranks import world_size
from autotune_trials.agent.observers.all_calls import AllCalls
from autotune_trials.agent.observers.compiles import CompileObserver
from autotune_trials.agent.observers.iterations import IterationObserver
from autotune_trials.agent.observers.observer import Observer
from autotune_trials.agent.observers.padding import PaddingObserver
from autotune_trials.agent.observers.pauses import PauseObserver
from autotune_trials.agent.observers.places import Places
from autotune_trials.agent.observers.reading import ReadingObserver
from autotune_trials.agent.observers.sampler import SamplerObserver
from autotune_trials.agent.observers.standing import StandingObserver
from autotune_trials.protocol.evidence import Evidence

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.agent.core.iteration import Iteration

OBSERVERS: tuple[type[Observer], ...] = (  # begun in this order, finished in reverse
    StandingObserver,
    PaddingObserver,  # reads its counts after AllCalls has stopped watching such reads
    ReadingObserver,
    CompileObserver,
    AllCalls,
    PauseObserver,
    SamplerObserver,
    IterationObserver,
)

# multiple of watch_steps: iterations watched at most, which keeps evidence of a very fast job small
MOST = 20


class Watch:
    """One watched window. Nothing in here raises into the job.

    Attributes:
        index: of the running watched iteration.
        places: tells which code is the job's own.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent, self.torch = agent, agent.torch
        self.places = Places(agent.torch)
        self.index = 0
        self._observers: list[Observer] = []
        self._blind: dict[str, str] = {}
        self._began = 0.0
        self._alone = True

    def begin(self) -> None:
        self._alone = world_size(self.torch) == 1
        self.agent.patches.on_restore(self._abandon)
        for kind in OBSERVERS:
            observer = kind(self)
            self._observers.append(observer)
            try:
                observer.begin()
            except Exception:
                self._drop(observer)
        self._began = perf_counter()

    def end_iteration(self, iteration: Iteration) -> bool:
        """An iteration has ended; True if it was the last."""
        for observer in tuple(self._observers):
            try:
                observer.end_iteration(iteration)
            except Exception:
                self._drop(observer)
        self.index += 1
        return self._full()

    def finish(self) -> Evidence:
        """Undo everything, and return what was seen."""
        fields: dict[str, Any] = {"world_size": world_size(self.torch)}
        for observer in reversed(self._observers):
            try:
                found = observer.finish()
                self._blind.update(found.pop("blind", {}))
                fields.update(found)
            except Exception:
                self._blind[observer.name] = log.reason(f"watching {observer.name}")
        self._observers = []
        return Evidence(**fields, blind=self._blind)

    def _full(self) -> bool:
        """Whether the window is over. With several ranks only steps count, not time: all ranks must
        end at the same step.
        """
        config = self.agent.config
        if self.index < config.watch_steps:
            return False
        longest = (
            perf_counter() - self._began >= config.watch_seconds
            or self.index >= MOST * config.watch_steps
        )
        return not self._alone or longest

    def _abandon(self) -> None:
        """The agent is stepping aside in the middle of the window."""
        if self._observers:
            self.finish()

    def _drop(self, observer: Observer) -> None:
        """Drop ``observer``, which raised the exception being handled."""
        self._blind[observer.name] = log.reason(f"watching {observer.name}")
        self._observers.remove(observer)
        try:
            observer.finish()
        except Exception:
            log.write_exception(f"watching {observer.name}, stepping aside")
