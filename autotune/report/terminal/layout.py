"""Layout helpers for terminal screens."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 100  # columns, for log files, which have no width of their own


def text_of(
    write: Callable[[Console], None], width: int | None = PLAIN_WIDTH, *, terminal: bool = False
) -> str:
    """Return what ``write`` prints. Markup and emoji are off: job text must stay literal.

    Args:
        width: in columns; None for the terminal's width.
        terminal: use the colors stdout can show.
    """
    console = Console(
        file=None if terminal else io.StringIO(),
        width=width,
        color_system="auto" if terminal else None,
        force_terminal=None if terminal else False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as captured:
        write(console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def section(console: Console, title: str, *body: RenderableType) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    for part in body:
        console.print(indented(part))


def indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2))


def bare_table(gap: int = 3, *, header: bool = True) -> Table:
    return Table(
        box=None, padding=(0, gap, 0, 0), show_edge=False, header_style="dim", show_header=header
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    made = bare_table()
    for number, title in enumerate(titles):
        made.add_column(title, overflow="fold", style="" if number else "bold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def listed(console: Console, rows: Sequence[tuple[str, str]]) -> list[Text]:
    """Rows of copyable text (never wrapped) with descriptions: beside if all fit, else below."""
    column = max((len(left) for left, _ in rows), default=0)
    wide = column + 5 + max((len(what) for _, what in rows), default=0) <= console.width
    lines = []
    for left, what in rows:
        text = Text(left, no_wrap=True, overflow="ignore")
        if wide:
            text.append(" " * (column - len(left) + 3) + what, style="dim")
        lines += [text] if wide else [text, Text(f"  {what}", style="dim")]
    return lines
