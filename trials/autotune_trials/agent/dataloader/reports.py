"""Reports of the DataLoader hooks: errors that were handled, and settings a loader cannot take."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from autotune_trials.agent.bootstrap import log
from autotune_trials.protocol.messages import LOADER_SETTINGS


class LoaderReports:
    """Reports to the agent; never raises."""

    def __init__(
        self, on_fault: Callable[[str, str], None], on_refusal: Callable[[str, str], None]
    ) -> None:
        self._on_fault, self._on_refusal = on_fault, on_refusal

    def fault(self, where: str, trouble: str = "") -> None:
        """Report ``trouble``, a traceback; by default that of the exception being handled."""
        try:
            self._on_fault(where, trouble or traceback.format_exc())
        except Exception:
            log.write_exception(f"{where}, reporting")

    def refusal(self, settings: str, why: str, kind: str = LOADER_SETTINGS) -> None:
        """Report that the job's own settings stay in force instead of ``settings``."""
        try:
            self._on_refusal(f"{kind} {settings}", why)
        except Exception:
            log.write_exception("reporting a refusal")
