"""What the job actually runs with, read back from its objects: proof that a knob took hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.autocast import AutocastControl
from autotune_trials.agent.controls.optimizers import implementation_of

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent


def in_force(agent: Agent) -> dict[str, Any]:
    """Settings in force, as JSON data: the loader that feeds training (None if there is none),
    threads, optimizers, autocast, compiled graphs.
    """
    live, autocast = agent.live, agent.live.get(AutocastControl).region
    return {
        "loader": agent.loaders.source_in_force(),
        "intra_op_threads": int(agent.torch.get_num_threads()),
        "optimizers": [implementation_of(o.param_groups) for o in live.optimizers],
        "autocast": "off" if autocast.dtype is None else str(autocast.dtype).removeprefix("torch."),
        "autocast_regions": autocast.entered,
        "compiled_graphs": sum(entry.compiled_graphs() for entry in live.entries if entry.compiled),
    }
