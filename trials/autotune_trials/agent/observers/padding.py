"""How much of the batches is padding, according to their attention_mask.

Only if the mask is on the CPU, as a DataLoader gives it: reading it from a GPU would make the job
wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.observers.observer import Observer

if TYPE_CHECKING:
    from autotune_trials.agent.core.events import GivenBatch
    from autotune_trials.agent.observers.watch import Watch

# rows of 0 (padding) and 1, under the name that tokenizers and models share
MASK = "attention_mask"


class PaddingObserver(Observer, Listener):
    name = "padding"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        # (real tokens, all tokens) of each batch; read when the window is over
        self._counts: list[tuple[Any, int]] = []

    def begin(self) -> None:
        self.agent.events.listen(self)

    def batch_given(self, given: GivenBatch) -> None:
        if given.loader.training and not self.failure:
            self._look(given.batch)

    def finish(self) -> dict[str, Any]:
        self.agent.events.forget(self)
        tokens = sum(count for _, count in self._counts)
        return {"padding": (tokens - sum(int(real) for real, _ in self._counts), tokens)}

    def _look(self, batch: Any) -> None:
        """Takes tens of microseconds; must not raise, as it runs while the job asks for a batch."""
        try:
            mask = batch.get(MASK) if isinstance(batch, Mapping) else None
            if mask is not None and mask.dim() == 2 and mask.device.type == "cpu":
                self._counts.append((mask.count_nonzero(), mask.numel()))
        except Exception as error:  # a mask of the job's own kind
            self.fail(error)
