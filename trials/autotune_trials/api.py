"""Marking iterations by hand, for training loops that no hook can see.

    import autotune

    for batch in batches:
        loss = train(batch)
        autotune.step(loss=loss, samples=len(batch))

Without a session both functions do nothing and cost a few nanoseconds, so the two lines can stay in
the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune_trials.agent.core.training_loop import TrainingLoop

MARKING = (  # shown when a job needs it
    "mark the iterations yourself with two lines in the training script:\n"
    "    import autotune\n"
    "    autotune.step(loss=loss, samples=len(batch))   # once per iteration, after the update\n"
    "The job's environment needs autotune for it, without its dependencies (pip install --no-deps)."
)
# the agent's training loop, which the calls are passed to; None outside a session
receiver: TrainingLoop | None = None


def step(loss: Any = None, samples: float | None = None) -> None:
    """Mark the end of one training iteration.

    After the first call, only these calls count as iterations; ``optimizer.step()`` no longer does.

    Args:
        loss: the iteration's loss, a number or a scalar tensor.
        samples: samples consumed by the iteration. None: as many as the DataLoader delivered, or
            one if there is no DataLoader.
    """
    if receiver is not None:
        receiver.on_manual_step(loss, samples)


def metric(name: str, value: Any) -> None:
    """Record ``value`` under ``name``, e.g. an accuracy. Values that are neither a number nor a
    one-element tensor are ignored."""
    if receiver is not None:
        receiver.on_metric(name, value)
