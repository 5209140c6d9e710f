"""A search's folder: which one it is, and that one process alone writes there.

<search.folder>/<run.name>/<time>/
    record.jsonl    see search_record
    trials/003/0/   config.yaml  checkpoints/  metrics.jsonl  tb/  error.txt
    best.yaml       search.png
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gmi_drl.launcher.folder.run_folder import new_folder
from gmi_drl.placement import Config
from gmi_drl.runtime.cache_files import FileLock, locked
from gmi_drl.selector.search.stint import Key

from . import identity
from .search_record import FORMAT, RECORD, Recorded, SearchError, read

# Changes of these are no other search.
_FREE: Final = ("trials_at_once", "timeout_s", "folder")
_CHOOSING: Final = timedelta(seconds=30)  # that others which begin are waited for


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


def identity_of(config: Config, beside: Path) -> dict[str, Any]:
    """What makes two searches the same: the config, its own modules in `beside`, versions."""
    data = config.model_dump(mode="json")
    data["search"] = {k: v for k, v in data["search"].items() if k not in _FREE}
    versions = identity.versions()
    return {"config": data, "modules": identity.contents(config, beside), "versions": versions}


@contextlib.contextmanager
def open_folder(
    config: Config, beside: Path, again: bool
) -> Iterator[tuple[SearchFolder, Recorded, str]]:
    """The newest search of this very config, or a new one; its lock is held while the block runs.

    `beside` is the folder of the config. With `again` always a new one. Yields its record as well,
    whose torn last line is taken off, and why an earlier search of the config is not gone on with
    ("" if there is no such). SearchError if none can be made, or if it is another process that
    searches; waits at most 30 s for others that begin.
    """
    assert config.search is not None
    base = Path(config.search.folder) / config.run.name
    wanted = identity_of(config, beside)
    with contextlib.suppress(OSError):  # told by `_made`
        base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        # Of two that begin at once the second finds what the first has made, and its lock taken.
        with locked(base.parent / ".lock", _CHOOSING, f"process {os.getpid()}") as choosing:
            if choosing.holder:
                raise SearchError(
                    f"{base.parent} is locked by {choosing.holder}, since "
                    f"{_CHOOSING.total_seconds():g} s or more. Wait for it, or end it."
                )
            path, note = (None, "") if again else _newest(base, wanted)
            folder = SearchFolder(_made(base) if path is None else path.resolve())
            had = held.enter_context(lock(folder))
            if had.holder:
                raise SearchError(
                    f"{folder.path} is being searched by {had.holder}. Wait for it, or end it."
                )
            if path is None:
                folder.append(
                    "header",
                    format=FORMAT,
                    **wanted,
                    machine=platform.node(),
                    started=time.time(),
                )
        recorded = read(folder.path)
        if recorded is None:
            raise SearchError(f"{folder.path / RECORD} was taken away. Give the command again.")
        _cut_torn_line(folder, recorded)
        yield folder, recorded, note


def _newest(base: Path, wanted: Mapping[str, Any]) -> tuple[Path | None, str]:
    """The newest search that is the same; without one, why the newest of this config is not."""
    note = ""
    for path in sorted(base.glob("*"), reverse=True):
        found = read(path)
        if found is None or found.header.get("config") != wanted["config"]:
            continue
        changed = [*_changed(found.header, wanted)]
        if not changed:
            return path, ""
        text = f"{path.resolve()} is not gone on with: {', '.join(changed)} changed since"
        note = note or text
    return None, note


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for part in ("modules", "versions"):
        was, its = before.get(part, {}), now[part]
        yield from (name for name in sorted({*was, *its}) if was.get(name) != its.get(name))


def _made(base: Path) -> Path:
    """A new folder, called by the time."""
    try:
        return new_folder(base).resolve()
    except OSError as error:
        raise SearchError(
            f"search.folder={base.parent}: {base} cannot be written ({error.strerror}). "
            "Give a folder you may write to: --set search.folder=..."
        ) from error


def _cut_torn_line(folder: SearchFolder, recorded: Recorded) -> None:
    """Takes off what `read` could not."""
    path = folder.path / RECORD
    if path.stat().st_size > recorded.whole_bytes:
        os.truncate(path, recorded.whole_bytes)


def lock(folder: SearchFolder) -> contextlib.AbstractContextManager[FileLock]:
    """Holds the folder's lock, if it can be had, and yields whether that is so."""
    return locked(folder.path / "lock", timedelta(0), f"process {os.getpid()}")
