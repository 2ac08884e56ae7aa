"""Multiplies learning rates for the duration of each step: schedulers never see the factor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.control import Control

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl


class LrFactor(Control):
    """Values: a factor; 1.0 keeps the job's own rates."""

    name, own = "lr_factor", 1.0

    factor = 1.0

    def __init__(self, live: LiveJobControl) -> None:
        super().__init__(live)
        # (group, its own rate) while a step runs, by the id of its optimizer
        self._own: dict[int, list[tuple[dict[str, Any], Any]]] = {}

    def set(self, value: Any) -> None:
        self.factor = float(value)
        self.listen(self.factor != 1.0)
        if self.factor == 1.0:
            for number in list(self._own):
                self._restore(number)

    def step_started(self, optimizer: Any) -> None:
        self._restore(id(optimizer))
        # a later stage of the job may train on a loader whose batch size is not changed
        if not self.live.loaders.control.fits_batch_size():
            return
        # an optimizer that wraps another (SAM, Lookahead) shares its groups
        scaled = {id(group) for own in self._own.values() for group, _ in own}
        groups = [g for g in optimizer.param_groups if id(g) not in scaled]
        own = [(group, group["lr"]) for group in groups if group.get("lr") is not None]
        self._own[id(optimizer)] = own
        for group, rate in own:
            group["lr"] = rate * self.factor

    def step_ended(self, optimizer: Any, ends_iteration: bool) -> None:
        self._restore(id(optimizer))

    def step_failed(self, optimizer: Any) -> None:
        self._restore(id(optimizer))

    def _restore(self, number: int) -> None:
        for group, rate in self._own.pop(number, ()):
            group["lr"] = rate
