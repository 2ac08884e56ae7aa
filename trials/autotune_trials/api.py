"""Marking iterations by hand, for training loops that no hook can see.

    import autotune

    for batch in batches:
        loss = train(batch)
        autotune.step(loss=loss, samples=len(batch))

Without a session both functions do nothing and cost a few nanoseconds, so the two lines can stay in
the job.
"""

from __future__ import annotations

from typing import Any, Protocol

MARKING = (  # said where a job needs it
    "mark the iterations yourself, two lines in the training script:\n"
    "    import autotune\n"
    "    autotune.step(loss=loss, samples=len(batch))   # once an iteration, after the update"
)


class Receiver(Protocol):
    """Who listens: the agent of a session."""

    def on_manual_step(self, loss: Any, samples: float | None) -> None: ...

    def on_metric(self, name: str, value: Any) -> None: ...


receiver: Receiver | None = None


def step(loss: Any = None, samples: float | None = None) -> None:
    """One iteration of training has ended.

    Once this is called, iterations are counted by it alone and no longer by ``optimizer.step()``.

    Args:
        loss: the iteration's loss, a number or a scalar tensor.
        samples: samples consumed by the iteration. None: what the DataLoader gave, or one where
            none is seen.
    """
    if receiver is not None:
        receiver.on_manual_step(loss, samples)


def metric(name: str, value: Any) -> None:
    """Record ``value`` under ``name``, e.g. an accuracy. What is neither a number nor a tensor with
    one is left out."""
    if receiver is not None:
        receiver.on_metric(name, value)
