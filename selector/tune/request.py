"""Looks up what this user's records say of a config to tune; nothing is measured here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gmi_drl import runtime
from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.placement import Config, Topology
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.selector.errors import RecordError
from gmi_drl.selector.record import identity
from gmi_drl.selector.record.record import TuneRecord, read, record_path, records

from .candidate import Candidate, shape_text
from .space import batch_sentence, config_of


@dataclass(frozen=True)
class TuneRequest:
    """A config to tune, on the devices it may use; `beside` is the folder of its modules."""

    config: Config
    topology: Topology
    beside: Path
    identity: dict[str, Any]
    path: Path  # of its record

    @classmethod
    def of(cls, config: Config, beside: Path | None) -> TuneRequest:
        """DiscoveryError when the devices are not there."""
        folder = (beside or Path.cwd()).resolve()
        topology = find_devices(config)
        facts = identity.identity(config, topology, folder)
        return cls(config, topology, folder, facts, record_path(identity.digest_of(facts)))

    def record(self) -> TuneRecord | None:
        """Its record, if there is one that can be read."""
        with contextlib.suppress(OSError, RecordError):
            return read(self.path)
        return None

    def fresh(self) -> TuneRecord | None:
        """Its record, if that has a choice, and no real run has refuted it."""
        record = self.record()
        return record if record is not None and record.fresh else None

    def stale(self) -> Iterator[str]:
        """Says why what is on record of this config does not answer, if anything is."""
        record = self.record()
        if record is not None and record.drifts:
            yield f"{record.drifts[-1]['text']}: it is tuned anew"
        elif record is None and (other := self.elsewhere()) is not None:
            yield f"{other[0]}: tuned anew"

    def elsewhere(self) -> tuple[str, Path] | None:
        """Says that this was tuned on another machine or version, and the record; None if not."""
        for other in records():
            before = other.header.get("identity") or {}
            if before.get("problem") == self.identity["problem"]:
                what = identity.difference(before, self.identity)
                return f"this config was tuned on another machine or version ({what})", other.path
        return None

    def resolved(self, candidate: Candidate, layout: str | None) -> Config:
        """Returns the config with a candidate's values; writes its layout file, if there is one."""
        if layout is None:
            return config_of(self.config, candidate)
        file = self.path.with_suffix(".layout.yaml")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, layout)
        except OSError:
            file = runtime.run_directory() / "tuned.layout.yaml"
            replace_file(file, layout)
        return config_of(self.config, candidate, file)


def answered(request: TuneRequest, record: TuneRecord) -> tuple[Config, list[str]]:
    """Returns the resolved config that a fresh record means, and what to say of it."""
    assert record.chosen is not None
    winner = record.chosen.winner
    assert winner is not None, record.path
    line = f"{shape_text(winner)}: tuned {record.when}, {record.promised:,.0f} steps/s promised"
    lines = filter(None, [line, batch_sentence(request.config, request.topology, winner)])
    return request.resolved(winner, record.choice.get("layout")), list(lines)


def still_answers(record: TuneRecord, budget_s: float) -> bool:
    """Tells whether a search with this budget would find no more than the one on record."""
    before_s = float(record.choice.get("budget_s", 0.0))
    return record.fresh and (bool(record.choice["complete"]) or budget_s <= before_s)
