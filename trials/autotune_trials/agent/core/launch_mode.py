"""``autotune launch``: settings are held, and nothing is measured.

Once the settings are applied to everything that exists, hooks that are not needed to hold them are
removed: most settings cost nothing from then on. A new optimizer brings the hooks back for itself
and its model. A setting that cannot be applied or kept, or that had no effect, is reported on
standard error, because nobody reads the log.
"""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from autotune_trials import api
from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.core.mode import Mode
from autotune_trials.agent.facts.parameters import parameters_of
from autotune_trials.agent.loop.module_discovery import LAUNCH_PATIENCE
from autotune_trials.agent.patches import backward, optimizer

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.agent.core.iteration import Iteration

AWAKE = ("backward_started", "iteration_ended")  # received until everything is applied


class LaunchMode(Mode):
    """Holds knobs and does nothing else."""

    measures = False

    _resting = False
    _latest = 0  # iterations when the latest optimizer was built
    _applied = False  # an iteration has ended with everything applied
    _asked = False  # it was checked whether the settings had an effect

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._reported: set[str] = set()
        agent.loop.fail_knob = self._fail_knob

    def _fail_knob(self, text: str) -> None:
        """A setting could not be kept. Reported at once: the end of the iteration may be missed."""
        self.agent.knobs.fail(text)
        self._report_failures()

    def _report_failures(self) -> None:
        for failure in self.agent.knobs.take_failures():
            if failure not in self._reported:  # each loader may report it again
                self._reported.add(failure)
                log.tell(f"a setting could not be applied; the job keeps its own value ({failure})")

    def _report_no_effect(self) -> None:
        self._asked = True
        for name, reason in self.agent.knobs.no_effect().items():
            if not any(f.startswith(f"{name}:") for f in self._reported):
                log.tell(f"a setting has no effect on the job ({name}: {reason})")

    def iteration_ended(self, iteration: Iteration) -> None:
        self._report_failures()
        iterations = self.agent.state.iterations
        warm = (
            iterations > 2 * self.agent.config.warmup_steps and not self.agent.modules.discovering
        )
        waits = not self.agent.live.all_have_stepped and iterations < self._latest + LAUNCH_PATIENCE
        self._applied = warm and not waits
        if self._applied and not self._asked:
            self._report_no_effect()

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        if self._applied and not self.agent.state.in_step:  # its hooks are in use during a step
            self._rest()

    def optimizer_built(self, built: Any, frame: FrameType, own_rates: bool) -> None:
        self._latest = self.agent.state.iterations
        if self._resting or not self.agent.modules.discovering:
            self._wake(built)

    def _wake(self, built: Any) -> None:
        """Watch for the steps of a new optimizer, and for calls of its model if that is new too."""
        agent = self.agent
        self._resting = self._applied = False
        agent.events.listen(agent.first_times, agent.modules)
        agent.events.recall(agent.modules, "iteration_ended")
        agent.events.recall(self, *AWAKE)
        backward.install(agent.patches, agent.torch, agent.loop, agent.traits)
        optimizer.listen_to_steps(agent.patches, agent.loop)
        known = {id(p) for entry in agent.live.entries for p in entry.module.parameters()}
        new = any(id(p) not in known for p in parameters_of(built))
        if new and not agent.traits.compiles:  # dynamo must see torch unpatched
            agent.modules.discover(True)
        api.receiver = agent.loop

    def _rest(self) -> None:
        """Remove the hooks that hold no setting. A removed hook that is still in use (a backward
        under way) behaves like torch's own function."""
        agent, events, live = self.agent, self.agent.events, self.agent.live
        self._resting = True
        agent.own_updates.end()
        for done in (agent.first_times, agent.modules):
            events.forget(done)
        if not (agent.loaders.overrides.values or events.batch_given):
            events.forget(agent.loaders.choice)  # nothing needs to know which loader is trained on
        events.forget(self, *AWAKE)
        if not (events.module_called or events.evaluated):
            for entry in live.entries:
                if not entry.changed:
                    entry.release()
        if not (events.step_started or events.step_ended or events.iteration_ending):
            agent.patches.restore(optimizer.STEPS)
        if not (events.backward_started or events.backward_arguments or events.backward_ended):
            agent.patches.restore(backward.NAME)
        if not (events.batch_requested or events.batch_given or agent.loaders.overrides.values):
            agent.loaders.uninstall()
        if not events.manual_step:
            api.receiver = None
