"""Watches a few dozen iterations of the job closely, in profile runs only, after torch.profiler and
everything that is timed.

    Watch ──▶ observers, each with one kind of evidence      begin │ end_iteration … │ finish ──▶ fields of Evidence
                iterations   times, phases, time away, time without a core
                sampler      lines at which the training thread was seen
                pauses       garbage collections
                calls        tensors read out, prints, files written, copies of arrays, tensors made on the host, transfers
                compiles     dynamo's graph breaks and recompilations, with their reasons
                reading      time in which DataLoader workers fetched and decoded
                padding      share of padding in batches of text
                standing     optimizers (tried out), loader, models

To add an observer, subclass ``Observer`` (observer.py) and add it to ``OBSERVERS`` (watch.py). One
that fails is dropped and named in ``Evidence.blind``; the job and the other observers go on.
"""
