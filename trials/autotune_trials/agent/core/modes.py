"""What the agent does with the iterations it sees: one class a session mode."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.facts.job_facts import rank
from autotune_trials.protocol.messages import PROGRESS_S, Progress

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.agent.core.iteration import Iteration

SLOWER, WORTH_TELLING_S = 2.0, 0.1  # times the slowest gap the tuner knows, and seconds: such a gap is told at once


class Mode:
    """Hears of every iteration. The base class holds knobs and does nothing else: ``launch``."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.startup_s = 0.0  # from the start of the process to the end of the first iteration
        self._shown_s = 0.0  # when the tuner was last told
        self._alive_s = 0.0  # the last sign of life; 0.0: none since the job stood still for the tuner
        self._slowest_s = self._told_s = 0.0

    def start(self) -> None:
        """The patches are in place; the job has not begun."""

    def start_over(self) -> None:
        """Iterations so far were miscounted: the next is the first."""

    def on_iteration(self, iteration: Iteration) -> None:
        """An iteration has ended; the job waits inside its optimizer hook until this returns."""
        failure, self.agent.knobs.failure = self.agent.knobs.failure, ""
        if failure:
            import sys

            print(f"autotune: a setting could not be applied and is left as the job has it ({failure})", file=sys.stderr)

    def on_evaluation(self) -> None:
        """The model is called without gradients: no iteration, but the job goes on."""

    def show_life(self) -> None:
        """Tell the tuner now and then that the job goes on, so that a slow one is not taken for hung."""
        now = perf_counter()
        if not self._alive_s:  # Hello or a Plan has just passed
            self._alive_s = now
            return
        self._slowest_s = max(self._slowest_s, now - self._alive_s)
        self._alive_s = now
        if now - self._shown_s >= PROGRESS_S or self._slowest_s > max(SLOWER * self._told_s, WORTH_TELLING_S):
            self._shown_s, self._told_s = now, self._slowest_s
            self.agent.channel.send(Progress(rank(self.agent.torch), self.agent.iterations, self._slowest_s))

    def stood_still(self, slowest_too: bool = False) -> None:
        """The job has waited for the tuner, which is no gap of its own. ``slowest_too``: another configuration begins."""
        self._alive_s = 0.0
        if slowest_too:
            self._slowest_s = self._told_s = 0.0

    def on_out_of_memory(self, text: str) -> None:
        """The job ran out of memory; the exception goes on through it."""

    def on_crash(self) -> None:
        """The job dies of an exception."""


def hello(agent: Agent) -> Any:
    """The first message of this process."""
    from autotune_spaces.machine import probe
    from autotune_trials.agent.facts.job_facts import fingerprint, job_facts
    from autotune_trials.protocol.messages import Hello

    job = job_facts(agent)
    return Hello(job.pid, rank(agent.torch), probe(agent.live.cuda), job, agent.mode.startup_s, fingerprint(agent))
