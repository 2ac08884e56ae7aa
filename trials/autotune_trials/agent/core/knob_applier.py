"""Knobs set in the running job: made once, applied, held from the start in fixed runs, and what went wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_spaces import knobs as registry
from autotune_trials.agent.bootstrap import log

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


class Knobs:
    """Of one agent. A failure waits in ``failure`` for the mode, which deals with it at the end of the iteration."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._made: dict[str, Any] = {}
        self.held = agent.config.mode != "live"  # from the start, and not switched
        self.applying = False  # a knob is being set: what torch sees now is not the job's doing
        self.failure = ""

    def get(self, name: str, options: Any = None) -> Any:
        """The knob of this name, made once."""
        key = f"{name} {sorted((options or {}).items())}"
        if key not in self._made:
            self._made[key] = registry.create(name, dict(options or {}))
        return self._made[key]

    def apply(self, knob: Any, value: Any) -> None:
        """Set a knob in the job."""
        self.applying = True
        try:
            knob.apply(self._agent.live, value)
        finally:
            self.applying = False

    def hold(self, final: bool) -> None:
        """Fixed runs: set all knobs on whatever there is by now; all setters are idempotent.

        A knob may need something the job has not built yet: its failure counts once the first optimizer steps.
        """
        if not self.held or self._agent.stopped:
            return
        for choice in self._agent.config.knobs:
            try:
                self.apply(self.get(choice.name, choice.options), choice.value)
            except Exception as error:
                if final:
                    self.fail(f"{choice.name}: {type(error).__name__}: {error}")

    def fail(self, text: str) -> None:
        """A knob could not be set or kept; the mode deals with it at the end of the iteration."""
        log.write(f"knob: {text}")
        self.failure = self.failure or text
