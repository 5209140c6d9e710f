"""Makes text printable: that of a run's folder can be a stranger's, and terminals differ.

Whatever prints such text takes it through here: `print_table` does so for each cell, `guarded` for
each error, and `gmi-drl lineage` for each line.
"""

from __future__ import annotations

import codecs
import io
from typing import Final, TextIO

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
    return "".join(c if c.isprintable() else _escaped(c) for c in str(text))


def printable_lines(text: object) -> str:
    """Does the same line by line, for a text that may have several."""
    return "\n".join(map(printable, str(text).split("\n")))


def cut(text: str, most: int) -> str:
    """Returns the text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text):,} characters)"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


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
