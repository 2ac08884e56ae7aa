"""The job's own metrics, reported through ``autotune.metric``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap.log import write
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.loop.loss_meter import scalar

if TYPE_CHECKING:
    from autotune_trials.agent.loop.sample_count import SampleCount

MOST = 100_000  # values kept of one metric


class Metrics(Listener):
    """``reported``: name -> [(samples trained on before, value)]; a value is a number or a tensor
    with one element."""

    def __init__(self, torch: Any, samples: SampleCount) -> None:
        self._torch, self._samples = torch, samples
        self.reported: dict[str, list[tuple[float, Any]]] = {}
        self._refused: set[str] = set()

    def metric_reported(self, name: str, value: Any) -> None:
        number = scalar(self._torch, value)
        if number is None:
            if str(name) not in self._refused:
                self._refused.add(str(name))
                write(
                    f"autotune.metric({str(name)!r}): ignored, because the value is not a number"
                    f" ({type(value).__name__})"
                )
            return
        values = self.reported.setdefault(str(name), [])
        if len(values) < MOST:
            values.append((self._samples.total, number))
