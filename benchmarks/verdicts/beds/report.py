"""planted.md: the bars, every cell, and what was tried."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

HEAD = """# The "loss unchanged" verdict on planted changes

Written by `python benchmarks/verdicts/planted.py`: {wall:.0f} minutes, {runs} verdicts on {cells} cells, {machine}.
Five small real trainings; into each a change is planted whose true effect is known from paired runs of other seeds; then
the tool's own `check_loss` is asked for a verdict on fresh seeds, several times a change. The scored seeds were run once,
after the rule was frozen; while it was being made, other seeds were used (`--dry`).

"""

NOTES = """
## How to read it

- *effect*: largest mean paired difference of the loss in a bin, in margins, ± its standard error. *probe*: in some of the
  first 8 steps the gradient or update norm is off by more than 5 % (10 % under another random stream). *settings*: the
  fingerprint differs. A breaker counts for the bars if its effect is at least 1.5 margins or one of the other two is
  there. The others stand in the table too, as *below reach*.
- *late*: the change begins at step 40, after the steps that are probed: only the loss can see it.
- Verdicts are unchanged / changed / undecided. All cells of a bed share the baselines of a set of seeds, as all
  candidates of a job do, so the verdicts of one bed and set are not independent.
- Changes declared exact (workers where the streams can be matched, pinning) have no bar of their own.

## Real and emulated

- Real: the trainings, the agent and its records, the knobs amp_dtype = bfloat16, optimizer_impl, channels_last,
  compile_mode, num_workers, batch_size, and pin_memory, which does nothing without a GPU.
- Emulated on the CPU, by rounding operands, results and gradients of matrix products and convolutions: tf32 and float16.
  Float16's loss scale is fixed and what is below the least normal number becomes zero; there is no scaler, so no step is
  skipped. *% lost*: entries of those gradients that became zero, over the run.
- Planted inside torch's own calls, so that no setting tells: learning rate, momentum, stale, scaled and lost gradients.
- A run's process is forked from one that has imported torch, instead of being started anew.
- With larger batches the candidate runs for the baseline's samples and half as many again, not for as many steps.
  Since this run a larger batch is judged only if the loss moves by four margins, where it was 1.5; on the dry seeds, its ten
  cells again: changed in 50 of 50.
"""

TRIED = """
## What was tried

All on dry seeds, with the same runs for both variants.

| variant | stale gradients under another stream, transformer: accepted | harmless random streams: changed | taken |
|---|---|---|---|
| probe under another stream: mean over seeds and steps only | 2 of 2 | 0 of 80 | no |
| also each step by itself, from 3 pairs on: mean over seeds outside 10 % by 3 standard errors | 0 of 2 | 0 of 80 | yes |

The standard error is from the larger of the step's own scatter and the one pooled over steps. A stale gradient of an
adaptive optimizer shows in the second step, whose update is 20 % too large, and then fades: over 8 steps it averages out.

| variant, when the window is doubled | transformer, lr × 2 from step 40 on (1.0 margins): accepted | harmless streams: undecided | taken |
|---|---|---|---|
| as many bins, twice as long | 3 of 3 | 0 of 8 | no |
| bins as long as before, twice as many | 0 of 3 | 0 of 8 | yes |

Longer bins dilute a difference that was as large as the margin in the first window.
"""


def bars_table(scored: Sequence[Any]) -> str:
    """The bars of verdicts, with counts."""
    lines = ["| figure | bar | found | |", "|---|---|---|---|"]
    for what, bar, found, met in _bars(scored):
        lines.append(f"| {what} | {bar} | {found} | {'met' if met else '**missed**'} |")
    return "\n".join(lines) + "\n"


def cells_table(scored: Sequence[Any]) -> str:
    """Every cell."""
    lines = [
        (
            "| bed | change | declared as | effect | other signs | unchanged / changed / undecided"
            " | median pairs |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for s in scored:
        counts = " / ".join(str(_count([s], lambda v, w=w: v.verdict in w)) for w in _WORDS)
        lines.append(
            f"| {s.cell.bed} | {s.cell.change} | {s.cell.numerics} | {_effect(s.truth)} |"
            f" {_signs(s)} | {counts} | {s.median_pairs:g} |"
        )
    return "\n".join(lines) + "\n"


def wrong_verdicts(scored: Sequence[Any], counting: bool = False) -> str:
    """Each accepted breaker and each harmless change not accepted, with the reason given.

    ``counting``: only those that count for a bar.
    """
    lines = []
    for s in scored:
        if counting and not (s.cell.harmless or s.truth.counts):
            continue
        for v in s.verdicts:
            if (v.verdict in _WORDS[0]) != s.cell.harmless:
                lines.append(
                    f"{s.cell.bed} / {s.cell.change} ({s.cell.numerics}, used as {v.numerics}):"
                    f" {v.verdict}, {v.pairs} pairs, {v.steps} steps: {v.reason}"
                )
    return "\n".join(lines)


def document(scored: Sequence[Any], wall_s: float) -> str:
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    head = HEAD.format(
        wall=wall_s / 60, machine=machine, runs=_count(scored, lambda v: True), cells=len(scored)
    )
    wrong = (
        "\n".join(f"- {line}" for line in wrong_verdicts(scored, counting=True).splitlines())
        or "- None."
    )
    return (
        head
        + bars_table(scored)
        + f"\nEach verdict that counts and was wrong:\n\n{wrong}\n"
        + NOTES
        + TRIED
        + "\n## Every cell\n\n"
        + cells_table(scored)
    )


_WORDS = (("unchanged", "not-needed"), ("changed",), ("undecided", "no-proof"))


def _bars(scored: Sequence[Any]) -> list[tuple[str, str, str, bool]]:
    def of(*kinds: str) -> list[Any]:
        return [s for s in scored if s.cell.kind in kinds]

    counting = [s for s in scored if not s.cell.harmless and s.truth.counts]
    mild = [s for s in of("mild-float16") if s.truth.counts]
    rounding, stream, batch = of("rounding"), of("stream"), of("batch")
    worst = max(counting, key=lambda s: s.share("unchanged"), default=None)
    accepted, n = _count(counting, _is("unchanged")), _count(counting, lambda v: True)
    bars = []
    if worst is not None:
        where = f" ({worst.cell.bed}, {worst.cell.change})" if worst.share("unchanged") else ""
        over = sum(s.share("unchanged") > 0.05 for s in counting)
        bars += [
            (
                "breakers accepted, worst cell",
                "≤ 5 %",
                f"{worst.share('unchanged'):.0%}{where}; {over} of {len(counting)} cells above",
                not over,
            ),
            ("breakers accepted, pooled", "≤ 2 %", _share(accepted, n), accepted <= 0.02 * n),
        ]
    for what, bar, cells, word, met in (
        ("mild float16 underflow accepted", "≤ 5 %", mild, "unchanged", lambda x: x <= 0.05),
        ("harmless rounding: unchanged", "≥ 95 %", rounding, "unchanged", lambda x: x >= 0.95),
        ("harmless rounding: changed", "≤ 1 %", rounding, "changed", lambda x: x <= 0.01),
        ("harmless random stream: changed", "≤ 2 %", stream, "changed", lambda x: x <= 0.02),
        ("harmless random stream: undecided", "≤ 15 %", stream, "undecided", lambda x: x <= 0.15),
        ("batch × 4, × 8 without lr: changed", "≥ 95 %", batch, "changed", lambda x: x >= 0.95),
    ):
        total = _count(cells, lambda v: True)
        if total:
            hits = _count(cells, _is(word))
            bars.append((what, bar, _share(hits, total), met(hits / total)))
    if rounding:
        pairs = median(v.pairs for s in rounding for v in s.verdicts)
        bars.append(("harmless rounding: median pairs", "≤ 2", f"{pairs:g}", pairs <= 2))
    settings = of("fingerprint")
    if settings:
        hits = _count(settings, lambda v: v.verdict == "changed" and "settings differ" in v.reason)
        total = _count(settings, lambda v: True)
        bars.append(
            (
                "weight decay, frozen head, dropout p, bf16 weights: by the fingerprint",
                "100 %",
                _share(hits, total),
                hits == total,
            )
        )
    return bars


def _is(word: str) -> Callable[[Any], bool]:
    words = next(w for w in _WORDS if word in w)
    return lambda v: v.verdict in words


def _count(scored: Sequence[Any], of: Callable[[Any], bool]) -> int:
    return sum(of(v) for s in scored for v in s.verdicts)


def _share(hits: int, total: int) -> str:
    return f"{hits / total:.1%} ({hits} of {total})"


def _effect(truth: Any) -> str:
    return "not finite" if math.isinf(truth.effect) else f"{truth.effect:.2f} ± {truth.error:.2f}"


def _signs(scored: Any) -> str:
    found = [w for w in ("probe", "settings") if getattr(scored.truth, w)]
    if scored.truth.lost is not None:
        found.append(f"{scored.truth.lost:.1%} lost")
    if not scored.cell.harmless and not scored.truth.counts:
        found.append("*below reach*")
    return ", ".join(found)
