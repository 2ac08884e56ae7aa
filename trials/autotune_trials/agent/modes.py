"""What the agent does with the iterations it sees: one class a session mode."""

from __future__ import annotations

from typing import Any

from autotune_trials.agent.facts import rank
from autotune_trials.protocol import Progress

PROGRESS_S = 5.0  # between two signs of life


class Mode:
    """Hears of every iteration. The base class holds knobs and does nothing else: ``launch``."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self._shown_s = 0.0

    def start(self) -> None:
        """The patches are in place; the job has not begun."""

    def start_over(self) -> None:
        """Iterations so far were miscounted: the next is the first."""

    def on_iteration(self, iteration: Any) -> None:
        """An iteration has ended; the job waits inside its optimizer hook until this returns."""
        failure, self.agent.knobs.failure = self.agent.knobs.failure, ""
        if failure:
            import sys

            print(f"autotune: a setting could not be applied and is left as the job has it ({failure})", file=sys.stderr)

    def show_life(self, iteration: Any) -> None:
        """Tell the tuner now and then that the job goes on, so that a slow one is not taken for hung."""
        now = self.agent.clock.last_s
        if not self._shown_s:
            self._shown_s = now  # Hello or a Plan has just passed
        elif now - self._shown_s >= PROGRESS_S:
            self._shown_s = now
            self.agent.channel.send(Progress(rank(self.agent.torch), iteration.index))

    def on_out_of_memory(self, text: str) -> None:
        """The job ran out of memory; the exception goes on through it."""

    def on_crash(self) -> None:
        """The job dies of an exception."""


def hello(agent: Any) -> Any:
    """The first message of this process."""
    from autotune_spaces.machine import probe
    from autotune_trials.agent.facts import fingerprint, job_facts
    from autotune_trials.protocol import Hello

    job = job_facts(agent)
    return Hello(job.pid, rank(agent.torch), probe(), job, agent.mode.startup_s, fingerprint(agent))
