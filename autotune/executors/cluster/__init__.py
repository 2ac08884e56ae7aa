"""Sessions on a Ray cluster: the executor ``ray``.

    tuner: RayExecutor ──▶ lane.Lane ══ray══▶ slot.Slot (actor) ──▶ LocalExecutor ──▶ Session ──▶ supervisor ──▶ the command
             │ lanes()        one per slot     one per node, or part of one       as on this machine
             └ Optuna, journal, tracking, report stay here

A slot of several nodes has an Outpost on each of the others, whose part of the session is relayed
to the slot's own (multinode/).

Ray does what it is good at: knowing the machines, reserving a slot on one for us alone, starting a
process there, carrying answers, and noticing that a machine is gone.
"""
