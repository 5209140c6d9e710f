"""What is drawn, on terminals and in pipes whose encoding does not have its characters."""

from __future__ import annotations

import codecs
import io
from typing import Final, TextIO

_HANDLER: Final = "gmi_drl.in_ascii"
_ALIKE: Final = {
    "─": "-", "━": "-", "│": "|", "├": "+", "└": "+", "█": "#", "▒": ":", "░": ".", "▏": "|",
    "·": ".", "…": "...", "±": "+-", "★": "*", "☆": "o", "✗": "x", "→": "->", "µ": "u",
}  # fmt: skip


def make_encodable(*streams: TextIO) -> None:
    """From now on these write a like character of ASCII, or ?, for one that they cannot encode."""
    codecs.register_error(_HANDLER, _replaced)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character, "?") for character in unknown), error.end
