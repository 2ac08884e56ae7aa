"""Multiplies learning rates for the duration of each step: schedulers never see the factor."""

from __future__ import annotations

from typing import Any

from autotune_trials.agent.controls.control import Control


class LrFactor(Control):
    """Values: a factor; 1.0 keeps the job's own rates."""

    name, own = "lr_factor", 1.0

    factor = 1.0

    def set(self, value: Any) -> None:
        self.factor = float(value)
        self.listen(self.factor != 1.0)
        if self.factor == 1.0:
            for control in self.live.every_control():
                control.restore_lr()

    def step_started(self, optimizer: Any) -> None:
        loaders = self.live.loaders
        # a later stage of the job may train on a loader whose batch size is not changed
        if loaders is None or loaders.fits_batch_size():
            self.live.control_of(optimizer).scale_lr(self.factor)

    def step_ended(self, optimizer: Any, ends_iteration: bool) -> None:
        self.live.control_of(optimizer).restore_lr()

    def step_failed(self, optimizer: Any) -> None:
        self.live.control_of(optimizer).restore_lr()
