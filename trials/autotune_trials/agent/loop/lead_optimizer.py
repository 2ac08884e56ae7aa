"""Which optimizer's step ends an iteration when a job has several.

    critic.step()  generator.step()  │ critic.step()  generator.step()  │ …      in turns: the last of the turn ends it
    critic.step()  │ critic.step()  │ critic.step()  generator.step()  │ …       in no fixed turn: the first that stepped does

A turn is all steps until the first optimizer steps again. An optimizer that the job has dropped is
replaced in the turn by the one that steps next: some jobs build their optimizers anew for each step. If a later turn differs, the first
optimizer leads from then on. Another one takes over only after the lead has fallen silent (a job
that trains in phases).
"""

from __future__ import annotations

import weakref
from typing import Any

SILENT = 50  # steps of other optimizers after which the lead counts as gone


class Lead:
    """Decides at every optimizer step."""

    def __init__(self) -> None:
        self._turn: list[weakref.ref[Any]] = []
        self._complete = self._broken = False
        self._next = 0  # position in the turn that is due
        self._lead: weakref.ref[Any] | None = None  # once the turn is broken
        self._silent = 0

    def ends_iteration(self, stepping: Any) -> bool:
        """Whether the iteration ends with this step of ``stepping``."""
        if self._broken:
            return self._is_lead(stepping)
        if not self._complete:
            began_anew = self._turn and self._turn[0]() is None
            if not began_anew and self._is_new(stepping):
                self._turn.append(weakref.ref(stepping))
                return True
            self._complete = True
        due = self._turn[self._next]()
        if due is None and self._is_new(stepping):
            self._turn[self._next] = weakref.ref(stepping)
        elif due is not stepping:
            self._broken, self._lead = True, self._turn[0]
            return self._is_lead(stepping)
        self._next = (self._next + 1) % len(self._turn)
        return self._next == 0

    @property
    def same_turn(self) -> bool:
        """Whether the step just judged belongs to the same turn as the one before it, which was
        taken for the turn's end.
        """
        return not self._complete and not self._broken and len(self._turn) > 1

    def _is_new(self, stepping: Any) -> bool:
        return all(known() is not stepping for known in self._turn)

    def _is_lead(self, stepping: Any) -> bool:
        lead = self._lead() if self._lead is not None else None
        if lead is stepping:
            self._silent = 0
            return True
        self._silent += 1
        if lead is None or self._silent > SILENT:
            self._lead, self._silent = weakref.ref(stepping), 0
            return True
        return False
