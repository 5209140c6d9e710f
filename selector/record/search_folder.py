"""Keeps a search's folder and its journal: which one it is, and that one process writes there.

<search.folder>/<run.name>/<time>/
    record.jsonl    the journal
    trials/003/0/   config.yaml  checkpoints/  metrics.jsonl  tb/  error.txt
    logs/           of the processes that trials run in
    best.yaml       search.png

    {"kind": "header", "format": 1, "config": {...}, "modules": {...}, "versions": {...}, ...}
    {"kind": "asked", "trial": 3, "number": 0, ...}
    {"kind": "ended", "trial": 3, "number": 0, "return_mean": 41.0, ...}
    {"kind": "failed", "trial": 4, "number": 0, "text": "..."}
    {"kind": "finished", ...}
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gmi_drl.launcher.folder.run_folder import new_folder
from gmi_drl.launcher.plan.user_modules import digests_beside
from gmi_drl.placement import Config
from gmi_drl.runtime.cache_files import locked
from gmi_drl.selector.errors import RecordError, SearchError
from gmi_drl.selector.search.trial_run import RunKey, TrialAlgorithm, TrialRun

from . import identity
from .journal import Journal, append, begin_journal, cut, damaged, read_journal

RECORD: Final = "record.jsonl"
# Settings of `search` that may change within one search.
_FREE: Final = {"trials_at_once", "trials_per_device", "timeout_s", "folder"}
_CHOOSING: Final = timedelta(seconds=30)  # that others which begin are waited for


class SearchFolder:
    """The folder of one search. Lines are appended by the one process that holds its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run_folder(self, key: RunKey) -> Path:
        """Returns where the files of a trial's run lie."""
        return self.path / "trials" / f"{key[0]:03d}" / str(key[1])

    def append(self, kind: str, **content: Any) -> dict[str, Any]:
        """Adds a line, and returns it when it is on the disk. SearchError if it cannot."""
        line = {"kind": kind, **content}
        self._write(append, line)
        return line

    def begin(self, header: Mapping[str, Any]) -> None:
        """Begins the journal. SearchError if it cannot."""
        self._write(begin_journal, header)

    def _write(
        self, write: Callable[[Path, Mapping[str, Any]], None], content: Mapping[str, Any]
    ) -> None:
        try:
            write(self.path / RECORD, content)
        except OSError as error:
            raise SearchError(
                f"{self.path / RECORD} cannot be written ({error.strerror}). Free some space; the "
                "same command then goes on with this search."
            ) from error


@contextlib.contextmanager
def open_folder(
    config: Config, beside: Path, again: bool
) -> Iterator[tuple[SearchFolder, Journal, str]]:
    """Yields the newest search of this very config, or a new one; holds its lock meanwhile.

    Yields its journal too, and why an earlier search of the config is not gone on with, or "".
    SearchError if another process searches there, and if the journal is damaged before its last
    line; waits 30 s for others that begin.
    """
    assert config.search is not None
    base = Path(config.search.folder) / config.run.name
    header = {
        "config": config.model_dump(mode="json", exclude={"search": _FREE}),
        "modules": digests_beside(config, beside), "versions": identity.versions(),
    }  # fmt: skip
    with contextlib.suppress(OSError):  # told by `_new`
        base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # Of two that begin at once the second finds what the first has made, and its lock taken.
        name = f"process {os.getpid()}"
        with locked(base.parent / ".lock", _CHOOSING, name) as choosing:
            if choosing.holder:
                raise SearchError(
                    f"{base.parent} is locked by {choosing.holder}, since "
                    f"{_CHOOSING.total_seconds():g} s or more. Wait for it, or end it."
                )
            path, note = (None, "") if again else _newest(base, header)
            folder = SearchFolder(_new_folder(base) if path is None else path.resolve())
            lock = stack.enter_context(locked(folder.path / "lock", timedelta(0), name))
            if lock.holder:
                raise SearchError(
                    f"{folder.path} is being searched by {lock.holder}. Wait for it, or end it."
                )
            if path is None:
                folder.begin({**header, "machine": platform.node(), "started": time.time()})
        journal = read(folder.path)
        if journal is None:
            raise SearchError(f"{folder.path / RECORD} was taken away. Give the command again.")
        if journal.damage:
            raise _data_loss(journal.damage)
        cut(journal)
        yield folder, journal, note


def read(path: Path) -> Journal | None:
    """Reads the journal in a search's folder; None where there is none that this version reads."""
    with contextlib.suppress(OSError, RecordError):
        return read_journal(path / RECORD)
    return None


def _newest(base: Path, wanted: Mapping[str, Any]) -> tuple[Path | None, str]:
    """Finds the newest search that is the same, and why a newer one of this config is not it."""
    note = ""
    for path in sorted(base.glob("*"), reverse=True):
        try:
            journal = read_journal(path / RECORD)
        except RecordError as error:
            note = note or f"{error}; that search is not gone on with"
            continue
        except OSError:
            continue
        if journal.header.get("config") != wanted["config"]:
            continue
        changed = [*_changed(journal.header, wanted)]
        if not changed:
            return path, note
        text = f"{path.resolve()} is not gone on with: {', '.join(changed)} changed since"
        note = note or text
    return None, note


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for part in ("modules", "versions"):
        old, new = before.get(part, {}), now[part]
        yield from (name for name in sorted({*old, *new}) if old.get(name) != new.get(name))


def _new_folder(base: Path) -> Path:
    """Returns a new folder, called by the time."""
    try:
        return new_folder(base).resolve()
    except OSError as error:
        raise SearchError(
            f"search.folder={base.parent}: {base} cannot be written ({error.strerror}). "
            "Give a folder you may write to: --set search.folder=..."
        ) from error


def replay(journal: Journal, algorithm: TrialAlgorithm) -> dict[RunKey, TrialRun]:
    """Brings the algorithm to where the journal ends; returns the runs that have not ended."""
    pending: dict[RunKey, TrialRun] = {}
    for number, line in enumerate(journal.lines, 2):
        try:
            if line["kind"] == "finished":
                continue
            key = key_of(line)
            if line["kind"] == "asked":
                run = algorithm.ask()
                if run is None or run.key != key or dict(run.values) != line["values"]:
                    raise SearchError(
                        f"the record asks for trial {key[0]}, run {key[1]}, and the algorithm for "
                        f"{run and run.key}: one of the two was changed. Begin anew with --again."
                    )
                pending[key] = run
            else:
                algorithm.tell(pending.pop(key), score_of(line))
        except (KeyError, TypeError, ValueError) as error:
            raise _data_loss(damaged(journal.path, number, error)) from error
    return pending


def _data_loss(damage: str) -> SearchError:
    return SearchError(
        f"{damage}. What has ended after it would be lost. Put the file back from a copy, or begin "
        "anew with --again."
    )


def score_of(line: Mapping[str, Any]) -> float | None:
    """Returns what an algorithm is told of a line: -inf while no episode has ended."""
    if line["kind"] == "failed":
        return None
    mean = line["return_mean"]
    return float("-inf") if mean is None else float(mean)


def key_of(line: Mapping[str, Any]) -> RunKey:
    """Returns the run that a line is about."""
    return int(line["trial"]), int(line["number"])


def start_of(line: Mapping[str, Any]) -> RunKey | None:
    """Returns the run that it went on from; None: a new policy."""
    start = line["start"]
    return None if start is None else (int(start[0]), int(start[1]))


def seconds_of(lines: Iterable[Mapping[str, Any]]) -> float:
    """Returns how long the search took up to the last of these lines, all starts together."""
    return max((float(line.get("total_s", 0.0)) for line in lines), default=0.0)
