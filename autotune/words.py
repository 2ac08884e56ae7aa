"""Numbers and job-supplied text as words, in one place for stages, terminal and page.

Everything a job can influence (knob values, reasons, tracebacks, names) goes through :func:`clean`,
so that no control code, line break or half of a Unicode character reaches a terminal.
"""

from __future__ import annotations

import getpass
import math
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

from autotune.results import Interval

if TYPE_CHECKING:
    from autotune.explain.records import Explanation
    from autotune.results import Trial

NOT_MEASURED = "not measured"
SIDES = {"baseline": "before", "winner": "after"}
# A baseline that differs this much from itself between neighboring blocks cannot show the gains of
# a few percent that most knobs give: pyperf warns at a standard deviation of 10% of the mean,
# autotune at half of it.
NOISY = 0.05
Z95 = 1.96  # half-width of a 95% normal interval in standard errors

_ASCII = str.maketrans("×–—·µ█░✓’“”▏\u00a0", 'x---u#.*\'""| ') | str.maketrans(
    {"→": "->", "±": "+/-", "…": "...", "≥": ">=", "≤": "<="}
)


def clean(text: object, limit: int = 0) -> str:
    """``text`` on one line, without control, formatting or unpaired surrogate characters.

    Cut to ``limit`` characters (0: whole).
    """
    out = []
    for char in str(text):
        category = unicodedata.category(char)
        if char.isspace() or category == "Cc":
            out.append(" ")
        elif category == "Cs":
            out.append("\ufffd")
        # bidirectional overrides and zero-width marks can make a line read as another
        elif category != "Cf":
            out.append(char)
    line = " ".join("".join(out).split())
    return line if not limit or len(line) <= limit else line[: max(limit - 1, 1)].rstrip() + "…"


def for_encoding(text: str, encoding: str | None) -> str:
    """``text`` as far as a stream of this encoding can show it; typographic signs become ASCII."""
    encoding = encoding or "ascii"
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)


def known(number: object) -> TypeGuard[float]:
    """Whether it is a finite number that can be shown."""
    return isinstance(number, (int, float)) and math.isfinite(number)


def value_words(value: object) -> str:
    """A knob's value as a person would say it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return clean(value, 60) or '""'


def yaml_words(value: object) -> str:
    """A knob's value as a job file spells it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def config_words(config: Mapping[str, object]) -> str:
    """``num_workers=2, amp_dtype=bfloat16``; the empty configuration is the baseline."""
    return (
        ", ".join(f"{clean(name)}={value_words(value)}" for name, value in config.items())
        or "baseline"
    )


def number_words(number: float | None) -> str:
    """Three digits; large numbers in full (``1,370``), as samples per second are read."""
    if not known(number):
        return NOT_MEASURED
    if 999.5 <= abs(number) < 1e15:
        return f"{round(number, 2 - math.floor(math.log10(abs(number)))):,.0f}"
    return f"{number:.3g}"


def scaled_words(number: float | None, unit: str) -> str:
    """``3.21 GFLOP``, ``17.5 MB``, ``850 GB/s``: three digits, powers of 1000."""
    if not known(number):
        return "–"
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def factor_words(ratio: float | None) -> str:
    """A speed-up: ``2.10×``; from 10 on without hundredths, which nobody can measure."""
    if not known(ratio):
        return NOT_MEASURED
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.1f}×"


def duration_words(seconds: float | None) -> str:
    """``480 µs``, ``12.0 ms``, ``4.20 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if not known(seconds):
        return NOT_MEASURED
    if seconds < 0:
        return "-" + duration_words(-seconds)
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit * 0.9995:
            return f"{_three(seconds * factor)} {unit}"
    if seconds < 59.5:
        return f"{_three(seconds)} s"
    if seconds < 3599.5:
        whole = round(seconds)
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _three(number: float) -> str:
    """Three digits, trailing zeros kept, so that a column of them lines up."""
    return f"{number:#.3g}".rstrip(".")


def clock_words(seconds: float) -> str:
    """``4:07`` or ``1:04:07`` for a running clock."""
    whole = max(int(seconds), 0)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def user_name() -> str:
    """The user of this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a passwd entry
        return "unknown"


def plural(count: int, word: str, many: str = "") -> str:
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def why_not_profiled(explanation: Explanation) -> str:
    """The text in place of a profiled run's figures."""
    notes = " ".join(clean(n) for n in explanation.notes if not n.startswith("knob importance: "))
    return notes or "The run was made with traces: none, or could not be profiled."


def measured(interval: Interval | None) -> TypeGuard[Interval]:
    """False for a missing interval and for one with a missing figure."""
    return (
        interval is not None
        and known(interval.estimate)
        and known(interval.low)
        and known(interval.high)
    )


def range_words(interval: Interval) -> str:
    return f"{interval.low:.2f}–{interval.high:.2f}"


def interval_words(interval: Interval | None) -> str:
    """``1.62× (1.50–1.75)``"""
    if interval is None or not known(interval.estimate):
        return NOT_MEASURED
    return (
        f"{factor_words(interval.estimate)} ({range_words(interval)})"
        if measured(interval)
        else factor_words(interval.estimate)
    )


def trial_interval(trial: Trial) -> Interval | None:
    """Speed-up of a trial in the search, with its normal 95% interval.

    The bounds are NaN with too few pairs. Live pairs come from one process, so this interval is too
    narrow to be reported as a result; it steers the search.
    """
    if not known(trial.log_ratio):
        return None
    half = Z95 * trial.standard_error if known(trial.standard_error) else math.nan
    return Interval(*(math.exp(min(-trial.log_ratio + step, 700.0)) for step in (0.0, -half, half)))


LOPSIDED_PERCENT = 50  # of a ratio: 1.5× up is a third down


def trial_words(trial: Trial) -> str:
    """``1.83× ± 4%`` for a measured trial; its state for one that was not measured.

    ``30.4× (13.5–68.4)`` where the interval is too lopsided for a ±.
    """
    interval = trial_interval(trial)
    if interval is None:
        return clean(trial.state, 12)
    if not measured(interval):
        return factor_words(interval.estimate)
    percent = 100 * (interval.high / interval.estimate - 1)
    if percent >= LOPSIDED_PERCENT:
        return f"{factor_words(interval.estimate)} ({interval.low:.3g}–{interval.high:.3g})"
    return (
        f"{factor_words(interval.estimate)} ± {percent:.1f}%"
        if percent < 1
        else f"{factor_words(interval.estimate)} ± {percent:.0f}%"
    )


def no_effect_words(no_effect: Mapping[str, str]) -> str:
    return "; ".join(f"{name} had no effect: {why}" for name, why in no_effect.items())


def trial_notes(trial: Trial, limit: int) -> list[str]:
    """Why a trial ended as it did, and which of its knobs did nothing."""
    return ([clean(trial.reason, limit)] if trial.reason else []) + [
        f"{clean(knob)} had no effect: {clean(why, limit)}" for knob, why in trial.no_effect.items()
    ]
