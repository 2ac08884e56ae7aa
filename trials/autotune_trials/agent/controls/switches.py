"""All controls."""

from __future__ import annotations

from autotune_trials.agent.controls.attention import AttentionControl
from autotune_trials.agent.controls.autocast import AutocastControl
from autotune_trials.agent.controls.control import Control
from autotune_trials.agent.controls.cuda_prefetch import CudaPrefetch
from autotune_trials.agent.controls.garbage_collector import GcControl
from autotune_trials.agent.controls.lr_factor import LrFactor
from autotune_trials.agent.controls.malloc_retain import MallocRetain
from autotune_trials.agent.controls.non_blocking import NonBlocking
from autotune_trials.agent.controls.optimizers import OptimizerImplementation

SWITCHES: tuple[type[Control], ...] = (
    GcControl,
    MallocRetain,
    AutocastControl,
    NonBlocking,
    CudaPrefetch,
    AttentionControl,
    LrFactor,
    OptimizerImplementation,
)  # restored in this order
