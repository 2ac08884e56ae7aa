"""Global settings that the job sets itself: a knob for the same setting must know about them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.facts.construction import construction_spot, site_of
from autotune_trials.agent.patches.patch_set import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.core.knob_applier import Knobs
    from autotune_trials.agent.facts.call_sites import SiteRecorder
    from autotune_trials.agent.facts.job_traits import JobTraits


def install(
    patches: PatchSet, torch: Any, knobs: Knobs, traits: JobTraits, sites: SiteRecorder
) -> None:
    """Note where the job calls ``torch.set_num_threads``, and, while sites are recorded,
    ``set_float32_matmul_precision``.
    """

    def make(patch: Patch, original: Any) -> Any:
        def change(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            # a loader's pin-memory thread sets its own number of threads
            by_loader = caller.f_globals.get("__name__", "").startswith("torch.utils.data.")
            if patch.active and not knobs.applying and not by_loader:
                if patch.attribute == "set_num_threads":
                    where = site_of(construction_spot(original, caller))
                    traits.settings.setdefault(patch.attribute, where)
                sites.on_setting(patch.attribute, caller)
            return original(*args, **kwargs)

        return change

    patches.add("torch.set_num_threads", torch, "set_num_threads", make)
    if sites.open:
        name = "set_float32_matmul_precision"
        patches.add(f"torch.{name}", torch, name, make)
