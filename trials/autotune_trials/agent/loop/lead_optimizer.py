"""Which optimizer's step ends an iteration when a job has several.

    critic.step()  generator.step()  │ critic.step()  generator.step()  │ …      in turns: the last of the turn ends it
    critic.step()  │ critic.step()  │ critic.step()  generator.step()  │ …       in no fixed turn: the first that stepped does

A turn is all steps until the first optimizer steps again. An optimizer that the job has dropped is
replaced in the turn by the new one that steps next: some jobs build their optimizers anew for each
step. If a later turn differs, the first optimizer leads from then on. Another one takes over only
after the lead has fallen silent (a job that trains in phases); soon if it has done so before.
"""

from __future__ import annotations

import weakref
from typing import Any

SILENT = 50  # steps of other optimizers after which the lead counts as gone
# steps of one other optimizer in a row, each after a backward of its own, after which a lead that
# has fallen silent before has done so again
SILENT_AGAIN = 3


class LeadOptimizer:
    """Decides at every optimizer step."""

    def __init__(self) -> None:
        self._turn: list[weakref.ref[Any]] = []
        self._complete = self._broken = False
        self._next = 0  # position in the turn that is due
        self._lead: weakref.ref[Any] | None = None  # once the turn is broken
        self._silent = 0
        self._fell_silent: weakref.WeakSet[Any] = weakref.WeakSet()  # leads that did
        # the last other optimizer that stepped, after how many backwards, and its steps in a row
        self._other: weakref.ref[Any] | None = None
        self._backwards = self._in_a_row = 0

    def ends_iteration(self, stepping: Any, backwards: int) -> bool:
        """Whether the iteration ends with this step of ``stepping``; ``backwards``: how many have
        run.
        """
        if self._broken:
            return self._is_lead(stepping, backwards)
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
            return self._is_lead(stepping, backwards)
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

    def _is_lead(self, stepping: Any, backwards: int) -> bool:
        lead = self._lead() if self._lead is not None else None
        if lead is stepping:
            self._silent = 0
            return True
        self._count_other(stepping, backwards)
        if lead is not None:
            if self._silent > SILENT:
                self._fell_silent.add(lead)
            elif self._in_a_row < SILENT_AGAIN or lead not in self._fell_silent:
                return False
        self._lead, self._silent = weakref.ref(stepping), 0
        return True

    def _count_other(self, stepping: Any, backwards: int) -> None:
        """``stepping``, which is not the lead, steps."""
        if not self._silent or self._other is None or self._other() is not stepping:
            self._other, self._in_a_row = weakref.ref(stepping), 1
        elif backwards != self._backwards:
            self._in_a_row += 1
        self._silent, self._backwards = self._silent + 1, backwards
