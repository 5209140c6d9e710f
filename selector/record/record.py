"""What tuning measured, kept in $XDG_CACHE_HOME/gmi-drl/tuning: one JSON line for each thing.

    {"kind": "header", "format": 1, "key": ..., "identity": ..., "machine": ..., "held": [...], ...}
    {"kind": "profile", "ask": {...}, "answer": {...}, "cost_s": 7.1, "waits_s": 60.0}
    {"kind": "race", "candidate": {...}, "round": 1, "points": [[seconds, return], ...], ...}
    {"kind": "chosen", "winner": {...}, ..., "steps_per_s": 51234.0, "settled": ...}
    {"kind": "drift", "steps_per_s": 30100.0, ...}

Lines are added at the end and are on the disk before the next measurement begins, so that a tuner
that is killed loses the one it was at. A torn last line is what such a one leaves: it is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.colocated_runs import records_folder
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.selector.tune.candidate import Ask, Candidate, Chosen, Failed, Measured

from .findings import Findings, findings_of
from .lines import (
    answer_from,
    answer_json,
    ask_from,
    ask_json,
    candidate_from,
    candidate_json,
    chosen_from,
    chosen_json,
)

FORMAT: Final = 1
_MAX_RECORDS: Final = 128  # of a home directory that a cluster shares; the oldest go
_DAMAGED: Final = (ValueError, TypeError, KeyError, AttributeError, AssertionError)


class RecordError(GmiDrlError, ValueError):
    """A file is no record, or one that this version does not read."""

    command_exit_code = 2


@dataclass(frozen=True)
class Recorded:
    """A record as it was read."""

    path: Path
    header: dict[str, Any]
    profiles: tuple[tuple[Ask, Measured | Failed], ...] = ()
    costs_s: tuple[float, ...] = ()  # wall-clock seconds of each profile, its start and end too
    waits_s: tuple[float, ...] = ()  # how long each would have been waited for, until it began
    races: tuple[dict[str, Any], ...] = ()  # their "candidate" is a Candidate
    chosen: Chosen | None = None
    choice: dict[str, Any] = field(default_factory=dict)  # the line of `chosen` as it is
    drifts: tuple[dict[str, Any], ...] = ()

    @property
    def fresh(self) -> bool:
        """Whether it has a choice that real runs have not refuted since."""
        return self.chosen is not None and self.chosen.winner is not None and not self.drifts

    @property
    def spent_s(self) -> float:
        """Wall-clock seconds of all that is on it."""
        return sum(self.costs_s) + sum(float(race.get("cost_s", 0.0)) for race in self.races)

    @property
    def around_s(self) -> float:
        """The least that start and end of a measurement took: of what ran, if anything did."""
        each = list(zip(self.profiles, self.costs_s, strict=True))
        ran = [cost_s - its.seconds for (_, its), cost_s in each if isinstance(its, Measured)]
        return max(0.0, min(ran or self.costs_s, default=0.0))

    @property
    def own(self) -> Candidate | None:
        """The config as it was given; None if it left something open, or was not tried."""
        its = self.header.get("config") or {}
        given = [
            its.get(section, {}).get(key)
            for section, key in (
                ("layout", "gmi_per_gpu"), ("env", "num_env"), ("algorithm", "horizon")
            )
        ]  # fmt: skip
        tried = (ask.candidate for ask, _ in self.profiles)
        return next((c for c in tried if [c.row.gmi_per_gpu, c.num_env, c.horizon] == given), None)

    def findings(self) -> Findings:
        """What was measured, put in order."""
        return findings_of(self.profiles, self.chosen, self.own)

    @property
    def promised(self) -> float | None:
        """Environment steps a second of the winner, where there is one."""
        return float(self.choice["steps_per_s"]) if "steps_per_s" in self.choice else None


def record_path(key: str) -> Path:
    """Where the record with this key is, or would be."""
    return records_folder() / f"{key}.jsonl"


def read(path: Path) -> Recorded:
    """The record in a file. OSError when it cannot be read, RecordError when it is none."""
    return _parsed(path, path.read_bytes())[0]


def records() -> Iterator[Recorded]:
    """All records of this user that can be read, the newest first."""
    with contextlib.suppress(OSError):
        for path in sorted(records_folder().glob("*.jsonl"), key=_age, reverse=True):
            with contextlib.suppress(OSError, RecordError):
                yield read(path)


def expire(path: Path, steps_per_s: float, text: str) -> str:
    """Notes that a real run did other than promised: from now on the record is stale.

    What went wrong, in words, or nothing; never raises OSError.
    """
    line = {"kind": "drift", "at": time.time(), "steps_per_s": steps_per_s, "text": text}
    try:
        _append(path, line)
    except OSError as error:
        return f"{path} cannot be written ({error.strerror}); it still promises what it did"
    return ""


class Record:
    """The record a tuner adds to. `trouble` says why nothing is kept, or is "".

    A record that cannot be written keeps what it is given for as long as it lives; `text` is what
    its file has, or should have.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path, self.trouble = path, ""
        self.recorded = Recorded(path, {"kind": "header", "format": FORMAT, **header})
        self.text = _line(self.recorded.header)

    @classmethod
    def open(cls, path: Path, header: Mapping[str, Any], *, anew: bool) -> tuple[Record, list[str]]:
        """The record at `path`, gone on with or begun, and what the user should know of it.

        `anew`: what was there goes. A file that is no record is put aside, and so is one of another
        format. Hold the tuners' lock.
        """
        record = cls(path, header)
        notes: list[str] = []
        try:
            content = path.read_bytes()
            found, length = _parsed(path, content)
            # One of failures alone is begun anew: whoever tunes again has mended something.
            if not anew and any(isinstance(answer, Measured) for _, answer in found.profiles):
                record.recorded, record.text = found, content[:length].decode()
                if length < len(content):  # what a killed tuner left of its last line
                    os.truncate(path, length)
                return record, notes
        except FileNotFoundError:
            pass
        except RecordError as error:
            notes.append(f"{error}; it is put aside, and tuning begins anew")
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".damaged"))
        except OSError as error:
            if record.recorded.profiles:  # it can be read, and not be added to
                record._give_up(error)
                return record, [record.trouble]
            notes.append(f"{path} cannot be read ({error.strerror}); tuning begins anew")
        record._begin()
        if record.trouble:
            notes.append(record.trouble)
        return record, notes

    def profiled(
        self, ask: Ask, answer: Measured | Failed, cost_s: float, waits_s: float = 0.0
    ) -> None:
        """Adds a measurement that took `cost_s` seconds of the clock.

        `waits_s`: how long its first iteration was waited for at most; who waits longer asks again
        for what was too slow.
        """
        self._add(
            {
                "kind": "profile",
                "at": time.time(),
                "ask": ask_json(ask),
                "answer": answer_json(answer),
                "cost_s": cost_s,
                "waits_s": waits_s,
            }
        )

    def raced(self, candidate: Candidate, what: Mapping[str, Any]) -> None:
        """Adds how one finalist did in one round of a race."""
        line = {"kind": "race", "at": time.time(), "candidate": candidate_json(candidate)}
        self._add({**line, **what})

    def chose(self, chosen: Chosen, what: Mapping[str, Any]) -> None:
        """Adds what the search found; the record answers from now on."""
        self._add({"kind": "chosen", "at": time.time(), **chosen_json(chosen), **what})

    def _begin(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _prune(self.path)
            replace_file(self.path, self.text)
        except OSError as error:
            self._give_up(error)

    def _add(self, line: dict[str, Any]) -> None:
        self.recorded = _with(self.recorded, json.loads(_line(line)))
        self.text += _line(line)
        if self.trouble:
            return
        try:
            _append(self.path, line)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.trouble = (
            f"{self.path} cannot be written ({error.strerror}); what is measured is not kept"
        )


def _parsed(path: Path, content: bytes) -> tuple[Recorded, int]:
    """The record, and how much of the file it is: less than all when the last line is torn."""
    *lines, torn = content.split(b"\n")
    if not lines:
        raise RecordError(f"{path} is damaged: it has no header")
    try:
        header = json.loads(lines[0])
        if header["kind"] != "header":
            raise KeyError("header")
    except _DAMAGED as error:
        raise RecordError(f"{path} is damaged: it has no header ({error})") from None
    if header.get("format") != FORMAT:
        raise RecordError(
            f"{path} has format {header.get('format')!r}, and this gmi-drl reads {FORMAT}"
        )
    found = Recorded(path, header)
    for number, line in enumerate(lines[1:], 2):
        try:
            found = _with(found, json.loads(line))
        except _DAMAGED as error:
            what = f"{type(error).__name__}: {error}"
            raise RecordError(f"{path} is damaged in line {number} ({what})") from None
    return found, len(content) - len(torn)


def _with(found: Recorded, line: dict[str, Any]) -> Recorded:
    """The record with one more line."""
    kind, values = line["kind"], dict(vars(found))
    if kind == "profile":
        values["profiles"] += ((ask_from(line["ask"]), answer_from(line["answer"])),)
        values["costs_s"] += (float(line["cost_s"]),)
        values["waits_s"] += (float(line.get("waits_s", 0.0)),)
    elif kind == "race":
        values["races"] += ({**line, "candidate": candidate_from(line["candidate"])},)
    elif kind == "chosen":
        values |= {"chosen": chosen_from(line), "choice": line, "drifts": ()}
        if line.get("raced"):  # who had won was not known when the lines of the race were written
            winner = values["chosen"].winner
            values["races"] = tuple(
                {**race, "winner": race["candidate"] == winner} for race in found.races
            )
    elif kind == "drift":
        values["drifts"] += (line,)
    else:
        raise ValueError(f"kind {kind!r} is none of a record's")
    return Recorded(**values)


def _line(what: Mapping[str, Any]) -> str:
    return json.dumps(what) + "\n"


def _append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds a line; OSError, and the file as it was, when it cannot be.

    A torn last line goes: whoever was at it is dead, as lines are written whole.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        before = os.fstat(file).st_size
        if before and os.pread(file, 1, before - 1) != b"\n":
            before = os.pread(file, before, 0).rfind(b"\n") + 1
            os.ftruncate(file, before)
        data = _line(line).encode()
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, before)
            raise
    finally:
        os.close(file)


def _prune(path: Path) -> None:
    others: Sequence[Path] = [p for p in path.parent.glob("*.jsonl") if p != path]
    for old in sorted(others, key=_age, reverse=True)[_MAX_RECORDS - 1 :]:
        for gone in (old, old.with_suffix(".layout.yaml")):
            with contextlib.suppress(OSError):
                gone.unlink()


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it has just gone
        return 0.0
