"""What the job actually runs with, read back from its objects: proof that a knob took hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.autocast import AutocastControl

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
        "optimizers": [_implementation(optimizer) for optimizer in live.optimizers],
        "autocast": "off" if autocast.dtype is None else str(autocast.dtype).removeprefix("torch."),
        "autocast_regions": autocast.entered,
        "compiled_graphs": sum(entry.compiled_graphs() for entry in live.entries if entry.compiled),
    }


def _implementation(optimizer: Any) -> str:
    """The implementation by the flags of the first group, which is the one torch reads."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    if group.get("fused"):
        return "fused"
    if group.get("foreach"):
        return "foreach"
    return "for-loop" if group.get("foreach") is False else "default"
