"""What an error says of the end of DataLoader workers: whether somebody killed one, whether there
are too many, and what is left of them.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterator
from typing import Any

PATIENCE_S = 5.0  # with a worker, or the thread that feeds it, that does not end
# as torch says it, where it has seen the signal
KILLED = "a DataLoader worker is killed by signal: Killed"


def was_killed(error: BaseException | None) -> bool:
    """By torch's words, or, where it says no more than "exited unexpectedly", by the exit codes of
    the workers it found gone.
    """
    return any("is killed by signal: Killed" in str(e) or _found_killed(e) for e in _chain(error))


# As torch and the system say it: a worker that ended, and what there was not enough of for so many.
# Where batches are pinned, what goes wrong on their way ends the thread that pins them.
_ENDED = re.compile(r"DataLoader worker \(pid|Pin memory thread exited")
_TOO_MANY = re.compile(
    r"Too many open files|items of ancdata|No space left on device|[Cc]annot allocate memory"
    r"|unable to (?:mmap|(?:open|allocate) shared memory|resize file|write to file)"
)
_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EAGAIN}


def ended_or_too_many(error: BaseException) -> bool:
    """Whether workers ended, or found no memory, descriptors or room in /dev/shm: with other
    settings the job would go on.

    What the job's own dataset raises in a worker is none of that.
    """
    text = str(error)
    if isinstance(error, OSError) and error.errno in _ERRORS:
        return True
    return isinstance(error, (RuntimeError, OSError, MemoryError)) and bool(
        _ENDED.match(text) or _TOO_MANY.search(text)
    )


def end_half_started(error: BaseException) -> None:
    """``error`` came while torch started workers one by one: end those that run, and give back
    their descriptors.

    torch itself does so when the iterator is collected, and not completely: its
    ``_shutdown_workers`` asks for what only a finished one has.
    """
    trace = error.__traceback__
    while trace is not None:
        iterator = trace.tb_frame.f_locals.get("self")
        if type(iterator).__name__ == "_MultiProcessingDataLoaderIter":
            end_workers(iterator)
            return
        trace = trace.tb_next


def end_workers(source: Any) -> None:
    """End the workers of torch's iterator ``source``, and give back their descriptors: the next
    source may need them at once.
    """
    if hasattr(source, "_workers_status"):  # all of them had started
        source._shutdown_workers()
        if not source._shutdown:
            return  # the interpreter is going down
    elif hasattr(source, "_workers"):
        source._shutdown = True
        for worker in source._workers:
            worker.terminate()
        for worker in source._workers:
            worker.join(timeout=PATIENCE_S)
        for queue in (*source._index_queues, source._worker_result_queue):
            queue.cancel_join_thread()
            queue.close()
    else:
        return
    for queue in source._index_queues:
        feeder = getattr(queue, "_thread", None)  # closes both ends of the queue as its last act
        if feeder is not None:
            feeder.join(timeout=PATIENCE_S)
    source._workers.clear()  # closes what each of them was watched by
    source._index_queues.clear()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _found_killed(error: BaseException) -> bool:
    """``torch.utils.data.dataloader``, ``_try_get_data``: the processes are in ``failed_workers``
    where it raises.
    """
    trace = error.__traceback__
    while trace is not None:
        if any(
            getattr(worker, "exitcode", None) == -signal.SIGKILL
            for worker in trace.tb_frame.f_locals.get("failed_workers") or ()
        ):
            return True
        trace = trace.tb_next
    return False
