"""Prints tables: with lines in a terminal, aligned columns elsewhere; and makes text printable.

The text of a run's folder can be a stranger's: whatever prints it takes it through `printable`.
"""

from __future__ import annotations

import codecs
import io
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_HANDLER: Final = "gmi_drl.in_ascii"
_ALIKE: Final = {
    "─": "-", "━": "-", "│": "|", "├": "+", "└": "+", "█": "#", "▒": ":", "░": ".", "▏": "|",
    "·": ".", "…": "...", "±": "+-", "★": "*", "☆": "o", "✗": "x", "→": "->", "µ": "u",
}  # fmt: skip


def printable(text: object) -> str:
    """Returns the text on one line, with escapes for what a terminal would obey.

    These are control characters (also C1), what turns the direction of writing, separators of
    lines, and what no encoding can write.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text)
    )


def printable_lines(text: object) -> str:
    """Does the same line by line, for a text that may have several."""
    return "\n".join(map(printable, str(text).split("\n")))


def cut(text: str, most: int) -> str:
    """Returns the text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text):,} characters)"


def number_text(value: float | None, form: str) -> str:
    """Returns a number in this form, or "-" where there is none."""
    return "-" if value is None else format(value, form)


def make_encodable(*streams: TextIO) -> None:
    """Lets streams write a like character of ASCII, or ?, for one that they cannot encode."""
    codecs.register_error(_HANDLER, _replaced)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character, "?") for character in unknown), error.end


_LEAST: Final = 30  # columns of text that are still readable
_AROUND: Final = 3  # of a column's width in a terminal: its line and the blanks beside it


def print_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    drop: Sequence[str] = (),
    *,
    numbers: bool = False,
    style_of: Callable[[str], str] = lambda cell: "",
) -> None:
    """Prints a table with a title; without a terminal, columns two spaces apart.

    Cells may be a stranger's text. In a terminal that is too narrow the columns `drop` are left
    out, the first of them first, until the rest fits; what still does not is folded. There cells
    have their own style or rich's style `style_of(cell)`, and of `numbers` all columns but the
    first are to the right.
    """
    if console.is_terminal:
        table = table_within(
            console.width, title, columns, rows, drop, numbers=numbers, style_of=style_of
        )
        console.print(table)
        return
    lines = [columns, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    console.out(title, highlight=False)
    for row in lines:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.out("  " + "  ".join(cells).rstrip(), highlight=False)


def print_folded(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]
) -> None:
    """Prints a table whose last column, of one text or several lines, is folded to the width."""
    if console.is_terminal:
        print_table(console, title, columns, rows)
        return
    left = sum(max(len(row[i]) for row in (columns, *rows)) + 2 for i in range(len(columns) - 1))
    width = max(_LEAST, console.width - left - 2)
    folded: list[Sequence[str | Text]] = []
    for *cells, text in rows:
        lines = [
            line
            for part in str(text).split("\n")
            for line in textwrap.wrap(part, width, break_on_hyphens=False) or [""]
        ]
        folded.append([*cells, lines[0]])
        folded += [[*[""] * len(cells), line] for line in lines[1:]]
    print_table(console, title, columns, folded)


def table_within(
    width: int,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    drop: Sequence[str] = (),
    *,
    numbers: bool = False,
    style_of: Callable[[str], str] = lambda cell: "",
) -> Table:
    """Makes a table that is at most so wide, if it can be: see `print_table`."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [
        [c if isinstance(c, Text) else Text(printable(c), style_of(c)) for c in row] for row in rows
    ]
    texts = zip(columns, *(map(str, row) for row in cells), strict=True)
    needed = dict(zip(columns, (max(map(cell_len, text)) + _AROUND for text in texts), strict=True))
    left_out: list[str] = []
    for column in drop:
        if sum(needed.values()) < width:
            break
        if needed.pop(column, None):
            left_out.append(column)
    table = Table(title=Text(title, "table.title"), title_justify="left")
    if left_out:
        table.caption = Text(f"not shown in {width} columns: {', '.join(left_out)}", "dim")
        table.caption_justify = "left"
    for column in needed:
        right = numbers and column != columns[0]
        table.add_column(Text(column), justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(cell for c, cell in zip(columns, row, strict=True) if c in needed))
    return table
