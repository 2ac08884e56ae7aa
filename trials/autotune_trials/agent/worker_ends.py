"""Whether an error of the job is the end of a DataLoader worker that somebody killed: the worker's doing is then none of the settings'."""

from __future__ import annotations

import signal
from collections.abc import Iterator

KILLED = "a DataLoader worker is killed by signal: Killed"  # as torch says it, where it has seen the signal


def was_killed(error: BaseException | None) -> bool:
    """By torch's words, or, where it says no more than "exited unexpectedly", by the exit codes of the workers it found gone."""
    return any("is killed by signal: Killed" in str(e) or _found_killed(e) for e in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _found_killed(error: BaseException) -> bool:
    """``torch.utils.data.dataloader``, ``_try_get_data``: the processes are in ``failed_workers`` where it raises."""
    trace = error.__traceback__
    while trace is not None:
        if any(getattr(worker, "exitcode", None) == -signal.SIGKILL for worker in trace.tb_frame.f_locals.get("failed_workers") or ()):
            return True
        trace = trace.tb_next
    return False
