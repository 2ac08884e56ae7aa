"""First guesses: for each knob the value that usually pays, in an order set by the bottleneck.

TPE needs about ten trials before it knows more than chance; on a search of twenty that is half of it. One trial a knob,
most promising first, gives it those points where they are most likely to be good (and gives every knob one fair try).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune_spaces.base import Value

# What usually pays, best first; the first one that lies in the domain is the guess. "most" is the largest value.
GUESSES: Mapping[str, Sequence[Value]] = {
    "amp_dtype": ("bfloat16", "float16"),
    "compile_mode": ("default",),
    "matmul_precision": ("high", "medium"),
    "optimizer_impl": ("fused", "foreach"),
    "sdpa_backend": ("cudnn", "flash", "efficient"),
    "prefetch_factor": (4,),
    "malloc": ("retain",),
}

LOADER = ("num_workers", "pin_memory", "persistent_workers", "non_blocking", "prefetch_factor", "in_order")
COMPUTE = ("amp_dtype", "channels_last", "matmul_precision", "sdpa_backend", "compile_mode", "cudnn_benchmark", "intra_op_threads")
OPTIMIZER = ("optimizer_impl",)
SIZE = ("micro_batch_size", "batch_size")
HEAP = ("malloc",)
MANY_FAULTS = 1000  # minor page faults an iteration: 4 MB mapped and cleared anew, some 1 to 2 ms of one core

ORDER: Mapping[str, Sequence[str]] = {
    "loader": LOADER + COMPUTE + HEAP + OPTIMIZER + SIZE,
    "epoch ends": ("persistent_workers", *LOADER, *COMPUTE, *HEAP, *OPTIMIZER, *SIZE),
    "compute": COMPUTE + HEAP + LOADER[:1] + OPTIMIZER + SIZE + LOADER[1:],
    "optimizer": OPTIMIZER + COMPUTE + HEAP + LOADER + SIZE,
    "overhead": ("compile_mode", "intra_op_threads") + SIZE + OPTIMIZER + LOADER + COMPUTE + HEAP,
}


def guess(knob: str, values: Sequence[Value], default: Value) -> Value:
    """The one value of ``knob`` to try first; never the job's own."""
    others = [v for v in values if v != default or type(v) is not type(default)]
    for preferred in GUESSES.get(knob, ()):
        if any(v == preferred and type(v) is type(preferred) for v in others):
            return preferred
    return others[-1]


def seeds(
    bottleneck: str, domains: Mapping[str, Sequence[Value]], defaults: Mapping[str, Value], minor_faults: float = 0.0
) -> list[dict[str, Value]]:
    """One configuration a knob, most promising first. ``minor_faults``: page faults of an iteration; where they are many, the
    allocator comes first.

    A conditional knob is seeded together with what it depends on: prefetching and persistent workers mean nothing
    without workers.
    """
    order = (HEAP if minor_faults >= MANY_FAULTS else ()) + tuple(ORDER.get(bottleneck, ORDER["compute"]))
    ranked = sorted(domains, key=lambda name: order.index(name) if name in order else len(order))
    plan = []
    for name in ranked:
        config = {name: guess(name, domains[name], defaults[name])}
        if name in ("prefetch_factor", "persistent_workers") and not defaults.get("num_workers", 0):
            if "num_workers" not in domains:
                continue
            config["num_workers"] = guess("num_workers", domains["num_workers"], defaults["num_workers"])
        plan.append(config)
    return plan
