"""The ways a session can fail."""

from __future__ import annotations

from autotune_trials.protocol.messages import BlockReport

FAILURES = ("oom", "crash", "killed", "hang", "ended", "unhooked", "agent", "lost")


class SessionFailed(Exception):
    """A session could not finish its work.

    ``kind``: oom (device or host memory), crash (non-zero exit or signal), killed (SIGKILL from
    outside autotune), hang (no progress), ended (the job finished on its own before the work was
    done), unhooked (no optimizer step was seen), agent (autotune's own code failed in the job),
    lost (its machine is gone; detected by the executor that started it there, not by the session).
    ``where``: file and line in the user's code, if known. ``partial``: reports of the blocks that
    finished before the failure. ``directory``: the session directory, with the full logs.
    ``in_block``: iterations completed in the running block; None if unknown.
    """

    def __init__(
        self, kind: str, detail: str, *, log_tail: str = "", where: str = "", directory: str = ""
    ) -> None:
        assert kind in FAILURES, kind
        super().__init__(kind, detail)  # the arguments that unpickling passes back
        self.kind, self.detail, self.log_tail, self.where = kind, detail, log_tail, where
        self.directory = directory
        self.partial: tuple[BlockReport, ...] = ()
        self.in_block: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"
