"""Reads the records of tunes and searches: what they tried, what came of it, and why."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.colocated_runs import records_folder
from gmi_drl.launcher.folder.run_folder import METRICS, last_metrics_in
from gmi_drl.launcher.view.tables import cut, printable_lines
from gmi_drl.launcher.view.view import duration
from gmi_drl.selector.record import report
from gmi_drl.selector.record.journal import Journal, parse_journal
from gmi_drl.selector.record.record import TuneRecord
from gmi_drl.selector.record.results import compared
from gmi_drl.selector.record.search_folder import RECORD, SearchFolder, key_of, score_of, seconds_of
from gmi_drl.selector.search.ranges import text_of
from gmi_drl.selector.search.search_view import returned, short
from gmi_drl.selector.tune.candidate import candidate_text

from .curves import number_of
from .safe_files import id_of, open_inside, signature

_MOST_BYTES: Final = 32 * 2**20  # of a record
_MOST_RECORDS: Final = 20  # that are shown, the newest
_MOST_ROWS: Final = 200
_MOST_SERIES: Final = 12  # curves of trials in one picture
_MOST_FOLDERS: Final = 10_000
_MOST_TEXT: Final = 2000
_DAMAGED: Final = (KeyError, ValueError, TypeError, AttributeError, IndexError, ArithmeticError)


def find_records(roots: Sequence[Path]) -> list[Path]:
    """Finds the folders with a record in them, at most two below each root; the newest first."""
    level, folders, visited = list(roots), [], 0
    for _ in range(3):
        below: list[Path] = []
        for path in level:
            visited += 1
            if os.path.isfile(path / RECORD):
                folders.append(path)
            elif visited < _MOST_FOLDERS:
                below += _folders(path)
        level = below
    folders.sort(key=lambda path: (signature(path, RECORD) or (0, 0, 0))[2], reverse=True)
    return folders


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [path / e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []


class TrialsReader:
    """Follows the records in some folders; `with_tunes`: also those of this user's tunes."""

    def __init__(self, with_tunes: bool) -> None:
        self._with_tunes = with_tunes
        self._entries: dict[str, tuple[Any, dict[str, Any]]] = {}  # by id: signature, what is shown

    def as_json(self, roots: Sequence[Path]) -> list[dict[str, Any]]:
        """Returns the records as the page shows them, the newest first; reads what has changed."""
        shown, entries = [], {}
        for folder, name in self._files(roots):
            path, current = folder / name, signature(folder, name)
            id = id_of(path)
            entry = self._entries.get(id)
            if entry is None or entry[0] != current or entry[1].get("running"):
                entry = current, {"id": id, "path": str(path), **_read(folder, name)}
            entries[id] = entry
            shown.append(entry[1])
        self._entries = entries
        by_key = {item["key"]: item["id"] for item in reversed(shown) if item.get("key")}
        # A tune's report has a copy of its record.
        return [item for item in shown if by_key.get(item.get("key"), item["id"]) == item["id"]]

    def _files(self, roots: Sequence[Path]) -> list[tuple[Path, str]]:
        files = [(folder, RECORD) for folder in find_records(roots)]
        if self._with_tunes:
            cache = records_folder()
            names = sorted(p.name for p in cache.glob("*.jsonl")) if cache.is_dir() else []
            files += [(cache, name) for name in names]
        files.sort(key=lambda file: (signature(*file) or (0, 0, 0))[2], reverse=True)
        return files[:_MOST_RECORDS]


def _read(folder: Path, name: str) -> dict[str, Any]:
    """Returns what a record says, or why it is not shown."""
    try:
        with open_inside(folder, name) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        journal = parse_journal(folder / name, content)
        config = journal.header.get("config")
        is_search = isinstance(config, dict) and config.get("search") and "key" not in (
            journal.header
        )  # fmt: skip
        return _search(folder, journal) if is_search else _tune(journal)
    except (*_DAMAGED, OSError, GmiDrlError, RecursionError) as error:
        reason = cut(f"{type(error).__name__}: {error}", _MOST_TEXT)
        return {"kind": "damaged", "title": name, "texts": [printable_lines(reason)]}


def _tune(journal: Journal) -> dict[str, Any]:
    record = TuneRecord.of(journal)
    results = record.results()
    names = {result.candidate: name for name, result in compared(results)}
    rows = [
        {
            "what": candidate_text(result.candidate, results.rows),
            "steps/s": f"{result.measured.steps_per_s:,.0f}",
            "error": f"± {100 * result.measured.error:.1f} %",
            "memory": f"{result.gib:.2f} GiB",
            "why": names.get(result.candidate, ""),
        }
        for result in results.all
    ]
    rows += [
        {
            "what": candidate_text(candidate, results.rows),
            "why": f"failed: {failed.reason}: {failed.text}",
        }
        for candidate, failed in results.failures.items()
    ]
    rows += [
        {"what": f"{label}, num_env {num_env}", "why": f"left out: {why}"}
        for label, num_env, why in report.left_out(results)
    ]
    races = [
        {"what": setting, "round": number, "in": seconds, "return": mean, "why": mark}
        for number, setting, seconds, mean, mark in report.races(record, results)
    ]
    texts = [report.why(record), report.sureness(record), *report.notes(record)]
    return {
        "kind": "tune",
        "key": str(record.header.get("key", "")),
        "title": _clean(report.headline(record)),
        "state": "done" if record.chosen is not None else "at work, or ended before its end",
        "texts": [_clean(text) for text in texts if text],
        "tables": [
            {"title": title, "columns": columns, "rows": _rows(table, columns)}
            for title, columns, table in (
                ("What was tried", ["what", "steps/s", "error", "memory", "why"], rows),
                ("Return at equal time", ["round", "what", "in", "return", "why"], races),
            )
            if table
        ],
    }


def _search(folder: Path, journal: Journal) -> dict[str, Any]:
    config = journal.header["config"]
    search, lines = config["search"], journal.lines
    running = _is_locked(folder / "lock")
    latest: dict[int, dict[str, Any]] = {}
    for line in lines:
        if line["kind"] != "finished":
            latest[key_of(line)[0]] = line
    finished = any(line["kind"] == "finished" for line in lines)
    ended = [line for line in lines if line["kind"] == "ended"]
    failed = [line for line in lines if line["kind"] == "failed"]
    best = {line["trial"]: _place(line) for line in sorted(ended, key=_place)}
    ranking = sorted(
        latest.values(), key=lambda line: best.get(line["trial"], (0, 0.0)), reverse=True
    )
    ranks = _ranks(ended, "generation" if search["algorithm"] == "pbt" else "bracket")
    table = []
    for line in ranking[:_MOST_ROWS]:
        steps, mean, why = _trial_status(folder, line, ranks, running)
        values = {short(key): text_of(value) for key, value in line["values"].items()}
        table.append({"trial": str(line["trial"]), "steps": f"{steps:,}", "return": returned(mean),
                     **values, "why": why})  # fmt: skip
    keys = [short(key) for key in search["ranges"]]
    counts = f"{len(ended)} runs ended, {len(failed)} failed"
    state = "done" if finished else "at work" if running else "ended before its end"
    series = [
        {"name": f"trial {trial}", "points": points}
        for trial, points in _curves(ended, [line["trial"] for line in ranking])
    ]
    leader = f"; best so far: trial {max(best, key=best.__getitem__)}" if best else ""
    elapsed = duration(seconds_of(lines))
    texts = [f"{counts} in {elapsed}{leader}."]
    if journal.damage:
        texts.append(f"{journal.damage}; what follows is not shown.")
    columns = ["trial", "steps", "return", *keys, "why"]
    return {
        "kind": "search",
        "title": _clean(f"{config['env']['id']}: search by {search['algorithm']}"),
        "state": state,
        "running": running,
        "texts": [_clean(text) for text in texts],
        "tables": [{"title": "Trials", "columns": columns, "rows": _rows(table, columns)}],
        "series": series,
    }


def _trial_status(
    folder: Path, line: Mapping[str, Any], ranks: Mapping[tuple[int, int], str], running: bool
) -> tuple[int, float | None, str]:
    """Returns how far a trial is, its return, and why it is there."""
    if line["kind"] == "failed":
        return int(line.get("reached", 0)), None, f"failed: {line['text']}"
    if line["kind"] == "ended":
        return int(line["reached"]), line["return_mean"], ranks[key_of(line)]
    metrics: dict[str, Any] = {}
    run_folder = SearchFolder(folder).run_folder(key_of(line)).relative_to(folder)
    try:
        with open_inside(folder, str(run_folder), METRICS) as file:
            metrics = last_metrics_in(file)
    except OSError:  # it has not begun
        pass
    start = line.get("start")
    status = f"trains up to {line['steps']:,} steps" if running else "was ended"
    if start and start[0] != line["trial"]:
        status += f"; took over from trial {start[0]}"
    return int(number_of(metrics.get("steps")) or 0), number_of(metrics.get("return_mean")), status


def _ranks(ended: Sequence[Mapping[str, Any]], name: str) -> dict[tuple[int, int], str]:
    """Says how each run that ended ranks among those of its round."""
    rounds: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for line in ended:
        rounds.setdefault((int(line["bracket"]), int(line["steps"])), []).append(line)
    texts = {}
    for (bracket, steps), lines in rounds.items():
        lines.sort(key=_score, reverse=True)
        for place, line in enumerate(lines, 1):
            texts[key_of(line)] = (
                f"number {place} of {len(lines)} at {steps:,} steps in {name} {bracket + 1}"
            )
    return texts


def _score(line: Mapping[str, Any]) -> float:
    score = None if line["kind"] == "asked" else score_of(line)
    return float("-inf") if score is None or score != score else score


def _place(line: Mapping[str, Any]) -> tuple[int, float]:
    """Orders runs that ended: by the steps that they were to train, then by their return."""
    return int(line["steps"]), _score(line)


def _curves(
    ended: Sequence[Mapping[str, Any]], trials: Sequence[int]
) -> Iterator[tuple[int, list[list[float]]]]:
    """Yields the returns of the trials that got furthest, all their runs one after the other."""
    points: dict[int, dict[int, float]] = {}
    for line in ended:
        points.setdefault(int(line["trial"]), {}).update(
            {
                int(steps): float(f"{mean:.6g}")
                for steps, mean in line["points"]
                if math.isfinite(mean)
            }
        )
    for trial in [trial for trial in trials if points.get(trial)][:_MOST_SERIES]:
        yield trial, [[steps, mean] for steps, mean in sorted(points[trial].items())]


def _is_locked(path: Path) -> bool:
    """Says whether somebody holds a lock (flock) of a file, without taking it."""
    try:
        status = os.stat(path)
        locks = Path("/proc/locks").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(device in line.split() for line in locks.splitlines())


def _rows(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[list[str]]:
    return [[_clean(row.get(column, "")) for column in columns] for row in rows[:_MOST_ROWS]]


def _clean(text: object) -> str:
    return printable_lines(cut(str(text), _MOST_TEXT))
