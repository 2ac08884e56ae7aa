"""What the loader part tells of batches (see :mod:`.hooks`): time goes where it belongs, and it is noted what may be trained on.

    on_batch_start ── waiting ── on_batch ── the model … ── on_batch_start ── … ── on_epoch_end ── what comes between epochs
       │ what the last batch was for is known now              │ DATA                   │ AWAY
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.dataloader.worker_ends import KILLED, was_killed
from autotune_trials.measure.clock import AWAY, DATA, FORWARD

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.agent.dataloader.tracked import TrackedLoader


class BatchEvents:
    """Listens to the DataLoaders of the job."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._held = False  # knobs have been held at a batch
        self._pass_begun: tuple[Any, int] = (None, 0)

    def on_loader(self, built: Any, frame: Any) -> None:
        """A DataLoader has been built, called from ``frame``."""
        self._agent.sites.on_loader(built, frame)

    def on_batch_start(self, loader: TrackedLoader) -> None:
        agent = self._agent
        if agent.stopped:
            return
        if not self._held:
            self._held = True
            log.crumb("loader")
            agent.knobs.hold(final=False)
            agent.begin()
        if not agent.backwards:
            self._begin_with(loader)
        if agent.live.autocast.inside:
            agent.live.autocast.leave()
        other = self.is_other(loader)
        if agent.live.autocast.ending and not other:
            agent.live.autocast.end()
        if agent.measures:
            self._begin_waiting(other)

    def _begin_waiting(self, other: bool) -> None:
        """``other``: not for the loader trained on."""
        agent = self._agent
        self._end_of_batch()
        if other:
            agent.interruptions.note_other_loader()
        agent.clock.switch(AWAY if other and not agent.interruptions.other_loader_counts else DATA)
        agent.interruptions.note_batch()

    def _end_of_batch(self) -> None:
        """The job is done with the latest batch. If it was only evaluated, it is no part of the iteration."""
        agent = self._agent
        if agent.consumption.evaluating:
            agent.consumption.settle(left_out=agent.interruptions.leave_out_batch())
        else:
            agent.interruptions.end_look()

    def _begin_with(self, loader: TrackedLoader) -> None:
        """No backward yet: what came before this pass over the data (statistics, Lightning's try of the validation) was no training."""
        if self._pass_begun != (loader, loader.passes):
            self._pass_begun = (loader, loader.passes)
            self._agent.clock.resume()

    def on_batch(self, loader: TrackedLoader, batch: Any, samples: float, wait_s: float, turnover_s: float | None) -> None:
        agent = self._agent
        if agent.stopped:
            return
        if agent.measures:
            self._count(loader, samples, wait_s, turnover_s)
        else:
            agent.consumption.next_batch()
        if agent.clock.phase == AWAY and self.is_other(loader):
            return
        if turnover_s is not None:
            agent.clock.relabel(AWAY)
        agent.clock.switch(FORWARD)
        if agent.live.prefetch is not None and loader.training:
            agent.live.prefetch.on_batch(batch)
        if agent.live.autocast.dtype is not None and agent.iterations and loader.training and not agent.live.entries:
            agent.live.autocast.enter(agent.live.device or "cpu")  # a job that calls no module: from the batch on

    def _count(self, loader: TrackedLoader, samples: float, wait_s: float, turnover_s: float | None) -> None:
        """The batch may be trained on, and took ``wait_s``, of which the agent's own time is none."""
        agent, hooks = self._agent, self._agent.loader_hooks
        if hooks.own_s:
            agent.clock.last_s, wait_s, hooks.own_s = agent.clock.last_s + hooks.own_s, max(0.0, wait_s - hooks.own_s), 0.0
        if agent.consumption.begins_pass(hooks.last):
            self._begin_pass(loader)
        agent.consumption.fetch(loader, hooks.last, samples, wait_s, turnover_s)

    def _begin_pass(self, loader: TrackedLoader) -> None:
        """The batch is the first of its iterator. If nothing was trained in the pass before, over the same data, that was an evaluation."""
        agent = self._agent
        if agent.backwards and agent.consumption.passed_in_vain(loader):
            agent.interruptions.leave_out_pass()
            agent.consumption.leave_out_pass()
        agent.interruptions.note_pass()

    def on_epoch_end(self, loader: TrackedLoader) -> None:
        agent = self._agent
        if not agent.stopped and not self.is_other(loader):
            self._end_of_batch()
            agent.consumption.end_epoch(agent.loader_hooks.last, trained=agent.backwards > 0)
            agent.clock.relabel(AWAY)  # waiting for the end, and what comes until the next batch, is turnover

    def on_fault(self, where: str, text: str) -> None:
        """Trouble in the loader part, which has already put things right for the job."""
        log.write(f"{where}\n{text}")
        if where.startswith("loader settings"):
            killed = f" ({KILLED})" if was_killed(sys.exc_info()[1]) else ""
            self._agent.knobs.fail(f"{where}: {text.strip().splitlines()[-1]}{killed}")
            return
        self._agent.step_aside(where, text)

    def is_other(self, loader: TrackedLoader) -> bool:
        """Another loader than the one trained on, as far as that is known; one that is built anew for every epoch is the same."""
        known = self._agent.loader_hooks.training_state
        return known is not None and loader.key != known.key
