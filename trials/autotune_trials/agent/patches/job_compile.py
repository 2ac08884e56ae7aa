"""What the job already does itself: ``torch.compile`` and gradient scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.patch_set import Patch, PatchSet, untraced

if TYPE_CHECKING:
    from autotune_trials.agent.core.training_loop import TrainingLoop
    from autotune_trials.agent.facts.job_traits import JobTraits
    from autotune_trials.agent.loop.module_discovery import ModuleDiscovery


def install(
    patches: PatchSet,
    torch: Any,
    loop: TrainingLoop,
    modules: ModuleDiscovery,
    traits: JobTraits,
    on_scaled: Callable[[Any, Any, Any], None] | None,
) -> None:
    """Watch ``torch.compile``, the construction of a GradScaler, the steps it skips, and the losses
    it scales (``on_scaled(loss, scaled, scale)``; None: neither is needed).
    """

    def make_compile(patch: Patch, original: Any) -> Any:
        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not patch.active or model is None:
                return original(model, *args, **kwargs)
            modules.before_own_compile(model)
            compiled = original(model, *args, **kwargs)
            modules.after_own_compile(compiled)
            return compiled

        return compile

    def make_scaler(patch: Patch, original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if patch.active and self.is_enabled():
                traits.scaler = True

        return __init__

    def make_scale(patch: Patch, original: Any) -> Any:
        def scale(self: Any, outputs: Any) -> Any:
            scaled = original(self, outputs)
            if patch.active and on_scaled is not None:
                on_scaled(outputs, scaled, getattr(self, "_scale", None))
            return scaled

        return untraced(scale)

    def make_step(patch: Patch, original: Any) -> Any:
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = loop.steps_begun
            result = original(self, optimizer, *args, **kwargs)
            if patch.active and self.is_enabled() and loop.steps_begun == before:
                loop.on_no_step(self, optimizer)
            return result

        return untraced(step)

    patches.add("torch.compile", torch, "compile", make_compile)
    patches.add("GradScaler.__init__", torch.amp.GradScaler, "__init__", make_scaler)
    if on_scaled is not None:
        patches.add("GradScaler.step", torch.amp.GradScaler, "step", make_step)
        patches.add("GradScaler.scale", torch.amp.GradScaler, "scale", make_scale)
