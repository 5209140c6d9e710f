"""Prints how a run ended, and lists the runs in a folder by what they wrote; damaged ones too."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.launcher.folder.run_folder import METRICS, is_trained, last_metrics, resume_command
from gmi_drl.launcher.view.tables import number_text, print_table, printable
from gmi_drl.placement import counted

if TYPE_CHECKING:
    from rich.console import Console

    from gmi_drl.launcher.start.result import RunResult

_MARKS: Final = ("run.json", "config.yaml", METRICS)  # any of them makes a run's folder
_MOST_BYTES: Final = 4 * 2**20  # of a run.json


@dataclass(frozen=True)
class RunSummary:
    """Sums up one run as `gmi-drl runs` shows it; None where nothing is known."""

    path: Path
    name: str
    started: float | None  # seconds since the epoch
    state: str  # finished, failed, running, stopped, or damaged
    env: str | None
    seed: int | None
    iteration: int | None
    steps: int | None
    return_mean: float | None
    eval_return: float | None
    steps_per_s: float | None


def list_runs(folder: Path) -> list[RunSummary]:
    """Lists the runs in `folder` (of all names, or of one), oldest first."""
    return sorted(
        (_summary(path) for path in run_folders(folder)),
        key=lambda run: (run.started or 0.0, str(run.path)),
    )


def run_folders(folder: Path) -> Iterator[Path]:
    """Finds folders with a run in them, at most two below: <folder>/<name>/<time>."""
    level = [folder]
    for _ in range(3):
        below: list[Path] = []
        for path in level:
            if any(_is_mark(path / mark) for mark in _MARKS):
                yield path
            else:
                below += _folders(path)
        level = below


def _is_mark(path: Path) -> bool:
    """Tells whether a run is there, be it damaged; not a folder of runs of such a name."""
    return os.path.lexists(path) and not _folders(path)


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if os.path.isdir(entry)]
    except OSError:
        return []


def _summary(path: Path) -> RunSummary:
    return summarize(path, read_object(path / "run.json"), last_metrics(path / METRICS))


def summarize(path: Path, written: dict[str, Any], metrics: dict[str, Any]) -> RunSummary:
    """Sums a run up by its run.json ({} if that cannot be read) and its last line of metrics."""
    state, damaged = _sound(written)
    last, _ = _sound(metrics)
    fields, status = {**last, **state}, written.get("state") or "damaged"
    if status == "running":
        fields.update(last)  # run.json is behind while it runs
        if not is_trained(path):
            status = "failed"  # its launcher was killed before it could say so
    shown = {key: state.get(key) for key in ("started", "env", "seed", "eval_return")}
    shown |= {key: fields.get(key) for key in ("iteration", "steps", "return_mean", "steps_per_s")}
    status = "damaged" if damaged else status
    return RunSummary(path=path, name=path.absolute().parent.name, state=status, **shown)


def _sound(written: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Picks the fields that are shown and valid; tells whether any was invalid."""
    present = {key: written[key] for key in _IS_SOUND if written.get(key) is not None}
    sound = {key: value for key, value in present.items() if _IS_SOUND[key](value)}
    return sound, len(sound) < len(present)


def _is_number(value: Any) -> bool:
    """Tells whether it is a number, finite or not: a diverged policy has returns of NaN."""
    return type(value) is float or (type(value) is int and abs(value) < _MOST)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


_MOST: Final = 2**63
_LATEST_S: Final = 253_402_300_800  # the year 10000, until which a clock can show it
_IS_SOUND: Final[dict[str, Callable[[Any], bool]]] = {
    "state": lambda value: value in ("finished", "failed", "running", "stopped"),
    "started": lambda value: _is_number(value) and 0 <= value < _LATEST_S,
    "env": lambda value: isinstance(value, str) and len(value) <= 200,
    **dict.fromkeys(("seed", "iteration", "steps"), _is_count),
    **dict.fromkeys(("return_mean", "eval_return", "steps_per_s"), _is_number),
}


def read_object(path: Path) -> dict[str, Any]:
    try:
        if not os.path.isfile(path) or path.stat().st_size > _MOST_BYTES:  # a pipe would never end
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def print_runs(console: Console, runs: Sequence[RunSummary]) -> None:
    """Prints one line a run."""
    rows = []
    for run in runs:
        counts = [number_text(run.iteration, ","), number_text(run.steps, ",")]
        returns = [number_text(run.return_mean, ".1f"), number_text(run.eval_return, ".1f")]
        started = "-" if run.started is None else _clock(run.started)
        row = [run.name, started, run.state, run.env or "-", number_text(run.seed, "")]
        rows.append([*row, *counts, *returns, number_text(run.steps_per_s, ",.0f"), str(run.path)])
    columns = ["name", "started", "state", "env", "seed", "iterations", "steps", "return"]
    columns += ["evaluation", "steps/s", "folder"]
    empty = [column for i, column in enumerate(columns) if all(row[i] == "-" for row in rows)]
    # A folder ends with the name and when it began.
    drop = (*empty, "name", "started", "iterations", "steps/s", "seed", "steps", "return", "env")
    print_table(console, "Runs", columns, rows, drop)


def _clock(since_epoch_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since_epoch_s))


def print_result(console: Console, result: RunResult) -> None:
    """Prints how a run ended, where its files are, and how to go on with one that was stopped."""
    from gmi_drl.launcher.view.view import peak_summary
    from gmi_drl.launcher.watch.records import where

    rows = [["state", result.state]]
    if result.steps:
        rows += [
            ["iterations", f"{result.iteration:,}"],
            ["steps", f"{result.steps:,}"],
            ["training time", f"{result.seconds:.1f} s"],
            ["steps/s", f"{result.steps_per_s:,.0f}"],
            ["return while training", number_text(result.return_mean, ".1f")],
            ["return of the trained policy", _evaluation_text(result)],
            *([["segments", str(result.experience)]] if result.experience else []),
        ]
        if any(result.mem_peak_bytes):  # else of another launch, or of roles that were never run
            rows.append(["peak memory of a GMI", peak_summary(result.mem_peak_bytes)])
    else:  # roles that report nothing
        rows += [[f"GMI {i} returned", repr(value)[:200]] for i, value in enumerate(result.gmis)]
    if result.traces:
        rows.append(["traces", where(result.traces)])
    print_table(console, "Run", ["what", "value"], rows)
    # Each on a line of its own and whole, to be copied.
    console.out(f"folder: {printable(result.folder)}", highlight=False)
    if result.curve is not None:
        console.out(f"learning curve: {printable(result.curve)}", highlight=False)
    if result.state == "stopped" and (command := resume_command(result.folder)):
        console.out(f"to go on: {command}", highlight=False)


def _evaluation_text(result: RunResult) -> str:
    if result.eval_return is None:
        return "-"
    text = f"{result.eval_return:.1f}"
    if result.eval_std is not None:
        text += f" ± {result.eval_std:.1f}"
    if result.eval_episodes is not None:
        text += f" (mean and deviation of {counted(result.eval_episodes, 'episode')})"
    return text
