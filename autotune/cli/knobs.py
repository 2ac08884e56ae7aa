"""``autotune knobs [NAME]``"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from autotune.cli.show import print_captured
from autotune.errors import InputError
from autotune.job.mistakes import did_you_mean
from autotune_spaces.base import Knob
from autotune_spaces.docs import PARTS, example, first_sentence, live_values
from autotune_spaces.knobs import get, names

PIPED_WIDTH = 200  # characters; a table in a file or a pipe is not wrapped to a screen's width


def knobs(
    name: Annotated[str | None, typer.Argument(help="Show this knob's card.")] = None,
) -> None:
    """List the knobs, or explain one: what it does, when it helps, when it does not, whether it can change
    the loss.
    """
    if name is not None and name not in names():
        raise InputError(
            f"there is no knob '{name}'",
            where="autotune knobs",
            expected=f"one of {', '.join(names())}",
            remedy=did_you_mean(name, names(), "autotune knobs lists them all"),
        )
    if name is not None:
        knob = get(name)
        print_captured(lambda console: _print_card(console, knob))
    else:
        print_captured(_print_table, PIPED_WIDTH)


def _print_table(console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("knob", "values", "scope", "numerics", "what it does"):
        table.add_column(title, no_wrap=title in ("knob", "scope", "numerics"), overflow="fold")
    for knob in map(get, names()):
        table.add_row(
            knob.name, knob.range, knob.scope.value, knob.numerics.value, first_sentence(knob)
        )
    console.print(table)
    console.print("\n'autotune knobs NAME' explains one.")


def _print_card(console: Console, knob: Knob) -> None:
    console.print(knob.name, style="bold")
    options = "".join(
        f"; {name}: {', '.join(map(str, values))}" for name, values in knob.accepts.items()
    )
    console.print(
        f"values: {knob.range}{options}\nscope: {knob.scope.value}{live_values(knob)}   "
        f"numerics: {knob.numerics.value}"
    )
    for title, field in PARTS:
        console.print(f"\n{title}", style="bold")
        console.print(getattr(knob.card, field))
    if shown := example(knob):
        console.print("\nIn your own source", style="bold")
        console.print(shown[1], soft_wrap=True)
    console.print(f"\nSource: {knob.card.source}", soft_wrap=True)
