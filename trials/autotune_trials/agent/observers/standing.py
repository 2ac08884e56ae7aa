"""What stays constant across iterations: optimizers, loader, models.

Read once, when the window is over. Optimizers are also tried out: a few steps with each of torch's
implementations, on copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_spaces.codec import encode
from autotune_trials.agent.facts.construction import BuiltAt
from autotune_trials.agent.observers.observer import Observer
from autotune_trials.agent.observers.optimizer_trial import try_out

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.controls.optimizers import OptimizerControl


class StandingObserver(Observer):
    name = "settings"

    def finish(self) -> dict[str, Any]:
        return {
            "optimizers": tuple(
                self._optimizer(control) for control in self.agent.live.optimizer_controls
            ),
            "loader": self._loader(),
            "models": tuple({"dtypes": _dtypes(entry)} for entry in self.agent.live.entries),
        }

    def _optimizer(self, control: OptimizerControl) -> dict[str, Any]:
        optimizer = control.optimizer
        return {
            "class": type(optimizer).__name__,
            "tensors": sum(len(g["params"]) for g in optimizer.param_groups),
            "place": self._place(control.built_at),
            **try_out(self.agent, control),
        }

    def _loader(self) -> dict[str, Any]:
        hooks = self.agent.loaders
        loader = hooks.choice.loader
        if loader is None:
            return {}
        settings = hooks.training_source.settings_in_force()
        return {
            "place": self._place(loader.built_at),
            **(settings._asdict() if settings is not None else {}),
        }

    def _place(self, built_at: BuiltAt | None) -> dict[str, Any] | None:
        return None if built_at is None else encode(self.watch.places.place(built_at))


def _dtypes(entry: Entry) -> list[str]:
    return sorted({str(p.dtype).removeprefix("torch.") for p in entry.module.parameters()})
