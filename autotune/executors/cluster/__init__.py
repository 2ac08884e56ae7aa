"""Sessions on a Ray cluster: the executor ``ray``.

    tuner: RayExecutor ──▶ lane.Slot ══ray══▶ slot.Slot (actor) ──▶ LocalExecutor ──▶ Session ──▶ supervisor ──▶ the command
             │ lanes()        one a slot       one a node, or a share of one      as on this machine
             └ Optuna, journal, tracking, report stay here

A slot of several nodes has an Outpost on each of the others, whose part of the session is relayed
to the slot's own (multinode/).

Ray is used for what it is good at: knowing the machines, holding a slot of one for us alone,
starting a process there, carrying
answers, and noticing that a machine is gone. Not Ray Tune: docs/ray.md says why.
"""
