"""Sets ``non_blocking`` of copies to the GPU, through the patch on ``Tensor.to`` and
``Tensor.cuda`` (patches/transfer.py).

Only for batches as a loader gave them: nothing writes to their memory again. A buffer of the job's
own, refilled for every batch, would be overwritten while the previous copy is still in progress.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.loop.batches import tensors_of

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.core.events import GivenBatch

# remembered: the job may iterate several loaders together, or fetch ahead
BATCHES = 4


class NonBlocking(Control):
    """Values: True and False, for copies of pinned batches; None leaves the job's own calls
    alone."""

    name = "non_blocking"

    wanted: bool | None = None  # None: as the job calls it

    def __init__(self, live: LiveJobControl) -> None:
        super().__init__(live)
        # memory addresses of the latest batches
        self._given: deque[set[int]] = deque(maxlen=BATCHES)
        self.used = False  # a copy got a flag that the job does not give it

    def set(self, value: Any) -> None:
        if value != self.wanted:
            self.wanted, self.used = value, False
            self.listen(value is not None)

    def effect(self) -> str | None:
        if self.wanted is None or self.used:
            return None
        return (
            "the job never moves a pinned DataLoader batch with .to(device) or .cuda(), or always"
            " with non_blocking=True itself"
        )

    def wanted_for(self, tensor: Any) -> bool | None:
        """The flag for a copy of ``tensor``; None: as the job calls it."""
        if self.wanted is None or not tensor.is_pinned():
            return None
        return self.wanted if self.was_given(tensor) else None

    def was_given(self, tensor: Any) -> bool:
        """Whether ``tensor`` is of one of the latest batches."""
        memory = _memory(tensor)
        # copied first: a thread that reads the loader ahead may add a batch meanwhile
        return any(memory in given for given in tuple(self._given))

    def note(self, batch: Any) -> None:
        """A loader has given ``batch``."""
        places = (_memory(tensor) for tensor in tensors_of(batch))
        self._given.append({place for place in places if place is not None})

    def batch_given(self, given: GivenBatch) -> None:
        self.note(given.batch)


def _memory(tensor: Any) -> int | None:
    """Address of the storage; None if there is none (sparse, or a class of the job's own)."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except Exception:  # each kind of tensor raises its own error
        return None
