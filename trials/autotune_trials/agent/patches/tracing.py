"""Keeps dynamo from compiling the agent's own frames, where a job compiles its whole training step.

A hook called inside such a step breaks the graph there; what the hook calls is then compiled frame
by frame, with warnings about every system call, and again whenever the agent's state changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune_trials.agent.bootstrap import import_hook
from autotune_trials.agent.patches.patch_set import PatchSet

# Not those with functions that are traced with the job's model: the patches, and compile_mode's.
FOLDERS = "core", "dataloader", "facts", "loop", "observers"
FILES = (
    "controls/garbage_collector.py",
    "controls/optimizer_copy.py",
    "controls/optimizers.py",
    "patches/backward.py",
)


def install(patches: PatchSet) -> None:
    """Skip the agent's folders, now or once dynamo has been imported."""
    agent = Path(__file__).resolve().parents[1]
    ours = [str(agent / name) for name in (*FOLDERS, *FILES)]
    rules: list[Any] = []

    def skip(found: Any) -> None:
        rules.append(found)
        found.SKIP_DIRS.extend(ours)
        found._recompile_re()

    def undo() -> None:
        import_hook.forget("torch._dynamo.trace_rules")
        for found in rules:
            found.SKIP_DIRS[:] = [path for path in found.SKIP_DIRS if path not in ours]
            found._recompile_re()

    patches.on_restore(undo)
    import_hook.call("torch._dynamo.trace_rules", skip)
