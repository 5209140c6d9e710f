"""Keeps a lease, a record of what a launcher makes on the machine beside processes.

A daemon or a MIG instance outlives the launcher that made it. A Lease notes each step before it is
taken, and strikes it out when it is undone. Its directory is made and locked as a run's is: if
the lock is free, its launcher was killed, and `sweep` undoes what the notes say.
It lies in /tmp whatever the environment says, so that every process of the user finds it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gmi_drl.runtime.process import run_directory

from .backends.backend import BACKENDS, backend_of
from .errors import GmiError

_BASE: Final = Path("/tmp")
_PREFIX: Final = "gmi-lease-"  # short: sockets lie below it, and their paths have at most 107 bytes
_NOTES: Final = "notes.jsonl"
_UNKNOWN: Final = (KeyError, TypeError, ValueError)  # from notes of another version


@dataclass(frozen=True)
class LeaseNotes:
    """Holds the notes of a lease that are not undone."""

    kind: str
    directory: Path
    notes: tuple[dict[str, Any], ...]  # oldest first
    same_boot: bool  # False: the machine has rebooted since, and processes are gone


@dataclass(frozen=True)
class SweptLease:
    """The outcome for one lease whose launcher is gone: `error` says what could not be undone.

    `undone` says whether there was anything of it on the machine.
    """

    lease: LeaseNotes
    error: str = ""
    undone: bool = False


class Lease:
    """Keeps the notes of one backend of this process. Used by one thread at a time.

    Its directory (0700, short) may hold the backend's files.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._lock: int | None
        self.directory, self._lock = run_directory.create(_PREFIX, [_BASE])
        self._open: dict[int, dict[str, Any]] = {}
        self._count = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self.directory / _NOTES, flags, 0o600)
        self._write({"kind": kind, "boot": _boot()})

    def note(self, what: Mapping[str, Any]) -> int:
        """Writes a note of a coming step to the disk; returns the note's number."""
        self._count += 1
        self._open[self._count] = dict(what)
        self._write({"note": self._count, "what": dict(what)})
        return self._count

    def undone(self, number: int) -> None:
        """Strikes out a note whose step was undone."""
        del self._open[number]
        self._write({"undone": number})

    def others(self) -> list[LeaseNotes]:
        """Returns the other leases of this kind, of launchers of this user that are alive.

        Launchers note first what they want and look here then, so that they see each other.
        """
        leases = []
        for path in run_directory.named(_PREFIX, _BASE):
            try:
                if path == self.directory:
                    continue
                lock = run_directory.take_over(path)
                if lock is not None:  # it has no owner: `sweep` undoes it
                    os.close(lock)
                    continue
                notes = read_notes(path)
            except (OSError, *_UNKNOWN):  # it is gone, of another user, or of another version
                continue
            if notes.kind == self.kind:
                leases.append(notes)
        return leases

    @property
    def closed(self) -> bool:
        """Tells whether it was closed."""
        return self._lock is None

    def close(self) -> None:
        """Closes the lease; what is left to undo stays for the next `sweep`."""
        if self._lock is None:
            return
        if not self._open:
            run_directory.remove(self.directory)
        os.close(self._file)
        os.close(self._lock)
        self._lock = None

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")
        os.fsync(self._file)


def sweep() -> list[SweptLease]:
    """Undoes what this user's killed launchers have left; returns one entry for each."""
    swept = []
    for path in run_directory.named(_PREFIX, _BASE):
        try:
            lock = run_directory.take_over(path)
        except OSError:  # it has just gone
            continue
        if lock is None:
            continue
        try:
            swept.append(_undo(path))
            if not swept[-1].error:
                run_directory.remove(path)
        finally:
            os.close(lock)
    return swept


def _undo(directory: Path) -> SweptLease:
    """Undoes a lease whose owner is gone."""
    lease = LeaseNotes("", directory, (), same_boot=False)
    try:
        lease = read_notes(directory)
        if not lease.notes:
            return SweptLease(lease)
        if lease.kind not in BACKENDS:
            raise KeyError(lease.kind)
        return SweptLease(lease, undone=backend_of(lease.kind).undo(lease))
    except (GmiError, OSError) as error:
        return SweptLease(lease, str(error))
    except _UNKNOWN as error:
        text = f"its notes (kind {lease.kind!r}) are unknown here, {type(error).__name__}: {error}"
        return SweptLease(lease, f"{text}. Another version of gmi-drl made it: run that once more.")


def read_notes(directory: Path) -> LeaseNotes:
    """Reads the notes of the lease in a directory."""
    kind, boot = "", ""
    notes: dict[int, dict[str, Any]] = {}
    try:
        text = (directory / _NOTES).read_text()
    except FileNotFoundError:  # its owner died before its first note
        text = ""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # the last line was cut off, so its step was not taken
            continue
        if "note" in entry:
            notes[entry["note"]] = entry["what"]
        elif "undone" in entry:
            notes.pop(entry["undone"], None)
        else:
            kind, boot = entry["kind"], entry["boot"]
    return LeaseNotes(kind, directory, tuple(notes.values()), boot == _boot())


def _boot() -> str:
    """Returns an id of the current boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
