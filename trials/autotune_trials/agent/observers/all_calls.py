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
        if self._compiled():
            # dynamo guards on the identity of functions like torch.randn: a patch would make it
            # compile again
            self.blind["copies"] = (
                "the job is compiled; watching torch functions would trigger recompilation"
            )
        else:
            copies.install(self)
            casts.install(self)

    def _compiled(self) -> bool:
        """Whether any part of the job runs through dynamo."""
        compiled = any(entry.compiled for entry in self.agent.live.entries)
        return bool(self.agent.traits.compiles or dynamo_graphs() or compiled)
