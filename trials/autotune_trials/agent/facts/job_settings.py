"""Settings the job makes outside torch that knobs also make: variables, cores, garbage
collector.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from autotune_spaces import machine
from autotune_spaces.topology import as_list
from autotune_trials.agent.controls import garbage_collector
from autotune_trials.agent.controls.garbage_collector import GcControl

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

# Variables by which a job may already set what a knob would set.
VARIABLES = """
    LD_PRELOAD PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF CUDNN_CONV_WSCAP_DBG GOMP_CPU_AFFINITY
    KMP_AFFINITY OMP_PROC_BIND OMP_PLACES NCCL_ALGO NCCL_PROTO NCCL_NVLS_ENABLE GLIBC_TUNABLES
    MALLOC_TRIM_THRESHOLD_ MALLOC_MMAP_THRESHOLD_ MALLOC_TOP_PAD_ MALLOC_MMAP_MAX_
""".split()


def own_settings(live: LiveJobControl) -> dict[str, str]:
    """Name -> value of what is set. Called before any live knob is switched; process knobs appear
    as the job's own settings.
    """
    found = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    found["cpus"] = as_list(machine.cpus())
    if not live.get(GcControl).collector.changed and (call := garbage_collector.own_setting()):
        found["gc"] = call
    torch = live.torch
    if torch.are_deterministic_algorithms_enabled():
        found["deterministic"] = "torch.use_deterministic_algorithms(True)"
    elif torch.backends.cudnn.deterministic:
        found["deterministic"] = "torch.backends.cudnn.deterministic = True"
    return found
