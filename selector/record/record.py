"""Keeps what tuning measured in $XDG_CACHE_HOME/gmi-drl/tuning, a journal for each config.

{"kind": "header", "format": 1, "key": ..., "identity": ..., "machine": ..., "held": [...], ...}
{"kind": "profile", "ask": {...}, "answer": {...}, "cost_s": 7.1, "waits_s": 60.0}
{"kind": "race", "candidate": {...}, "round": 1, "points": [[seconds, return], ...], ...}
{"kind": "chosen", "winner": {...}, ..., "steps_per_s": 51234.0, "answer": ...}
{"kind": "drift", "steps_per_s": 30100.0, ...}
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from gmi_drl.launcher.colocated_runs import records_folder
from gmi_drl.launcher.start.jobs import changes
from gmi_drl.launcher.watch.watch import TOLERANCE, Promise
from gmi_drl.placement import Config, Topology, load_config
from gmi_drl.selector.errors import RecordError
from gmi_drl.selector.tune.algorithms.observations import usable
from gmi_drl.selector.tune.candidate import (
    Ask,
    Candidate,
    Chosen,
    Failed,
    Measured,
)
from gmi_drl.selector.tune.efficiency import Prediction
from gmi_drl.selector.tune.space import config_of

from .identity import answer_key
from .journal import FORMAT, Journal, append, begin_journal, cut, damaged, line_text, read_journal
from .results import TuneResults, results_of

_MAX_RECORDS: Final = 128  # of a home directory that a cluster shares; the oldest go
candidate_of: Final = TypeAdapter(Candidate).validate_python
_answer_of: Final = TypeAdapter[Measured | Failed](Measured | Failed).validate_python
_chosen_of: Final = TypeAdapter(Chosen).validate_python
_DAMAGED: Final = (ValueError, TypeError, KeyError, AttributeError, AssertionError)


@dataclass(frozen=True)
class TuneRecord:
    """Holds what a journal of tuning says."""

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
        """Tells whether it has a choice that real runs have not refuted since."""
        return self.chosen is not None and self.chosen.winner is not None and not self.drifts

    @property
    def spent_s(self) -> float:
        """Returns wall-clock seconds of all that is on it."""
        return sum(self.costs_s) + sum(float(line.get("cost_s", 0.0)) for line in self.races)

    @property
    def around_s(self) -> float:
        """Returns the least that start and end of a measurement took: of what ran, if any did."""
        runs = list(zip(self.profiles, self.costs_s, strict=True))
        ran = [cost_s - run.seconds for (_, run), cost_s in runs if isinstance(run, Measured)]
        return max(0.0, min(ran or self.costs_s, default=0.0))

    @property
    def own(self) -> Candidate | None:
        """Returns the config as it was given; None if it left something open, or was not tried."""
        config = self.header.get("config") or {}
        keys = (("layout", "gmi_per_gpu"), ("env", "num_env"), ("algorithm", "horizon"))
        own = [config.get(section, {}).get(key) for section, key in keys]
        tried = (ask.candidate for ask, _ in self.profiles)
        return next((c for c in tried if [c.row.gmi_per_gpu, c.num_env, c.horizon] == own), None)

    def results(self) -> TuneResults:
        """Returns what was measured, put in order."""
        return results_of(self.profiles, self.chosen, self.own, self.prediction)

    @property
    def prediction(self) -> Prediction | None:
        """Returns how it was predicted what a step is worth; None: it was not."""
        return _prediction_of(self.choice)

    @property
    def promised(self) -> float | None:
        """Returns environment steps a second of the winner, where there is one."""
        return float(self.choice["steps_per_s"]) if "steps_per_s" in self.choice else None

    def better(self, steps_per_s: float) -> list[str]:
        """Lists what else was measured and does more than the choice with so many steps/s.

        They are overrides of a run of the choice, the best first. Each does more by goodput, where
        that was predicted, and by more than a promise may be off. What has failed since, would fill
        the memory, or needs a layout file is left out.
        """
        winner = None if self.chosen is None else self.chosen.winner
        settings = self.header.get("config")
        if winner is None or settings is None or winner.row.percents is not None:
            return []
        results, prediction = self.results(), self.prediction
        rate = steps_per_s
        if prediction is not None:
            rate = prediction.goodput(rate, winner.samples, winner.horizon)
        measured = {result.candidate: results.worth(result) for result in results.all}
        failed = {line["candidate"] for line in self.races if "reason" in line}
        others = [
            c
            for c in usable(measured, failed)
            if c != winner
            and c.row.percents is None
            and measured[c].steps_per_s > (1 + TOLERANCE) * rate
        ]
        others.sort(key=lambda c: measured[c].steps_per_s, reverse=True)
        config = load_config(settings)
        chosen_config = config_of(config, winner)
        ways = ([*changes(chosen_config, config_of(config, c))] for c in others)
        return [" ".join(f"{key}={value}" for key, value in way) for way in ways]

    @property
    def when(self) -> str:
        """Tells people when its choice was made."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(float(self.choice["at"])))

    @classmethod
    def of(cls, journal: Journal) -> TuneRecord:
        """Reads what a journal says; RecordError for what no tuner has written."""
        record = cls(journal.path, journal.header)
        for number, line in enumerate(journal.lines, 2):
            try:
                record = record.extended(line)
            except _DAMAGED as error:
                raise RecordError(damaged(journal.path, number, error)) from None
        if journal.damage:
            raise RecordError(journal.damage)
        return record

    def extended(self, line: dict[str, Any]) -> TuneRecord:
        """Returns the record with one more line."""
        kind, values = line["kind"], dict(vars(self))
        if kind == "profile":
            ask = Ask(candidate_of(line["ask"]["candidate"]), float(line["ask"]["seconds"]))
            values["profiles"] += ((ask, _answer_of(line["answer"])),)
            values["costs_s"] += (float(line["cost_s"]),)
            values["waits_s"] += (float(line["waits_s"]),)
        elif kind == "race":
            values["races"] += ({**line, "candidate": candidate_of(line["candidate"])},)
        elif kind == "chosen":
            chosen = _chosen_of(line)
            _prediction_of(line)  # TypeError for that of another version
            values |= {"chosen": chosen, "choice": line, "drifts": ()}
            if line.get("raced"):  # who had won was not known when the lines of the race came
                won = chosen.winner
                values["races"] = tuple({**r, "winner": r["candidate"] == won} for r in self.races)
        elif kind == "drift":
            values["drifts"] += (line,)
        else:
            raise ValueError(f"kind {kind!r} is none of a record's")
        return TuneRecord(**values)


def record_path(key: str) -> Path:
    """Returns where the record with this key is, or would be."""
    return records_folder() / f"{key}.jsonl"


def read(path: Path) -> TuneRecord:
    """Returns the record in a file. OSError when it cannot be read, RecordError when it is none."""
    return TuneRecord.of(read_journal(path))


def records() -> Iterator[TuneRecord]:
    """Yields all records of this user that can be read, the newest first."""
    with contextlib.suppress(OSError):
        for path in _newest_first(records_folder()):
            with contextlib.suppress(OSError, RecordError):
                yield read(path)


def expire(path: Path, steps_per_s: float, text: str) -> str:
    """Marks a record as stale, as a real run did other than promised; returns why it cannot."""
    line = {"kind": "drift", "at": time.time(), "steps_per_s": steps_per_s, "text": text}
    try:
        append(path, line)
    except OSError as error:
        return f"{path} cannot be written ({error.strerror}); it still promises what it did"
    return ""


def promise_of(config: Config, topology: Topology, beside: Path | None = None) -> Promise | None:
    """Finds what the newest fresh record promises for this resolved config; looks at no device."""
    key: str | None = None
    for record in records():
        if record.fresh and record.promised is not None:
            key = key or answer_key(config, topology, (beside or Path.cwd()).resolve())
            if record.choice.get("answer") == key:
                expires = functools.partial(expire, record.path)
                return Promise(record.promised, record.path, expires, record.better)
    return None


class TuneJournal:
    """The journal a tuner adds to; `trouble` says why nothing is kept, `text` what would be."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path, self.trouble = path, ""
        self.record = TuneRecord(path, {"kind": "header", "format": FORMAT, **header})
        self.text = line_text(self.record.header)

    @classmethod
    def open(
        cls, path: Path, header: Mapping[str, Any], *, anew: bool
    ) -> tuple[TuneJournal, list[str]]:
        """Returns the journal at `path`, gone on with or begun, and what to tell the user of it.

        `anew`: what was there goes. A file that is no record of this format is put aside. Hold the
        tuners' lock.
        """
        journal = cls(path, header)
        notes: list[str] = []
        try:
            old_journal = read_journal(path)
            record = TuneRecord.of(old_journal)
            # A record of failures alone is begun anew: the user has probably mended something.
            if not anew and any(isinstance(answer, Measured) for _, answer in record.profiles):
                journal.record, journal.text = record, old_journal.text
                cut(old_journal)
                return journal, notes
        except FileNotFoundError:
            pass
        except RecordError as error:
            notes.append(f"{error}; it is put aside, and tuning begins anew")
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".damaged"))
        except OSError as error:
            if journal.record.profiles:  # it can be read, and not be added to
                journal._give_up(error)
                return journal, [journal.trouble]
            notes.append(f"{path} cannot be read ({error.strerror}); tuning begins anew")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _prune(path)
            begin_journal(path, header)
        except OSError as error:
            journal._give_up(error)
            notes.append(journal.trouble)
        return journal, notes

    def profiled(
        self, ask: Ask, answer: Measured | Failed, cost_s: float, waits_s: float = 0.0
    ) -> None:
        """Adds a measurement that took `cost_s`, its first iteration waited for up to `waits_s`."""
        facts = {"ask": asdict(ask), "answer": asdict(answer), "cost_s": cost_s, "waits_s": waits_s}
        self._add("profile", facts)

    def raced(self, candidate: Candidate, facts: Mapping[str, Any]) -> None:
        """Adds how one finalist did in one round of a race."""
        self._add("race", {"candidate": asdict(candidate), **facts})

    def chose(self, chosen: Chosen, facts: Mapping[str, Any]) -> None:
        """Adds what the search found; the record answers from now on."""
        self._add("chosen", {**asdict(chosen), **facts})

    def _add(self, kind: str, facts: Mapping[str, Any]) -> None:
        line = {"kind": kind, "at": time.time(), **facts}
        text = line_text(line)
        self.record, self.text = self.record.extended(json.loads(text)), self.text + text
        try:
            if not self.trouble:
                append(self.path, line)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        why = f"cannot be written ({error.strerror}); what is measured is not kept"
        self.trouble = f"{self.path} {why}"


def _prediction_of(data: Mapping[str, Any]) -> Prediction | None:
    fields = data.get("prediction")
    return None if fields is None else Prediction(**fields)


def _prune(path: Path) -> None:
    others = [other for other in _newest_first(path.parent) if other != path]
    for old in others[_MAX_RECORDS - 1 :]:
        for file in (old, old.with_suffix(".layout.yaml")):
            with contextlib.suppress(OSError):
                file.unlink()


def _newest_first(folder: Path) -> list[Path]:
    times: dict[Path, float] = {}
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(OSError):  # it has just gone
            times[path] = path.stat().st_mtime
    return sorted(times, key=times.__getitem__, reverse=True)
