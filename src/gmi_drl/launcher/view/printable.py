"""Text as it may be printed: what was read from a run's folder can be a stranger's.

Whatever prints such text takes it through here: `print_table` does so for each cell, `guarded` for
each error, and `gmi-drl lineage` for each line.
"""

from __future__ import annotations


def printable(text: object) -> str:
    """The text on one line, with escape sequences where it has what a terminal would obey.

    These are control characters (also C1), what turns the direction of writing, separators of
    lines, and what no encoding can write.
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in str(text))


def printable_lines(text: object) -> str:
    """The same line by line, for a text that may have several."""
    return "\n".join(map(printable, str(text).split("\n")))


def cut(text: str, most: int) -> str:
    """The text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text):,} characters)"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
