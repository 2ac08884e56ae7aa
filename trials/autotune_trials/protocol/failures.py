"""How a session fails."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_trials.protocol.messages import BlockReport

FAILURES = ("oom", "crash", "killed", "hang", "ended", "unhooked", "agent", "lost")


class SessionFailed(Exception):
    """A session did not do what was asked of it.

    ``kind``: oom (device or host memory), crash (non-zero exit or signal), killed (SIGKILL by
    somebody else), hang (no progress), ended (the job finished by itself before the work was done),
    unhooked (no optimizer step is seen, and why), agent (our own code failed in the job), lost (the
    machine it ran on is gone, which no session finds itself, but who started it there).
    ``where``: file and line in the user's code, if known. ``partial``: reports of blocks that were
    finished before.
    ``directory``: the session's, with the whole logs. ``in_block``: iterations of the running block
    that were done; None: not known.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        log_tail: str = "",
        where: str = "",
        partial: Sequence[BlockReport] = (),
        directory: str = "",
    ) -> None:
        assert kind in FAILURES, kind
        super().__init__(kind, detail)  # what it is made of again where it was pickled
        self.kind, self.detail, self.log_tail, self.where = kind, detail, log_tail, where
        self.partial, self.directory = tuple(partial), directory
        self.in_block: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"
