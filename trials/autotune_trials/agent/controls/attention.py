"""Which kernel computes scaled_dot_product_attention: reads it from the loss's graph, and sets it.

torch tries its kernels in order and takes the first that supports the call. On CUDA the order can
be changed: a preferred kernel goes first, and the others still do the calls it does not support. A
CPU has two, whatever the order: flash, and math where flash is off or unsupported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_spaces.knobs.sdpa_backend import MEMBERS
from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.loop.autograd_graph import listed, nodes
from autotune_trials.protocol.messages import SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

NODES = {
    "ScaledDotProductFlashAttentionBackward0": "flash",
    "ScaledDotProductFlashAttentionForCpuBackward0": "flash",
    "ScaledDotProductEfficientAttentionBackward0": "efficient",
    "ScaledDotProductCudnnAttentionBackward0": "cudnn",
}
COMPILED = "CompiledFunctionBackward"  # its kernels do not appear in the graph
SWITCHES = ("flash", "mem_efficient", "cudnn")  # math stays on, for calls these do not support
Settings = tuple[list[int], dict[str, bool], bool]


class AttentionControl(Control):
    """Inspects the graphs of one iteration after each switch, except in launch mode. Values:
    "flash", "efficient", "cudnn", "math", None.
    """

    name = "attention"

    def __init__(self, live: LiveJobControl) -> None:
        super().__init__(live)
        # the iteration whose graphs are inspected, -1 for none
        self.look_at = 1 if live.config.mode == SessionMode.LIVE else -1
        self.preferred: str | None = None
        # fused kernels in the graphs of that iteration; None where compiled code hides them
        self.seen: set[str] | None = set()
        # The job's order, switches and graph-cache flag, while they are changed.
        self._own: Settings | None = None
        self.listen(self.look_at > 0)

    def set(self, value: Any) -> None:
        device = self.live.cuda or self.live.device
        if self.prefer(value, device, self.live.state.iterations):
            self.listen(self.live.config.mode != SessionMode.LAUNCH)
            for entry in self.live.entries:
                entry.forward.compile_anew()

    def effect(self) -> str | None:
        seen, wanted = self.seen, self.preferred
        if wanted is None or seen is None or wanted in seen or (wanted == "math" and not seen):
            return None
        return f"torch ran {' and '.join(sorted(seen)) or 'no fused kernel'} instead"

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        iterations = self.live.state.iterations
        if iterations == self.look_at:
            self.look(tensors)
        elif iterations > self.look_at:
            self.listen(False)

    def look(self, tensors: Any) -> None:
        """Record the kernels in the graphs of ``tensors``, which may be one or several."""
        outputs = [getattr(tensor, "grad_fn", None) for tensor in listed(tensors)]
        names = {node.name() for node in nodes(outputs)}
        if COMPILED in names:
            self.seen = None
        if self.seen is not None:
            self.seen |= {NODES[name] for name in names & NODES.keys()}

    def prefer(self, kernel: str | None, device: Any, iteration: int) -> bool:
        """Run ``kernel`` where it supports the call; None: as the job had it.

        Args:
            kernel: "flash", "efficient", "cudnn" or "math".
            device: the device trained on, or its type; "" if not known yet, which changes nothing.
            iteration: the first one it applies to.

        Returns: whether anything was switched.
        """
        if kernel == self.preferred or not device:
            return False
        from torch._functorch import config as compiler
        from torch.backends import cuda

        own = self._own = self._own or self._settings(device, cuda, compiler)
        order, switches, cached = own
        if kernel is None:
            self._own = None
        elif kernel == "math":
            switches = dict.fromkeys(switches, False)
        else:
            from torch.nn.attention import SDPBackend

            first = int(getattr(SDPBackend, MEMBERS[kernel]))
            order = [first, *(number for number in order if number != first)]
        self.torch._C._set_sdp_priority_order(order)
        for name, on in switches.items():
            getattr(cuda, f"enable_{name}_sdp")(on)
        # The cache key omits the kernel: torch would load a graph compiled with another one.
        compiler.enable_autograd_cache = cached and kernel is None
        self.preferred, self.look_at, self.seen = kernel, iteration, set()
        return True

    def _settings(self, device: Any, cuda: Any, compiler: Any) -> Settings:
        torch = self.torch
        if str(device).startswith("cuda"):
            # On some GPUs torch sets the order when it first chooses a kernel: let it do that
            # before us.
            probe = torch.empty(1, 1, 1, 8, device=device)
            torch._fused_sdp_choice(probe, probe, probe)
        switches = {name: bool(getattr(cuda, f"{name}_sdp_enabled")()) for name in SWITCHES}
        order = list(torch._C._get_sdp_priority_order())
        return order, switches, bool(compiler.enable_autograd_cache)
