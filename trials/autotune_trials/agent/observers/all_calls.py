"""All watched calls, each kind in its own file."""

from __future__ import annotations

from autotune_trials.agent.facts.dynamo import dynamo_graphs
from autotune_trials.agent.observers import casts, collectives, copies, outputs, readouts
from autotune_trials.agent.observers.calls import CallObserver


class AllCalls(CallObserver):
    def begin(self) -> None:
        readouts.install(self)
        outputs.install(self)
        collectives.install(self)
        compiled = any(entry.compiled for entry in self.agent.live.entries)
        if self.agent.traits.compiles or compiled or dynamo_graphs():
            # dynamo guards on the identity of functions like torch.randn: a patch would make it
            # compile again
            self.blind["copies"] = (
                "the job is compiled; watching torch functions would trigger recompilation"
            )
        else:
            copies.install(self)
            casts.install(self)
