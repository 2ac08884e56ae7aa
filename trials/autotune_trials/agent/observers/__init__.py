"""Watches a few dozen iterations of the job closely, in profile runs only, after torch.profiler and
everything that is timed.

    Watch ──▶ observers, each with one kind of evidence      begin │ end_iteration … │ finish ──▶ fields of Evidence
                iterations   times, phases, time away, time without a core
                sampler      lines at which the training thread was seen
                pauses       garbage collections
                compiles     dynamo's graph breaks and recompilations, with their reasons
                settings     optimizers (tried out), loader, models
                calls        tensors read out, prints, files written, copies of arrays, tensors made on the host, transfers

To add an observer, subclass :class:`Observer` and add a line to :mod:`watch`. An observer that
fails is dropped and named in ``Evidence.blind``; the job and the other observers go on.
"""

from autotune_trials.agent.observers.observer import Observer
from autotune_trials.agent.observers.watch import Watch

__all__ = ["Observer", "Watch"]
