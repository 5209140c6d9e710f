"""Keeps a journal: a file of JSON lines, the first of which is a header.

    {"kind": "header", "format": 1, ...}
    {"kind": "profile", ...}

A line is on the disk before anything follows from it, so that whoever is killed loses only what it
was at. A last line without its end is what such a death leaves: readers drop it, and the next
writer takes it off. One process writes at a time; it holds the lock of its folder or machine.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.selector.errors import RecordError

FORMAT: Final = 1


@dataclass(frozen=True)
class Journal:
    """Holds what a journal says, up to the first line that is not whole."""

    path: Path
    header: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)  # without the header
    whole_bytes: int = 0  # of its file, up to where lines are whole
    damage: str = ""  # which line is damaged, and how; a torn last line is no damage

    @property
    def text(self) -> str:
        """Returns what the file has, without what is not whole."""
        return "".join(map(line_text, (self.header, *self.lines)))


def read_journal(path: Path) -> Journal:
    """Reads a journal. OSError when it cannot be read, RecordError when it is none."""
    return parse_journal(path, path.read_bytes())


def parse_journal(path: Path, content: bytes) -> Journal:
    """Returns what the file `path` with this content says; RecordError when it is no journal."""
    *texts, _torn = content.split(b"\n")
    try:
        header = _parsed(texts[0] if texts else b"")
        if header["kind"] != "header":
            raise KeyError("header")
    except (ValueError, KeyError) as error:
        why = f" ({error})" if texts else ""
        raise RecordError(f"{path} is damaged: it has no header{why}") from None
    if header.get("format") != FORMAT:
        raise RecordError(
            f"{path} has format {header.get('format')!r}, and this gmi-drl reads {FORMAT}"
        )
    lines, whole_bytes, damage = [], len(texts[0]) + 1, ""
    for number, text in enumerate(texts[1:], 2):
        try:
            lines.append(_parsed(text))
        except ValueError as error:
            damage = damaged(path, number, error)
            break
        whole_bytes += len(text) + 1
    return Journal(path, header, lines, whole_bytes, damage)


def damaged(path: Path, number: int, error: Exception) -> str:
    """Says that a line of a journal is damaged."""
    text = str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{path} is damaged in line {number} ({type(error).__name__}: {text})"


def begin_journal(path: Path, header: Mapping[str, Any]) -> None:
    """Writes a journal with a header alone, in place of what is there. OSError if it cannot."""
    replace_file(path, line_text({"kind": "header", "format": FORMAT, **header}))


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds a line, in place of a torn last one; on OSError the file is as it was."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":  # its writer is dead
            size = os.pread(file, size, 0).rfind(b"\n") + 1
            os.ftruncate(file, size)
        data = line_text(line).encode()
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, size)
            raise
    finally:
        os.close(file)


def cut(journal: Journal) -> None:
    """Takes off what follows the last line that is whole."""
    if journal.path.stat().st_size > journal.whole_bytes:
        os.truncate(journal.path, journal.whole_bytes)


def line_text(line: Mapping[str, Any]) -> str:
    """Returns a line as the file has it."""
    return json.dumps(line) + "\n"


def _parsed(text: bytes) -> dict[str, Any]:
    line = json.loads(text)
    if not isinstance(line, dict):
        raise ValueError("it is no JSON object")
    return line
