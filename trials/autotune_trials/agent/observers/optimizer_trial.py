"""Times an optimizer step with each of torch's implementations, on copies of its parameters. The
job's own parameters are not touched.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_spaces.machine import memory_gib
from autotune_trials.agent.controls.optimizer_copy import bare_step, copy_of
from autotune_trials.agent.facts.parameters import own_shard, parameters_of
from autotune_trials.measure.machine_load import resident_gib

if TYPE_CHECKING:
    from autotune_trials.agent.controls.optimizers import OptimizerControl
    from autotune_trials.agent.core.agent import Agent

FEWEST = 20  # parameters; fewer are not worth a trial
COPIES = 5  # parameters, gradients, two moments, and a step's temporaries
ROOM = 0.5  # at most this share of the free memory
STEPS, WARM_UP = 7, 2
LONGEST_S = 0.4  # per implementation; the job waits meanwhile


def try_out(agent: Agent, control: OptimizerControl) -> dict[str, Any]:
    """``own_s``, ``best_s`` and ``best`` (foreach, fused) of one step, in seconds; ``untried``: why
    they are missing. {} if there is nothing to choose.
    """
    torch, optimizer = agent.torch, control.optimizer
    parameters = [p for p in parameters_of(optimizer) if p.requires_grad]
    # with the job's own GradScaler, torch's fused SGD may leave momenta unwritten
    unsound = "fused" if agent.traits.scaler and type(optimizer).__name__ == "SGD" else ""
    others = [name for name in control.supported() if name not in ("for-loop", unsound)]
    if len(parameters) < FEWEST or not others:
        return {}
    size = sum(own_shard(p).numel() * p.element_size() for p in parameters)
    needed = COPIES * size / 2**30
    if needed > ROOM * _free_gib(torch, parameters[0].device):
        return {
            "untried": (
                "not enough free memory to copy the optimizer's parameters and try other"
                " implementations"
            )
        }
    own = _step_s(torch, optimizer, None)
    tried = {name: _step_s(torch, optimizer, name) for name in others}
    best = min(tried, key=lambda name: tried[name])
    return {"own_s": own, "best_s": tried[best], "best": best}


def _step_s(torch: Any, optimizer: Any, implementation: str | None) -> float:
    """Seconds of the fastest step; ``implementation`` None: as the optimizer is set now."""
    scratch = copy_of(
        torch,
        optimizer,
        implementation,
        lambda group: [_clone(torch, p) for p in group["params"] if p.requires_grad],
    )
    step = bare_step(optimizer)
    device = parameters_of(scratch)[0].device
    times: list[float] = []
    began = perf_counter()
    with torch.no_grad():
        for number in range(WARM_UP + STEPS):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start = perf_counter()
            step(scratch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number >= WARM_UP:
                times.append(perf_counter() - start)
                if start - began > LONGEST_S:
                    break
    return min(times)


def _clone(torch: Any, parameter: Any) -> Any:
    clone = parameter.detach().clone()
    clone.grad = torch.full_like(clone, 1e-3)
    return clone


def _free_gib(torch: Any, device: Any) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0]) / 2**30
    return max(0.0, memory_gib() - resident_gib())
