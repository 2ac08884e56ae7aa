"""Generate docs/knobs.md from the knob cards.

python -m autotune_spaces.docs docs/knobs.md           write it
python -m autotune_spaces.docs --check docs/knobs.md   exit with 1 if it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune_spaces.base import Knob, Value
from autotune_spaces.knobs import get, names

HEAD = """\
# The knobs

<!-- Generated from the cards in search_spaces/autotune_spaces/knobs by `python -m autotune_spaces.docs docs/knobs.md`. -->

*Scope* says when a knob can be set: `live` between two blocks of iterations of a running job, `process` before it starts.
*Numerics* says what a knob may change: `exact` (the same arithmetic), `rounding` (the same mathematics, rounded differently),
`statistical` (a different training trajectory); it decides what the loss check must show. Where dropout is drawn anew, autotune
makes it `random-stream` by itself (the same mathematics, other random numbers).
"""

PARTS = (
    ("What it does", "what"),
    ("When it helps", "when_it_helps"),
    ("When it does not", "when_it_does_not"),
    ("Does it change the loss?", "changes_loss"),
)

VIA = """\
## Knobs of your own

Any flag or environment variable of the job can be a knob. `default` is what the unchanged job uses (read from the
command if the flag is there); `numerics` is `statistical` unless declared otherwise, and then the samples of a step must be
countable.

```yaml
search_space:
  preset: auto
  dtype: {via: "--dtype {}", values: [float32, bfloat16], default: float32, numerics: rounding}
  omp_schedule: {via: env OMP_SCHEDULE, values: [static, dynamic], default: static, numerics: exact}
  tf32: {via: "--tf32", numerics: rounding}      # a switch: present or absent
  width: {via: "model.width={}", values: [64, 128]}   # Hydra; also "--flag={}" and "--set flag {}"
```

Without `via`, the value replaces the knob's name in braces in the command: `python train.py --width {width}`; `values`
and `default` are required then.
No shell interprets the value. `true` and `false` are booleans; quote them to pass the words, and
a number to keep its spelling.
"""


def table() -> str:
    rows = ["| knob | values | scope | numerics | what it does |", "|---|---|---|---|---|"]
    for knob in map(get, names()):
        rows.append(
            f"| [`{knob.name}`](#{knob.name}) | {knob.range} | {knob.scope.value} |"
            f" {knob.numerics.value} | {first_sentence(knob)} |"
        )
    return "\n".join(rows) + "\n"


def first_sentence(knob: Knob) -> str:
    return knob.card.what.split(". ")[0].split("; ")[0].split(": ")[0].rstrip(".") + "."


def example(knob: Knob) -> tuple[Value, str] | None:
    """The card's example: a value and the Python code that sets it; None if there is no code."""
    code = knob.snippet(knob.example)
    return (knob.example, code) if code else None


def live_values(knob: Knob) -> str:
    """The knob's live values, such as " (live: retain)"; "" if it has none."""
    return f" (live: {', '.join(map(str, knob.live_values))})" if knob.live_values else ""


def card(name: str) -> str:
    """One knob's card as Markdown.

    Raises:
        KeyError: no such knob.
    """
    knob = get(name)
    lines = [
        f"## {name}",
        "",
        (
            f"Values: {knob.range}. Scope: {knob.scope.value}{live_values(knob)}. Numerics:"
            f" {knob.numerics.value}."
        ),
    ]
    for option, choices in knob.accepts.items():
        lines[-1] += f" Option `{option}`: {', '.join(map(str, choices))}."
    if knob.start_up_cost:
        lines[-1] += " Start-up cost is weighed against `planned_steps`."
    for title, field in PARTS:
        lines += ["", f"**{title}** {getattr(knob.card, field)}"]
    if shown := example(knob):
        lines += ["", "In your own source:", "", "```python", shown[1], "```"]
    lines += ["", f"Source: {knob.card.source}"]
    return "\n".join(lines) + "\n"


def render() -> str:
    return "\n".join([HEAD, table(), *map(card, names()), VIA])


def write_page(
    module: str, render: Callable[[str], str], arguments: Sequence[str] | None = None
) -> int:
    """Command line shared by all generated pages: ``python -m module [--check] FILE`` writes the
    page, or checks that it is up to date. ``render`` gets the page as it is. Returns the exit code:
    0, 1 (out of date) or 2 (usage error)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    files = [Path(w) for w in words if w != "--check"]
    if len(files) != 1:
        print(f"usage: python -m {module} [--check] FILE", file=sys.stderr)
        return 2
    page = files[0].read_text(encoding="utf-8") if files[0].is_file() else ""
    text = render(page)
    if "--check" not in words:
        files[0].write_text(text, encoding="utf-8")
        return 0
    if page == text:
        return 0
    print(f"{files[0]} is out of date: run python -m {module} {files[0]}", file=sys.stderr)
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    return write_page("autotune_spaces.docs", lambda _: render(), arguments)


if __name__ == "__main__":
    sys.exit(main())
