"""The job's own metrics, as it tells them by ``autotune.metric``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.core.events import Listener

if TYPE_CHECKING:
    from autotune_trials.agent.loop.sample_count import SampleCount

MOST = 100_000  # values of one metric


class Metrics(Listener):
    """``told``: name -> [(samples trained on before, value)]."""

    def __init__(self, torch: Any, samples: SampleCount) -> None:
        self._tensor, self._samples = torch.Tensor, samples
        self.told: dict[str, list[tuple[float, Any]]] = {}

    def metric_told(self, name: str, value: Any) -> None:
        values = self.told.setdefault(str(name), [])
        if len(values) < MOST:
            if isinstance(value, self._tensor):
                value = value.detach().clone()
            values.append((self._samples.total, value))
