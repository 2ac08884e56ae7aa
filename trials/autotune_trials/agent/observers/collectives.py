"""Time in collective operations that no computation hides, on this rank's training thread.

blocking calls     dist.all_reduce(…) …              the time of the call
asynchronous ones  work.wait()                       the time of the wait
DDP                its reducer works in C++          its own statistics: gradient exchange after the end of backward
"""

from __future__ import annotations

import sys
from typing import Any

from autotune_trials.agent.facts.ranks import backend, world_size
from autotune_trials.agent.observers.calls import About, CallObserver, Describe, bytes_of, shape_of

NAMES = """
    all_reduce reduce broadcast all_gather all_gather_into_tensor reduce_scatter
    reduce_scatter_tensor all_to_all all_to_all_single gather scatter barrier monitored_barrier
    all_gather_object gather_object broadcast_object_list scatter_object_list recv
""".split()
KIND = "collective"
EXCHANGE = "DistributedDataParallel's gradient exchange"


def install(calls: CallObserver) -> None:
    """Watch torch.distributed if there are several ranks and they communicate through the host."""
    torch = calls.torch
    distributed = torch.distributed
    if world_size(torch) == 1 or not (distributed.is_available() and distributed.is_initialized()):
        return
    if "nccl" in backend(torch):
        return  # runs on device streams: visible in the profile, not on the host
    for name in NAMES:
        for owner in (distributed, sys.modules["torch.distributed.distributed_c10d"]):
            calls.watch_calls(owner, name, _named(name))
    calls.watch_calls(distributed.Work, "wait", _named("waiting for an asynchronous operation"))
    _watch_exchange(calls)
    calls.at_end(lambda: {"communication_s": by_iteration(calls)})


def _named(name: str) -> Describe:
    """Describes calls of one function."""

    def about(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> About:
        tensor = next((a for a in (*args, *kwargs.values()) if hasattr(a, "element_size")), None)
        if tensor is None:
            return About(KIND, "", name)
        return About(KIND, tensor.device.type, f"{name} of {shape_of(tensor)}", bytes_of(tensor))

    return about


def _watch_exchange(calls: CallObserver) -> None:
    """Have DDP's logger record every iteration (by default one in a hundred); it changes nothing
    else.
    """
    parallel = calls.torch.nn.parallel.DistributedDataParallel
    models = {
        m
        for entry in calls.agent.live.entries
        for m in entry.module.modules()
        if isinstance(m, parallel)
    }
    for model in models:
        model._set_ddp_runtime_logging_sample_rate(1)

    state = calls.agent.state
    seen: dict[Any, int] = {}  # model -> the backward whose statistics were read

    def read(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """At the start of a forward that will exchange gradients, the statistics are those of the
        previous exchange; the first of several forwards before one backward reads them.
        """
        model = args[0]
        exchanges = calls.torch.is_grad_enabled() and model.require_backward_grad_sync
        if model not in models or not exchanges or seen.get(model) == state.backwards:
            return
        seen[model] = state.backwards
        told = model._get_ddp_logging_data()
        exposed_ns = told.get("backward_comm_time", 0) - told.get(
            "backward_compute_comm_overlap_time", 0
        )
        if exposed_ns > 0:
            calls.add(
                About(
                    KIND,
                    calls.agent.live.device,
                    EXCHANGE,
                    told.get("total_parameter_size_bytes", 0),
                ),
                calls.here(),
                exposed_ns / 1e9,
            )

    calls.watch_calls(parallel, "_pre_forward", read)


def by_iteration(calls: CallObserver) -> tuple[float, ...]:
    """Seconds in collective operations, one value per iteration."""
    seconds = [0.0] * calls.watch.index
    for tally in calls.tallies():
        if tally.about.kind == KIND:
            for index, spent in tally.each_s.items():
                if index < len(seconds):
                    seconds[index] += spent
    return tuple(seconds)
