"""First guesses: for each knob the value that usually pays, in an order set by the bottleneck.

TPE needs about ten trials before it beats chance, half of a search of twenty. One trial per knob,
most promising first, puts these points where they are most likely to be good (and gives every knob
a fair try).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune_spaces.base import Value, same

# What usually pays, best first; the first value in the domain is the guess.
GUESSES: Mapping[str, Sequence[Value]] = {
    "amp_dtype": ("bfloat16", "float16"),
    "compile_mode": ("static", "dynamic", "default", "reduce-overhead", "regional"),
    "matmul_precision": ("high", "medium"),
    "optimizer_impl": ("fused", "foreach"),
    "sdpa_backend": ("cudnn", "flash", "efficient"),
    "prefetch_factor": (4,),
    "malloc": ("retain",),
    "cpu_affinity": ("gpu-node",),
    # torch's is 25
    "ddp_bucket_cap_mb": (50, 100, 10),
}

# If time is lost between kernels: CUDA graphs, which launch them all at once.
BY_BOTTLENECK: Mapping[str, Mapping[str, Sequence[Value]]] = {
    "overhead": {"compile_mode": ("reduce-overhead", "static", "dynamic", "default")}
}
# what is best for large kernels is not what is best for many small ones
SEEDED_TWICE = ("compile_mode",)
# Knobs that have no effect while the other knob is off.
NEEDS = {
    "prefetch_factor": "num_workers",
    "persistent_workers": "num_workers",
    "in_order": "num_workers",
    "non_blocking": "pin_memory",
    "cuda_prefetch": "pin_memory",
}

LOADER = (
    "num_workers",
    "pin_memory",
    "persistent_workers",
    "non_blocking",
    "cuda_prefetch",
    "prefetch_factor",
    "in_order",
)
COMPUTE = (
    "amp_dtype",
    "channels_last",
    "matmul_precision",
    "sdpa_backend",
    "compile_mode",
    "cudnn_benchmark",
    "intra_op_threads",
)
OPTIMIZER = ("optimizer_impl",)
SIZE = ("batch_size",)
HEAP = ("malloc",)
# minor page faults per iteration: 4 MB mapped and cleared again, about 1 to 2 ms of one core
MANY_FAULTS = 1000

ORDER: Mapping[str, Sequence[str]] = {
    "loader": LOADER + COMPUTE + HEAP + OPTIMIZER + SIZE,
    "epoch ends": ("persistent_workers", *LOADER, *COMPUTE, *HEAP, *OPTIMIZER, *SIZE),
    "compute": COMPUTE + HEAP + LOADER[:1] + OPTIMIZER + SIZE + LOADER[1:],
    "optimizer": OPTIMIZER + COMPUTE + HEAP + LOADER + SIZE,
    "overhead": ("compile_mode", "intra_op_threads") + SIZE + OPTIMIZER + LOADER + COMPUTE + HEAP,
}


def guess(knob: str, values: Sequence[Value], default: Value, bottleneck: str = "") -> Value:
    """The one value of ``knob`` to try first; never the job's own."""
    return _guesses(knob, values, default, bottleneck)[0]


def likely(knob: str, value: Value) -> int:
    """The place of ``value`` among those of ``knob`` that usually pay; the best has 0."""
    usual = GUESSES.get(knob, ())
    return next((i for i, each in enumerate(usual) if same(each, value)), len(usual))


def _guesses(knob: str, values: Sequence[Value], default: Value, bottleneck: str) -> list[Value]:
    """Values of ``knob`` that usually pay, best first: at least one, and never the job's own."""
    others = [v for v in values if not same(v, default)]
    preferred = BY_BOTTLENECK.get(bottleneck, {}).get(knob) or GUESSES.get(knob, ())
    return [p for p in preferred if any(same(p, v) for v in others)] or others[-1:]


def seeds(
    bottleneck: str,
    domains: Mapping[str, Sequence[Value]],
    defaults: Mapping[str, Value],
    minor_faults: float = 0.0,
) -> list[dict[str, Value]]:
    """One configuration per knob (two for compile_mode), most promising first. ``minor_faults``:
    page faults per iteration; if there are many, the allocator comes first.

    A conditional knob is seeded together with the knob it depends on: prefetching has no effect
    without workers.
    """
    order = (HEAP if minor_faults >= MANY_FAULTS else ()) + tuple(
        ORDER.get(bottleneck, ORDER["compute"])
    )
    ranked = sorted(domains, key=lambda name: order.index(name) if name in order else len(order))
    plan: list[dict[str, Value]] = []
    for name in ranked:
        needed = NEEDS.get(name, "")
        lacking = [needed] if needed in domains and not defaults[needed] else []
        with_it = {other: guess(other, domains[other], defaults[other]) for other in lacking}
        values = _guesses(name, domains[name], defaults[name], bottleneck)
        plan += [{name: value, **with_it} for value in values[: 2 if name in SEEDED_TWICE else 1]]
    return plan
