"""Exports the job as a script that runs it under torchrun."""

from __future__ import annotations

from autotune.export.formats.base import Format
from autotune.export.formats.launchers import launched_by, parts_for, script, threads_by_variable
from autotune.export.shell_words import comment, head, words_of
from autotune.export.tuned import TunedConfig


def write(tuned: TunedConfig) -> str:
    parts = parts_for(tuned, "torchrun")
    title = head(tuned, "under torchrun, with the tuned settings that torchrun can pass on")
    options = list(parts.options)
    if parts.launcher == "python":
        options = ["--standalone", "--nproc-per-node=1"]
        title += comment(
            "One process, as it was tuned. With more, every rank reads its own batches: tune that"
            " command instead."
        )
        if parts.options:
            left_out = " ".join(parts.options)
            title += comment(f"Left out, because torchrun starts python itself: {left_out}")
    exports = {}
    if threads_by_variable(tuned):
        # torchrun sets it to 1 if it is unset
        exports["OMP_NUM_THREADS"] = str(tuned.knobs["intra_op_threads"].value)
    native = {"intra_op_threads"} if exports else set()
    torchrun = launched_by(words_of(tuned)[0], ["torchrun"], "torch.distributed.run")
    command = [*torchrun, *options, *parts.program]
    return script(tuned, title, command, native, exports, "torchrun")


TORCHRUN = Format("torchrun", "the job under torchrun", write, executable=True)
