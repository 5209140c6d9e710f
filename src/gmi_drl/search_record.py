"""A search's folder, and its record: what was asked for and how it ended, a JSON line each.

    <search.folder>/<run.name>/<time>/
        record.jsonl    {"kind": "header", "format": 1, "config": {...}, ...}
                        {"kind": "asked", "trial": 3, "number": 0, ...}
                        {"kind": "ended", "trial": 3, "number": 0, "return_mean": 41.0, ...}
                        {"kind": "failed", "trial": 4, "number": 0, "text": "..."}
                        {"kind": "finished", ...}
        trials/003/0/   config.yaml  checkpoints/  metrics.jsonl  tb/  error.txt
        best.yaml       search.png

A line is on the disk before anything follows from it, so that a search that is killed goes on from
its record: the algorithm is asked and told the same again, and no trial runs twice.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gmi_drl import __version__
from gmi_drl.placement import Config
from gmi_drl.runtime.kept import locked
from gmi_drl.selector.stint import Key, SearchAlgorithm, Stint

FORMAT: Final = 1
RECORD: Final = "record.jsonl"
# Changes of these are no other search.
_FREE: Final = ("trials_at_once", "timeout_s", "folder")


class SearchError(RuntimeError):
    """A search that cannot be begun, gone on with, or that found nothing."""


@dataclass
class Recorded:
    """What the lines of a record say, in their order."""

    header: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)
    finished: dict[str, Any] | None = None
    whole_bytes: int | None = None  # of its file, up to where lines are whole; None: all


class SearchFolder:
    """The folder of one search. Lines are appended by the one process that holds its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stint(self, key: Key) -> Path:
        """Where a stint's files lie."""
        return self.path / "trials" / f"{key[0]:03d}" / str(key[1])

    def append(self, kind: str, **content: Any) -> dict[str, Any]:
        """Adds a line, and returns when it is on the disk; the line. SearchError if it cannot."""
        line = {"kind": kind, **content}
        try:
            with open(self.path / RECORD, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SearchError(
                f"{self.path / RECORD} cannot be written ({error.strerror}). Free some space; the "
                "same command then goes on with this search."
            ) from error
        return line


def identity_of(config: Config) -> dict[str, Any]:
    """What makes two searches the same."""
    data = config.model_dump(mode="json")
    data["search"] = {k: v for k, v in data["search"].items() if k not in _FREE}
    return data


def open_folder(config: Config, again: bool) -> tuple[SearchFolder, Recorded]:
    """The newest search of this very config, or a new one; SearchError if none can be made.

    With `again` always a new one. Of a record the torn last line is taken off.
    """
    assert config.search is not None
    base = Path(config.search.folder) / config.run.name
    wanted = identity_of(config)
    if not again:
        for path in sorted(base.glob("*"), reverse=True):
            found = read(path)
            if found is not None and found.header.get("config") == wanted:
                return SearchFolder(path.resolve()), found
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    try:
        for attempt in range(100):
            path = base / (stamp if not attempt else f"{stamp}-{attempt:02d}")
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                continue
        else:
            raise SearchError(f"{base}: a hundred searches began in the second {stamp}.")
    except OSError as error:
        raise SearchError(
            f"search.folder={config.search.folder}: {base} cannot be written ({error.strerror}). "
            "Give a folder you may write to: --set search.folder=..."
        ) from error
    folder = SearchFolder(path.resolve())
    header = folder.append(
        "header",
        format=FORMAT,
        config=wanted,
        gmi_drl=__version__,
        python=platform.python_version(),
        machine=platform.node(),
        started=time.time(),
    )
    return folder, Recorded(header)


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


def cut_torn_line(folder: SearchFolder, recorded: Recorded) -> None:
    """Takes off what `read` could not; by who holds the lock."""
    path = folder.path / RECORD
    if recorded.whole_bytes is not None and path.stat().st_size > recorded.whole_bytes:
        os.truncate(path, recorded.whole_bytes)


def lock(folder: SearchFolder) -> Any:
    """A context manager that holds the folder's lock; it yields whether it was had, and by whom."""
    return locked(folder.path / "lock", timedelta(0), f"process {os.getpid()}")


def replay(recorded: Recorded, algorithm: SearchAlgorithm) -> dict[Key, Stint]:
    """Brings the algorithm to where the record ends; the stints that were begun and have no end.

    SearchError when it asks for something else than is on record: another version wrote that.
    """
    begun: dict[Key, Stint] = {}
    for line in recorded.lines:
        key = key_of(line)
        if line["kind"] == "asked":
            stint = algorithm.ask()
            if stint is None or stint.key != key or dict(stint.values) != line["values"]:
                raise SearchError(
                    f"the record asks for trial {key[0]}, stint {key[1]}, where this gmi-drl "
                    f"({__version__}) asks for {stint and stint.key}. Go on with the version that "
                    f"wrote it ({recorded.header.get('gmi_drl')}), or begin anew with --again."
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


def seconds_of(lines: Iterable[Mapping[str, Any]]) -> float:
    """How long the search took up to the last of these lines, all its sessions together."""
    return max((float(line.get("total_s", 0.0)) for line in lines), default=0.0)
