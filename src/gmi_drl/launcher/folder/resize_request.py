"""Asks a run that trains for another layout, and tells who asked what became of it: by two files.

resize_requested.json is there from the request to its answer, so that there is one at a time;
resize.json is the last answer.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from gmi_drl.runtime.cache_files import replace_file

REQUEST: Final = "resize_requested.json"
ANSWER: Final = "resize.json"
State: TypeAlias = Literal["changing", "done", "refused", "undone"]


@dataclass(frozen=True)
class ResizeRequest:
    """Holds what is asked for: `section.key=value` strings."""

    id: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class ResizeAnswer:
    """Says what becomes of the request `id`."""

    id: str
    state: State
    text: str  # why it was refused or undone, or what the run has become
    pause_s: float = 0.0  # from the last iteration of the old layout to the first of the new one


def make_request(run: Path, request: ResizeRequest) -> None:
    """Writes a request; FileExistsError while another one waits, OSError if it cannot."""
    draft = run / f".{REQUEST}.{request.id}"
    try:
        draft.write_text(json.dumps(asdict(request)), encoding="utf-8")
        os.link(draft, run / REQUEST)  # whole, and only where there is none
    finally:
        draft.unlink(missing_ok=True)


def request_in(run: Path) -> ResizeRequest | None:
    """Reads the request that waits, if there is one; a damaged one counts as empty."""
    path = run / REQUEST
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            return ResizeRequest("", ())
        loaded = json.loads(path.read_text(encoding="utf-8"))
        return ResizeRequest(str(loaded["id"]), tuple(map(str, loaded["overrides"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return ResizeRequest("", ())


def withdraw_request(run: Path) -> None:
    """Removes the request, so that another one may be made; a folder in its place is put aside."""
    path = run / REQUEST
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            path.rename(run / f"{REQUEST}.folder-{uuid.uuid4().hex[:8]}")
        else:
            path.unlink()


def give_answer(run: Path, answer: ResizeAnswer) -> None:
    """Writes an answer; one that is not the last (`changing`) leaves the request there."""
    with suppress(OSError):  # a full disk: who asks has a deadline
        replace_file(run / ANSWER, json.dumps(asdict(answer)))
    if answer.state != "changing":
        withdraw_request(run)


def answer_in(run: Path) -> ResizeAnswer | None:
    """Reads the last answer; None if there is none, or it is damaged."""
    try:
        return ResizeAnswer(**json.loads((run / ANSWER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
