"""Why DataLoader workers ended (killed, or too many of them), and how to end those that remain."""

from __future__ import annotations

import errno
import re
import signal
import traceback
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

PATIENCE_S = 5.0  # how long to wait for a worker, or for the thread that feeds it, to end
ENDING_S = 1.0  # how long a killed worker may take to end after its connection was reset
# torch's message, once it has seen the signal
_SIGKILL = "is killed by signal: Killed"
KILLED = f"a DataLoader worker {_SIGKILL}"


def was_killed(error: BaseException | None) -> bool:
    """Whether a worker was killed: by torch's message, or, where that only says "exited
    unexpectedly", by the exit codes of the workers it found dead.
    """
    try:
        return any(_SIGKILL in str(e) or _found_killed(e) for e in _chain(error))
    except RuntimeError as seen:  # torch's handler of SIGCHLD raises wherever the process is
        return _SIGKILL in str(seen)


# Messages of torch and the system: a worker that ended, or too few resources for so many workers.
# With pinned batches, an error on their way ends the thread that pins them.
_ENDED = re.compile(r"DataLoader worker \(pid|Pin memory thread exited")
_TOO_MANY = re.compile(
    r"Too many open files|items of ancdata|No space left on device|[Cc]annot allocate memory"
    r"|unable to (?:mmap|(?:open|allocate) shared memory|resize file|write to file)"
)
# from a dataset that computes on the GPU: CUDA cannot be used in a fork of a process that uses it
_FORKED = re.compile(r"Cannot re-initialize CUDA in forked|CUDA error: initialization error")
_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EAGAIN}


def ended_or_too_many(error: BaseException) -> bool:
    """Whether workers ended, ran out of memory, descriptors or /dev/shm, or cannot use CUDA: other
    settings might work.

    Errors that the job's own dataset raises in a worker do not count.
    """
    text = str(error)
    if isinstance(error, OSError) and error.errno in _ERRORS:
        return True
    return isinstance(error, (RuntimeError, OSError, MemoryError)) and bool(
        _ENDED.match(text) or _TOO_MANY.search(text) or _FORKED.search(text)
    )


def end_half_started(error: BaseException) -> None:
    """End the workers that run, and close their descriptors, after ``error`` in the middle of
    starting them.

    torch itself does so when the iterator is collected, but not completely: its
    ``_shutdown_workers`` needs attributes that only a fully started iterator has.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        iterator = frame.f_locals.get("self")
        if type(iterator).__name__ == "_MultiProcessingDataLoaderIter":
            end_workers(iterator)
            return


def end_workers(source: Any) -> None:
    """End the workers of torch's iterator ``source`` and close their descriptors: the next source
    may need them at once.
    """
    if hasattr(source, "_workers_status"):  # all workers had started
        source._shutdown_workers()
        if not source._shutdown:
            return  # the interpreter is shutting down
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
        feeder = getattr(queue, "_thread", None)  # its last act is to close both ends of the queue
        if feeder is not None:
            feeder.join(timeout=PATIENCE_S)
    source._workers.clear()  # closes the sentinels they were watched by
    source._index_queues.clear()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _found_killed(error: BaseException) -> bool:
    """Whether a worker of an iterator that ``error`` passed through has the exit code of SIGKILL.

    torch itself may not have noticed: ``ConnectionResetError`` if the worker died while it handed
    over a batch. It may still be ending then.
    """
    iterators = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    found = (getattr(iterator, "_workers", None) for iterator in iterators)
    workers = {w.sentinel: w for some in found if isinstance(some, list) for w in some}
    if workers and isinstance(error, (ConnectionError, EOFError)):
        for sentinel in wait([*workers], timeout=ENDING_S):
            workers[sentinel].join(ENDING_S)  # it has closed its files, and may not have ended
    return any(worker.exitcode == -signal.SIGKILL for worker in workers.values())
