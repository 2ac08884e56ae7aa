"""User-defined knobs: a flag or an environment variable of the job.

    via: "--dtype {}"        --dtype bfloat16      replaces the flag in the command, or is added at the end
    via: "--dtype={}"        --dtype=bfloat16      the same, in one word
    via: "model.width={}"    model.width=64        Hydra's syntax
    via: "--set lr {}"       --set lr 0.1          several words before the value
    via: "--tf32"            --tf32 or nothing     values [true, false]: a switch that is present or absent
    via: env OMP_SCHEDULE    OMP_SCHEDULE=static   in the environment
    (no via)                 {name}                wherever the command contains the knob's name in braces

The template is split into words once, and the value is inserted into a single word. No shell
interprets it: in a shell line, where only {name} is possible, it is quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from autotune_spaces.base import Knob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.shell_line import filled_command

HOLE = "{}"
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ViaKnob(Knob):
    """``options``: via (template; "" for a placeholder), default (the job's own value), numerics (a
    Numerics value).

    Raises:
        ValueError: the template is invalid; ``str()`` says why.
    """

    scope = Scope.PROCESS
    range = "text or a number"

    def __init__(
        self,
        name: str,
        values: Sequence[Value] | None = None,
        options: Mapping[str, Value] | None = None,
    ) -> None:
        super().__init__(values, options)
        self.name = name
        self.via = str(self.options.get("via") or "")
        self.default = self.options.get("default")
        self.numerics = Numerics(self.options.get("numerics") or Numerics.STATISTICAL.value)
        self.variable, self.words = _split(self.via)
        if self.switch:
            self.range = "true, false"

    @property
    def switch(self) -> bool:
        """Whether it is a flag without a value, either present or absent."""
        return bool(self.words) and not any(HOLE in word for word in self.words)

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return self.default

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if self.numerics is Numerics.STATISTICAL and job.sample_unit != "samples":
            raise NotApplicable(
                "it may change how many samples a step has (numerics: statistical), and the samples"
                " of this job cannot be counted. Report them with autotune.step(loss=loss,"
                " samples=n), or declare numerics: rounding or exact if it leaves the batches as"
                " they are"
            )
        return [False, True] if self.switch else []

    def check_value(self, value: Value) -> str | None:
        if self.switch:
            return (
                None
                if isinstance(value, bool)
                else (
                    f"{value!r} for a flag that takes no value; use true (present) or false"
                    " (absent)"
                )
            )
        if isinstance(value, bool):
            return (
                f'{value} is a boolean in YAML; write "true" or "false" in quotes to pass the word'
            )
        if not isinstance(value, (str, int, float)) or "\0" in str(value):
            return f"{value!r} is neither text nor a number"
        return None

    def environment(self, value: Value) -> dict[str, str]:
        return {self.variable: str(value)} if self.variable else {}

    def command(self, argv: Sequence[str], value: Value) -> list[str]:
        """``argv`` with ``value`` set. The last occurrence of a flag takes effect, so that one is
        replaced.
        """
        if self.variable:
            return list(argv)
        if not self.words:
            return filled_command(argv, {self.name: str(value)})
        if self.switch:
            rest = _without(argv, self.words)
            return [*rest, *self.words] if value else rest
        *lead, last = self.words
        new = [*lead, last.replace(HOLE, str(value))]
        found = self._find(argv)
        return [*argv, *new] if found is None else [*argv[: found[0]], *new, *argv[found[1] :]]

    def value_in(self, argv: Sequence[str]) -> str | None:
        """The value already in ``argv``, as text; None if there is none."""
        found = self._find(argv) if self.words and not self.switch else None
        return found[2] if found is not None else None

    def _find(self, argv: Sequence[str]) -> tuple[int, int, str] | None:
        """Start, end and value of the last occurrence; ``--flag value`` and ``--flag=value`` both
        match.
        """
        *lead, last = self.words
        before, after = last.split(HOLE)
        joined = apart = ""  # the other way to write a long flag: "--flag=", or "--flag"
        if len(lead) == 1 and last == HOLE and lead[0].startswith("--"):
            joined = f"{lead[0]}="
        elif not lead and before.startswith("--") and before.endswith("="):
            apart = before[:-1]
        for start in range(len(argv) - 1, -1, -1):
            end = start + len(self.words)
            if list(argv[start : end - 1]) == lead and end <= len(argv):
                value = re.fullmatch(
                    f"{re.escape(before)}(.*){re.escape(after)}", argv[end - 1], re.DOTALL
                )
                if value and (lead or before):
                    return start, end, value[1]
            if joined and argv[start].startswith(joined):
                return start, start + 1, argv[start].removeprefix(joined)
            if apart and argv[start] == apart and start + 1 < len(argv):
                return start, start + 2, argv[start + 1].removesuffix(after)
        return None


def _split(via: str) -> tuple[str, tuple[str, ...]]:
    """(environment variable, words of the flag); at least one is empty."""
    try:
        words = tuple(shlex.split(via))
    except ValueError as error:
        raise ValueError(f"the quotes in {via!r} do not match ({str(error).lower()})") from None
    if words and words[0] == "env":
        if len(words) != 2 or not VARIABLE_NAME.fullmatch(words[1]):
            raise ValueError(f"{via!r} does not name one environment variable")
        return words[1], ()
    holes = sum(word.count(HOLE) for word in words)
    if holes > 1:
        raise ValueError(f"{via!r} has {holes} places for one value")
    if holes and HOLE not in words[-1]:
        raise ValueError(f"{via!r} has text after the value; the value must come last")
    if words == (HOLE,):
        raise ValueError(f"{via!r} has no flag before the value")
    if words and not holes and not words[0].startswith("-"):
        raise ValueError(f"{via!r} is neither a flag nor contains {HOLE} for the value")
    return "", words


def _without(argv: Sequence[str], words: Sequence[str]) -> list[str]:
    """``argv`` without any occurrence of ``words``."""
    rest, start, size = [], 0, len(words)
    while start < len(argv):
        if list(argv[start : start + size]) == list(words):
            start += size
        else:
            rest.append(argv[start])
            start += 1
    return rest
