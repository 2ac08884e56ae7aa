"""Half precision raised to float32 in the middle of a model: operators that autocast keeps in
float32, and the job's own casts.

Only in jobs that compute in half precision. Compiled jobs are not watched: there casts are fused
away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.autocast import AutocastControl
from autotune_trials.agent.observers.calls import About, CallObserver, Describe, bytes_of, shape_of

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent

KIND = "cast"
# What autocast runs in float32 on CUDA or on a CPU (https://docs.pytorch.org/docs/stable/amp.html,
# "Autocast Op Reference").
FUNCTIONAL = """
    softmax log_softmax softmin softplus layer_norm group_norm rms_norm local_response_norm
    normalize cosine_similarity pdist interpolate grid_sample pad avg_pool3d binary_cross_entropy
    mse_loss l1_loss smooth_l1_loss cross_entropy nll_loss kl_div cosine_embedding_loss
    hinge_embedding_loss
""".split()
METHODS = """
    float softmax log_softmax exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh tan norm
    cumprod cumsum prod renorm erfinv acos asin cosh dist quantile logsumexp polygamma
""".split()


def install(calls: CallObserver) -> None:
    """Watch the functions above."""
    torch, agent = calls.torch, calls.agent
    if not half_precision(agent):
        return
    for name in FUNCTIONAL:
        calls.watch_calls(torch.nn.functional, name, _raised(torch, name))
    for name in METHODS:
        calls.watch_calls(torch.Tensor, name, _raised(torch, name), of_tensor=True)
        if name != "float":
            calls.watch_calls(torch, name, _raised(torch, name))


def half_precision(agent: Agent) -> bool:
    """Whether the job computes under autocast, its own or a knob's, or has half-precision
    parameters.
    """
    if agent.traits.autocast or agent.live.get(AutocastControl).region.dtype is not None:
        return True
    halves = (agent.torch.bfloat16, agent.torch.float16)
    return any(p.dtype in halves for entry in agent.live.entries for p in entry.module.parameters())


def _raised(torch: Any, name: str) -> Describe:
    """Reports a call that got half precision and returned float32."""

    def about(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> About | None:
        given = args[0] if args else kwargs.get("input")
        if (
            given is None
            or getattr(result, "dtype", None) is not torch.float32
            or getattr(given, "dtype", None) not in (torch.bfloat16, torch.float16)
        ):
            return None
        return About(KIND, given.device.type, f"{name} of {shape_of(given)}", bytes_of(given))

    return about
