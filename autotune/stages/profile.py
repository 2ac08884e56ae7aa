"""PROFILE: the explain stage alone, for ``autotune profile``: one process of the job, no tuning.

one process │ warm-up │ timed │ watched │ profiled │
                         └ anatomy, bottleneck, summary; then as in the explain stage
"""

from __future__ import annotations

import time

from autotune.errors import BaselineError
from autotune.executors.base import SessionFailed
from autotune.explain.records import Explanation
from autotune.results import Observation
from autotune.secrets import mask_command
from autotune.stages.context import RunContext
from autotune.stages.explain import examine, profiled, with_idle_device
from autotune.stages.observe import conclude, explain_failure
from autotune.verdict.timing import anatomy_after_warm_up
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Hello, Record

SIDE = "baseline"  # the explain stage's name for the only side there is


def explain_alone(context: RunContext, config: Config) -> tuple[Observation, Explanation, Record]:
    """Explain the job with ``config`` from one profiled process.

    Raises:
        BaselineError: the job fails by itself, or has too few iterations.
        HookError: the agent cannot get in, or sees no optimizer step.
    """
    began = time.monotonic()
    try:
        record = profiled(context, SIDE, config)
    except SessionFailed as failure:
        raise explain_failure(context, failure) from failure
    if not record.trace:
        reason = (
            record.notes.get("profile") or "the job ended before its iterations could be profiled"
        )
        raise BaselineError(
            str(reason),
            where=" ".join(mask_command(context.spec.command)),
            expected="about 100 optimizer steps",
            remedy="increase the number of epochs or steps in job.yaml's command",
        )
    hello = context.executor.last_hello
    assert hello is not None
    observation = observed(context, hello, record)
    explanation = examine(context, observation, {SIDE: config}, {SIDE: record}, began)
    return with_idle_device(observation, explanation.sides[SIDE]), explanation, record


def observed(context: RunContext, hello: Hello, record: Record) -> Observation:
    """Build the Observation that one process allows: no comparison, so no noise and no ceiling."""
    return conclude(context, hello, anatomy_after_warm_up(record.window), [record.window])
