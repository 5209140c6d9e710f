"""Finds the runs, tunes and searches of a folder, and names them by ids that are no paths."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.folder.run_folder import METRICS, last_metrics_in
from gmi_drl.report.run_list import RunSummary, run_folders, summarize

from .run_reader import figure_text
from .safe_files import id_of, open_inside, read_inside, signature
from .trials import find_records

_MOST_RUNS: Final = 1000  # that are shown, the newest
_BELOW: Final = ("runs", "searches")  # what the folder that gmi-drl is called in has


class NoRuns(GmiDrlError):
    """A folder holds nothing that the page could show."""

    command_exit_code = 2


@dataclass(frozen=True)
class _Entry:
    """Holds what was read of a run, what its files were like then, and its row of the list."""

    files: tuple[Any, ...]
    summary: RunSummary
    row: dict[str, Any]  # in JSON's types


class Catalog:
    """Lists what lies in a folder: of runs, the folder of all, of one name, or one run itself."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: None: where gmi-drl is called, with the tunes of this user besides."""
        self.folder = (folder or Path()).resolve()
        self.with_tunes = folder is None
        self._entries: dict[str, _Entry] = {}  # by id
        self.outside = 0  # folders that are links to elsewhere

    def roots(self) -> list[Path]:
        """Lists where runs and searches are looked for."""
        below = [path for name in _BELOW if (path := self.folder / name).is_dir()]
        return below if below or self.with_tunes else [self.folder]

    def scan(self) -> list[dict[str, Any]]:
        """Returns a row of each run, the newest first.

        Reads files that have changed since, and no more.
        """
        self.outside = 0
        by_id = ((id_of(path), path) for path in self._folders())
        self._entries = {id: self._entry(id, path) for id, path in by_id}
        runs = sorted(
            self._entries.values(),
            key=lambda run: (run.summary.started or 0.0, str(run.summary.path)),
            reverse=True,
        )
        return [run.row for run in runs]

    def _folders(self) -> Iterator[Path]:
        for root in self.roots():
            for path in run_folders(root):
                if self._is_inside(path):
                    yield path
                else:
                    self.outside += 1

    def _is_inside(self, path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self.folder)

    def _entry(self, id: str, path: Path) -> _Entry:
        files = signature(path, "run.json"), signature(path, METRICS)
        entry = self._entries.get(id)
        if entry is not None and entry.files == files and entry.summary.state != "running":
            return entry
        summary = _summary(path)
        return _Entry(files, summary, self._row(id, summary))

    def find(self, id: str) -> Path | None:
        """Returns the folder of the run with this id; None if the last scan did not see it."""
        entry = self._entries.get(id)
        return None if entry is None else entry.summary.path

    def as_json(self) -> dict[str, Any]:
        """Returns what the page lists, as JSON's types."""
        rows = self.scan()
        hidden = max(0, len(rows) - _MOST_RUNS)
        shown = rows[:_MOST_RUNS]
        return {"folder": str(self.folder), "runs": shown, "more": hidden, "outside": self.outside}

    def _row(self, id: str, run: RunSummary) -> dict[str, Any]:
        row = asdict(run)
        row["id"], row["path"] = id, os.path.relpath(run.path, self.folder)
        for key in ("return_mean", "eval_return", "steps_per_s"):
            row[key] = figure_text(row[key])
        return row


def _summary(path: Path) -> RunSummary:
    written: Any = {}
    metrics: dict[str, Any] = {}
    with suppress(OSError, ValueError, RecursionError):
        written = json.loads(read_inside(path, "run.json"))
    with suppress(OSError), open_inside(path, METRICS) as file:
        metrics = last_metrics_in(file)
    return summarize(path, written if isinstance(written, dict) else {}, metrics)


def open_catalog(folder: Path | None) -> Catalog:
    """Returns the catalog of `folder`, or of where runs are made if none is given.

    NoRuns if it is not there, or has nothing of ours: who names a folder expects something in it.
    """
    if folder is None:
        return Catalog(None)
    if not folder.is_dir():
        raise NoRuns(f"{folder}: no such folder. Give that of a run, or one that holds runs.")
    catalog = Catalog(folder)
    if not catalog.scan() and not find_records(catalog.roots()):
        raise NoRuns(
            f"{folder}: nothing of gmi-drl is in it (a run's folder has run.json, config.yaml or "
            "metrics.jsonl, a search's record.jsonl). Give the folder of a run, or one that holds "
            "runs; `gmi-drl runs` lists them."
        )
    return catalog
