"""``non_blocking`` of copies to the GPU: held by the patch on ``Tensor.to`` and ``Tensor.cuda``
(patches/transfer.py)."""

from __future__ import annotations

from typing import Any

from autotune_trials.agent.controls.control import Control


class NonBlocking(Control):
    """Values: True and False, for copies of pinned tensors; None leaves the job's own calls
    alone."""

    name = "non_blocking"

    wanted: bool | None = None  # None: as the job calls it

    def set(self, value: Any) -> None:
        self.wanted = value
