"""What other programs do on the GPUs, asked of nvidia-smi while no session runs.

It asks about whole GPUs, not processes: a container does not see those of others.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

IDLE_GIB = 1.0  # an idle driver holds a few hundred MiB
IDLE_BUSY = 5  # percent of the time with a kernel running
TIMEOUT_S = 20.0  # without a persistence daemon the driver first has to wake up
QUERY = (
    "nvidia-smi",
    "--query-gpu=index,memory.used,utilization.gpu",
    "--format=csv,noheader,nounits",
)


def gpu_load(environ: Mapping[str, str]) -> tuple[str, ...]:
    """One clause for each GPU of CUDA_VISIBLE_DEVICES in use; (): none is, or it is unknown."""
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    command = [*QUERY, *(["-i", visible] if visible else [])]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        index, *figures = (word.strip() for word in line.split(","))
        if len(figures) != 2 or not all(figure.isdigit() for figure in figures):
            continue  # "[N/A]", from a partitioned GPU (MIG)
        used_gib, busy = int(figures[0]) / 1024, int(figures[1])
        if used_gib >= IDLE_GIB or busy >= IDLE_BUSY:
            found.append(f"GPU {index}: {used_gib:.1f} GiB in use, busy {busy}% of the time")
    return tuple(found)
