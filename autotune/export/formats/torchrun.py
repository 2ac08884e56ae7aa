"""Exports the job as a script that runs it under torchrun."""

from __future__ import annotations

from autotune.export.formats.base import Format
from autotune.export.formats.launchers import (
    launched_by,
    own_threads,
    script,
    take_apart,
    threads_by_variable,
    without,
)
from autotune.export.formats.resources import resources_of
from autotune.export.shell_words import comment, head, words_of
from autotune.export.tuned import TunedConfig


def write(tuned: TunedConfig) -> str:
    parts = take_apart(words_of(tuned), "torchrun")
    title = head(tuned, "under torchrun, with the tuned settings that torchrun can pass on")
    if parts.launcher == "torchrun":
        options = list(parts.options)
    else:
        processes = 1 if parts.launcher == "python" else resources_of(tuned).processes
        options = ["--standalone", f"--nproc-per-node={processes}"]
        if processes == 1:
            title += comment(
                "One process, as it was tuned. With more, every rank reads its own batches: tune"
                " that command instead."
            )
        if parts.options and parts.launcher == "python":
            title += comment(
                f"Left out, because torchrun starts python itself: {' '.join(parts.options)}"
            )
        if parts.launcher == "accelerate":
            left_out = ["accelerate launch", *without(parts.options, ["--num_processes"])]
            title += comment(
                f"Left out, because torchrun starts the program itself: {' '.join(left_out)}"
            )
            title += comment(
                "The program must set what these options and accelerate's configuration file set"
                " (precision, FSDP, DeepSpeed)."
            )
    exports = {}
    if threads_by_variable(tuned):
        # torchrun sets it to 1 if it is unset
        exports["OMP_NUM_THREADS"] = str(tuned.knobs["intra_op_threads"].value)
    elif parts.launcher == "accelerate" and (threads := own_threads(tuned)):
        exports["OMP_NUM_THREADS"] = str(threads)  # accelerate sets it, too
    native = {"intra_op_threads"} if threads_by_variable(tuned) else set()
    torchrun = launched_by(words_of(tuned)[0], ["torchrun"], "torch.distributed.run")
    command = [*torchrun, *options, *parts.program]
    return script(tuned, title, command, native, exports, "torchrun")


TORCHRUN = Format("torchrun", "the job under torchrun", write, executable=True)
