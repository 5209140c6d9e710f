"""A search's record: what was asked for and how it ended, a JSON line each.

    {"kind": "header", "format": 1, "config": {...}, "modules": {...}, "versions": {...}, ...}
    {"kind": "asked", "trial": 3, "number": 0, ...}
    {"kind": "ended", "trial": 3, "number": 0, "return_mean": 41.0, ...}
    {"kind": "failed", "trial": 4, "number": 0, "text": "..."}
    {"kind": "finished", ...}

A line is on the disk before anything follows from it, so that a search that is killed goes on from
its record: the algorithm is asked and told the same again, and no trial runs twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.selector.search.stint import Key, SearchAlgorithm, Stint

FORMAT: Final = 1
RECORD: Final = "record.jsonl"


class SearchError(GmiDrlError, RuntimeError):
    """A search that cannot be begun, gone on with, or that found nothing."""


@dataclass
class Recorded:
    """What the lines of a record say, in their order."""

    header: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)
    finished: dict[str, Any] | None = None
    whole_bytes: int = 0  # of its file, up to where lines are whole


def read(path: Path) -> Recorded | None:
    """The record in a search's folder; None where there is none that this version reads.

    Lines are read up to the first that is not whole, which a search that was killed may leave; what
    follows is cut off from the file when the search goes on.
    """
    found: Recorded | None = None
    try:
        data = (path / RECORD).read_bytes()
    except OSError:
        return None
    whole = 0
    for text in data.splitlines(keepends=True):
        try:
            line = json.loads(text) if text.endswith(b"\n") else None
        except ValueError:
            line = None
        if not isinstance(line, dict):
            break
        whole += len(text)
        kind = line.get("kind")
        if found is None:
            if kind != "header" or line.get("format") != FORMAT:
                return None
            found = Recorded(line)
        elif kind == "finished":
            found.finished = line
        else:
            found.lines.append(line)
    if found is not None:
        found.whole_bytes = whole
    return found


def replay(recorded: Recorded, algorithm: SearchAlgorithm) -> dict[Key, Stint]:
    """Brings the algorithm to where the record ends; the stints that were begun and have no end.

    SearchError when it asks for something else than is on record.
    """
    begun: dict[Key, Stint] = {}
    for line in recorded.lines:
        key = key_of(line)
        if line["kind"] == "asked":
            stint = algorithm.ask()
            if stint is None or stint.key != key or dict(stint.values) != line["values"]:
                raise SearchError(
                    f"the record asks for trial {key[0]}, stint {key[1]}, and the algorithm for "
                    f"{stint and stint.key}: one of the two was changed. Begin anew with --again."
                )
            begun[key] = stint
        else:
            algorithm.tell(key, score_of(line))
            begun.pop(key)
    return begun


def score_of(line: dict[str, Any]) -> float | None:
    """What an algorithm is told of a line: less than all numbers while no episode has ended."""
    if line["kind"] == "failed":
        return None
    mean = line["return_mean"]
    return float("-inf") if mean is None else float(mean)


def facts_of(stint: Stint) -> dict[str, Any]:
    """A stint as the record has it."""
    return {
        "trial": stint.trial,
        "number": stint.number,
        "bracket": stint.bracket,
        "values": dict(stint.values),
        "steps": stint.steps,
        "start": None if stint.start is None else list(stint.start),
    }


def key_of(line: Mapping[str, Any]) -> Key:
    """The stint that a line is about."""
    return int(line["trial"]), int(line["number"])


def start_of(line: Mapping[str, Any]) -> Key | None:
    """The stint that it went on from; None: a new policy."""
    start = line["start"]
    return None if start is None else (int(start[0]), int(start[1]))


def seconds_of(lines: Iterable[Mapping[str, Any]]) -> float:
    """How long the search took up to the last of these lines, all its sessions together."""
    return max((float(line.get("total_s", 0.0)) for line in lines), default=0.0)
