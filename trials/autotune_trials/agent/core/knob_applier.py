"""Knobs set in the running job: created once, applied and reset, held from the start in fixed runs;
and their failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune_spaces import knobs as registry
from autotune_spaces.base import Knob, NotApplicable, Undone, Value
from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.dataloader.facts import Settings
from autotune_trials.protocol.messages import LOADER_SETTINGS, SessionMode

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.protocol.messages import Hello, KnobChoice, SessionConfig

# knobs that change a setting of torch itself: the functions that read it and set it
TORCH_SETTINGS = {
    "intra_op_threads": ("get_num_threads", "set_num_threads"),
    "matmul_precision": ("get_float32_matmul_precision", "set_float32_matmul_precision"),
}


class Knobs:
    """The knobs of one session. Failures collect in ``failures`` until the mode handles them at the
    end of the iteration."""

    def __init__(self, live: LiveJobControl, config: SessionConfig) -> None:
        self._live, self._choices = live, config.knobs
        self._at_start = config.process_knobs
        self._made: dict[str, Knob] = {}
        self._before: dict[str, Value] = {}  # settings of torch, before a knob first changed them
        # live: knob name -> (knob, value), for those not at the job's own value
        self._set: dict[str, tuple[Knob, Value]] = {}
        self.held = config.mode != SessionMode.LIVE  # set from the start and never switched
        self.applying = False  # a knob is being set: calls into torch are not the job's
        self.failures: list[str] = []

    def _knob(self, choice: KnobChoice) -> Knob:
        """The knob of ``choice``, created once."""
        key = f"{choice.name} {sorted(choice.options.items())}"
        if key not in self._made:
            self._made[key] = registry.create(choice.name, dict(choice.options))
        return self._made[key]

    def apply(self, knob: Knob, value: Value) -> None:
        self.applying = True
        try:
            if knob.name in TORCH_SETTINGS:
                self._restore_at_end(knob.name, value)
            knob.apply(self._live, value)
        finally:
            self.applying = False

    def _restore_at_end(self, name: str, value: Value) -> None:
        """Restore a setting of torch when the agent stops, if it still is ``value`` then: the job
        may have set it itself.
        """
        read, write = (getattr(self._live.torch, function) for function in TORCH_SETTINGS[name])
        before = self._before.setdefault(name, read())

        def restore() -> None:
            if read() == value:
                write(before)

        self._live.patches.on_restore(restore, name)

    def switch(self, choices: Sequence[KnobChoice], hello: Hello) -> None:
        """Live: switch from the current configuration to ``choices``. Knobs that were set and are
        not in ``choices`` go back to the job's own value, which ``hello`` reports.

        Raises:
            Exception: whatever a knob raises; the knobs after it keep their values.
        """
        wanted = {c.name: (self._knob(c), c.value) for c in choices}
        for name in [n for n in self._set if n not in wanted]:
            knob, _ = self._set[name]
            try:
                own = knob.current(hello.machine, hello.job)
            except NotApplicable:  # set on all ranks, and this one reads no data
                own = None
            self.apply(knob, own)
            del self._set[name]
        for name, (knob, value) in wanted.items():
            if self._set.get(name) != (knob, value):
                # recorded first: a half-applied knob must be reset too
                self._set[name] = knob, value
                self.apply(knob, value)

    def hold(self, final: bool) -> None:
        """Fixed runs: set all knobs on whatever exists by now; all setters are idempotent.

        A knob may need something the job has not built yet, so failures count only if ``final``:
        once an optimizer steps, or an iteration ends without one.
        """
        if not self.held or self._live.state.stopped:
            return
        for choice in self._choices:
            try:
                self.apply(self._knob(choice), choice.value)
            except Exception as error:
                if final:
                    self.fail(f"{choice.name}: {type(error).__name__}: {error}")

    def fail(self, text: str) -> None:
        """A knob could not be set or kept; the mode handles it at the end of the iteration."""
        log.write(f"knob: {text}")
        if text not in self.failures:  # each optimizer may report it again
            self.failures.append(text)

    def no_effect(self, failures: Sequence[str] = ()) -> dict[str, str]:
        """Knobs held from the start that had no effect -> why, including those in ``failures``."""
        return {**self.without_effect(self._choices, failures), **self._no_effect_at_start()}

    def without_effect(
        self, choices: Sequence[KnobChoice], failures: Sequence[str] = ()
    ) -> dict[str, str]:
        """Those of ``choices`` that had no effect or failed -> why. Failed: an :class:`Undone`."""
        found = {}
        for choice in choices:
            own = [f"{choice.name}:"]
            if choice.name in Settings._fields:  # these are refused together
                own.append(LOADER_SETTINGS)
            failed = next((f for f in failures if f.startswith(tuple(own))), None)
            try:
                reason = Undone(failed) if failed else self._effect(choice)
            except Exception as error:
                reason = Undone(f"{choice.name}: {type(error).__name__}: {error}")
            if reason:
                found[choice.name] = reason
        return found

    def _no_effect_at_start(self) -> dict[str, str]:
        """The same for knobs set before this process started. A knob whose effect cannot be checked
        is left out."""
        found = {}
        for choice in self._at_start:
            try:
                reason = self._effect(choice)
            except Exception:  # the check failed, which says nothing about the knob
                log.write_exception(f"effect of {choice.name}")
                continue
            if reason:
                found[choice.name] = reason
        return found

    def _effect(self, choice: KnobChoice) -> str | None:
        return self._knob(choice).effect(self._live, choice.value)

    def take_failures(self) -> list[str]:
        """Return the pending failures and clear them."""
        failures, self.failures = self.failures, []
        return failures
