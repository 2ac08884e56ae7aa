"""What stays constant across iterations: optimizers, loader, models, memory, the CPU governor.

Read once, when the window is over. Optimizers are also tried out: a few steps with each of torch's
implementations, on copies.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from autotune_spaces.machine import memory_gib
from autotune_trials.agent.observers.observer import Observer
from autotune_trials.agent.observers.optimizer_trial import try_out
from autotune_trials.measure.machine_load import resident_gib

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.controls.optimizers import OptimizerControl


class StandingObserver(Observer):
    name = "settings"

    def finish(self) -> dict[str, Any]:
        memory = self._memory()  # before optimizers are tried out on copies of the parameters
        return {
            "optimizers": tuple(self._optimizer(control) for control in self.agent.live.controls),
            "loader": self._loader(),
            "models": tuple({"dtypes": _dtypes(entry)} for entry in self.agent.live.entries),
            "memory": memory,
            "governors": governors(),
        }

    def _optimizer(self, control: OptimizerControl) -> dict[str, Any]:
        optimizer = control.optimizer
        return {
            "class": type(optimizer).__name__,
            "tensors": sum(len(g["params"]) for g in optimizer.param_groups),
            "place": self._place(control.spot),
            **try_out(self.agent, control),
        }

    def _loader(self) -> dict[str, Any]:
        hooks = self.agent.loaders
        state = hooks.training_state
        if state is None:
            return {}
        settings = hooks.settings_in_force()
        return {
            "place": self._place(state.spot),
            **(settings._asdict() if settings is not None else {}),
        }

    def _memory(self) -> dict[str, float]:
        found = {"host_used_gib": resident_gib(), "host_total_gib": memory_gib()}
        device = self.agent.live.cuda
        if device is not None:
            _, total = self.torch.cuda.mem_get_info(device)
            found["device_used_gib"] = self.torch.cuda.max_memory_reserved(device) / 2**30
            found["device_total_gib"] = total / 2**30
        return found

    def _place(self, spot: Any) -> dict[str, Any] | None:
        if spot is None:
            return None
        place = self.watch.places.place(spot)
        return {
            "file": place.file,
            "line": place.line,
            "function": place.function,
            "code": place.code,
            "own": place.own,
        }


def _dtypes(entry: Entry) -> list[str]:
    return sorted({str(p.dtype).removeprefix("torch.") for p in entry.module.parameters()})


def governors() -> tuple[str, ...]:
    """The governor of each CPU this process may use; () if Linux shows none."""
    found = []
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            with open(
                f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", encoding="ascii"
            ) as file:
                found.append(file.read().strip())
        except (OSError, UnicodeDecodeError):
            continue
    return tuple(found)
