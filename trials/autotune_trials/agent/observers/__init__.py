"""Watching a few dozen iterations of the job closely: profile runs only, after everything timed and
after torch.profiler.

    Watch ──▶ observers, each with one kind of evidence      begin │ end_iteration … │ finish ──▶ fields of Evidence
                iterations   times, phases, time away, time without a core
                sampler      lines at which the training thread was seen standing
                pauses       garbage collections
                compiles     dynamo's graph breaks and recompilations, with their reasons
                settings     optimizers (tried out), loader, models, memory, governors
                calls        tensors read out, prints, files written, copies of arrays, tensors made on the host, transfers

A further observer is one class after :class:`Observer` and one line in :mod:`watch`. What fails
steps aside and is named in ``Evidence.blind``; the job and the other observers go on.
"""

from autotune_trials.agent.observers.observer import Observer
from autotune_trials.agent.observers.watch import Watch

__all__ = ["Observer", "Watch"]
