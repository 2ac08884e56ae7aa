"""Handles the job's own errors: exceptions that pass through our wrappers, the one the job dies of,
and running out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.controls.entry_modules import is_out_of_memory
from autotune_trials.agent.dataloader.worker_ends import was_killed

if TYPE_CHECKING:
    from autotune_trials.agent.bootstrap.last_words import LastWords
    from autotune_trials.agent.core.agent import Agent


class JobErrors:
    """Reports the job's errors to the tuner; the caller re-raises them."""

    def __init__(self, agent: Agent, last_words: LastWords) -> None:
        self._agent, self._last_words = agent, last_words

    def tell_restart(self) -> None:
        """Tell the tuner if torchrun has replaced ranks that died."""
        self._last_words.tell_restart()

    def on_job_error(self, error: BaseException) -> None:
        """An exception passes through job code that we wrap; the caller re-raises it."""
        if (
            not self._agent.state.stopped
            and isinstance(error, Exception)
            and is_out_of_memory(error)
        ):
            self._note_out_of_memory(error)
            self._last_words.tell(error, "oom", surviving=True)

    def on_uncaught(self, error: BaseException) -> None:
        """The job is about to die of ``error``."""
        try:
            lost = is_out_of_memory(error)
            if lost:
                self._note_out_of_memory(error)
            elif was_killed(error):
                log.leave_marker("killed")
            self._last_words.tell(error, "oom" if lost else "crash", surviving=False)
            self._agent.mode.on_crash()
        except Exception:  # the job's own error must still surface
            log.write_exception("excepthook")

    def _note_out_of_memory(self, error: BaseException) -> None:
        """Leave a marker and tell the mode, so that this process's end is not taken for a crash."""
        try:
            log.leave_marker("oom")
            log.write(f"oom: {str(error)[:500]}")
            self._agent.mode.on_out_of_memory(
                str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            )
        except Exception:  # ours must not replace the job's own error
            self._agent.fail("out of memory")
