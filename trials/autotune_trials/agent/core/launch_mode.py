"""``autotune launch``: settings are held, and nobody asks how the job does.

Once they are applied to all there is, whatever is not needed to hold them is taken back: most
settings cost nothing from then on.
A new optimizer is waited for again.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from autotune_trials import api
from autotune_trials.agent.core.modes import Mode
from autotune_trials.agent.patches import backward, optimizer

if TYPE_CHECKING:
    from autotune_trials.agent.core.iteration import Iteration

AWAKE = ("backward_started", "iteration_ended")  # heard until everything is applied


class LaunchMode(Mode):
    """Holds knobs and does nothing else."""

    measures = False

    _resting = False
    _applied = False  # an iteration has ended with everything applied

    def iteration_ended(self, iteration: Iteration) -> None:
        failure = self.agent.knobs.take_failure()
        if failure:
            print(
                "autotune: a setting could not be applied and is left as the job has it "
                f"({failure})",
                file=sys.stderr,
            )
        warm = (
            self.agent.state.iterations > self.agent.config.warmup_steps
            and not self.agent.modules.watching
        )
        self._applied = warm and self.agent.live.all_have_stepped

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        if self._applied and not self.agent.state.in_step:  # torch walks its hooks during a step
            self._rest()

    def optimizer_built(self, built: Any, frame: FrameType) -> None:
        if self._resting:
            self._wake()

    def _wake(self) -> None:
        """Wait for the steps of a new optimizer."""
        agent = self.agent
        self._resting = self._applied = False
        agent.events.listen(agent.first_times)
        agent.events.recall(self, *AWAKE)
        backward.install(agent.patches, agent.torch, agent.loop, agent.traits)
        optimizer.listen_to_steps(agent.patches, agent.loop)

    def _rest(self) -> None:
        """Take back what holds no setting. What was taken back and is in use (a backward under way)
        behaves as torch's own."""
        agent, events, live = self.agent, self.agent.events, self.agent.live
        self._resting = True
        for done in (agent.first_times, agent.modules, agent.own_updates):
            events.forget(done)
        if not agent.loaders.overrides:
            events.forget(agent.credit)
        events.forget(self, *AWAKE)
        if not (events.module_called or events.evaluated or live.micro is not None):
            for entry in live.entries:
                if not entry.changed:
                    entry.release()
        if not (events.step_started or events.step_ended or events.iteration_ending):
            agent.patches.restore(optimizer.STEPS)
        if not (events.backward_started or events.backward_arguments or events.backward_ended):
            agent.patches.restore(*backward.NAMES)
        if not (events.batch_requested or events.batch_given or agent.loaders.overrides):
            agent.loaders.uninstall()
        if not events.manual_step:
            api.receiver = None
