"""While the job waits for the tuner, its DataLoader workers wait too."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.side_effects.file_watch import not_recording
from autotune_trials.file_restore.log import none_inside
from autotune_trials.supervisor import procfs


@contextlib.contextmanager
def children_stopped() -> Iterator[None]:
    """Stop this process's children of multiprocessing, and continue them."""
    pids = {child.pid for child in multiprocessing.active_children() if child.pid}
    if not pids:
        yield
        return
    with not_recording(), none_inside(os.path.join(log.directory(), "written")):
        procfs.stop(pids)
    try:
        yield
    finally:
        procfs.send(pids, signal.SIGCONT)
