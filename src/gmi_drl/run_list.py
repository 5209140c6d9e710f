"""What runs there are in a folder, read from what they wrote; damaged ones too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .run_folder import is_trained

_MARKS: Final = ("run.json", "config.yaml", "metrics.jsonl")  # any of them makes a run's folder
_TAIL_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class RunSummary:
    """One run as `gmi-drl runs` shows it; None where nothing is known."""

    path: Path
    name: str
    started: float | None  # seconds since the epoch
    state: str  # finished, failed, running, stopped, or damaged
    iteration: int | None
    steps: int | None
    return_mean: float | None
    steps_per_s: float | None


def list_runs(folder: Path) -> list[RunSummary]:
    """The runs in `folder` (of all names, or of one), oldest first."""
    return sorted(
        (_summary(path) for path in _run_folders(folder)),
        key=lambda run: (run.started or 0.0, str(run.path)),
    )


def _run_folders(folder: Path) -> Iterator[Path]:
    """Folders with a run in them, at most two below: <folder>/<name>/<time>."""
    level = [folder]
    for _ in range(3):
        below: list[Path] = []
        for path in level:
            if any((path / mark).is_file() for mark in _MARKS):
                yield path
            else:
                below += _folders(path)
        level = below


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _summary(path: Path) -> RunSummary:
    state = _read_object(path / "run.json")
    last = _last_line(path / "metrics.jsonl")
    known = {**last, **{k: v for k, v in state.items() if v is not None}}
    if state.get("state") == "running":
        known.update(last)  # run.json is behind while it runs
    return RunSummary(
        path,
        path.parent.name,
        _number(known.get("started")),
        _state(path, state),
        _whole(known.get("iteration")),
        _whole(known.get("steps")),
        _number(known.get("return_mean")),
        _number(known.get("steps_per_s")),
    )


def _state(path: Path, run: dict[str, Any]) -> str:
    state = run.get("state")
    if not isinstance(state, str):
        return "damaged"
    if state == "running" and not is_trained(path):
        return "failed"  # its launcher was killed before it could say so
    return state


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _last_line(path: Path) -> dict[str, Any]:
    """The last whole line of a file of JSON lines, without reading all of it."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            return data
    return {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or number != number else int(number)
