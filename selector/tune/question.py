"""What tuning is asked, and what the records of this user answer: nothing is measured here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gmi_drl import runtime
from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.placement import Config, Topology
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.selector.record import identity
from gmi_drl.selector.record.record import Recorded, RecordError, read, record_path, records

from .candidate import Candidate
from .space import batch_sentence, config_of, layout_text


@dataclass(frozen=True)
class Question:
    """A config to tune, on the devices it may use; `beside` is the folder of its modules."""

    config: Config
    topology: Topology
    beside: Path
    identity: dict[str, Any]
    path: Path  # of its record

    @classmethod
    def of(cls, config: Config, beside: Path | None) -> Question:
        """DiscoveryError when the devices are not there."""
        folder = (beside or Path.cwd()).resolve()
        topology = find_devices(config)
        known = identity.identity(config, topology, folder)
        return cls(config, topology, folder, known, record_path(identity.key_of(known)))

    def recorded(self) -> Recorded | None:
        """Its record, if there is one that can be read."""
        try:
            return read(self.path)
        except (OSError, RecordError):
            return None

    def fresh(self) -> Recorded | None:
        """Its record, if that has a choice, and no real run has refuted it."""
        found = self.recorded()
        return found if found is not None and found.fresh else None

    def stale(self) -> Iterator[str]:
        """Why what is on record of this config does not answer; nothing if there is nothing."""
        found = self.recorded()
        if found is not None:
            if found.drifts:
                yield f"{found.drifts[-1]['text']}: it is tuned anew"
            return
        if (other := self.elsewhere()) is not None:
            yield f"{other[0]}: tuned anew"

    def elsewhere(self) -> tuple[str, Path] | None:
        """That this was tuned on another machine or version, and the record; None if it was not."""
        for other in records():
            its = other.header.get("identity") or {}
            if its.get("problem") == self.identity["problem"]:
                what = identity.difference(its, self.identity)
                return f"this config was tuned on another machine or version ({what})", other.path
        return None

    def settled(self, candidate: Candidate, layout: str | None) -> Config:
        """The config with a candidate's values; `layout`: the text of its layout file, if any.

        The file is written beside the record, or where that fails in the runtime's folder.
        """
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

    def layout(self, candidate: Candidate) -> str | None:
        """The text of a candidate's layout file, where the shares of its GMIs differ."""
        if candidate.row.percents is None:
            return None
        return layout_text(self.config, candidate, self.topology)

    def answer(self, config: Config) -> str:
        """The key by which a run of a settled config finds what was promised."""
        return identity.answer_key(config, self.topology, self.beside)


def answered(question: Question, recorded: Recorded) -> tuple[Config, list[str]]:
    """The settled config that a fresh record means, and lines that say where it comes from, and
    what it makes of the batch or, where `tune.batch` asks for that, of the horizon."""
    assert recorded.chosen is not None
    winner = recorded.chosen.winner
    assert winner is not None, recorded.path
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(recorded.choice["at"])))
    line = f"{shape_text(winner)}: tuned {when}, {recorded.promised:,.0f} steps/s promised"
    changes = batch_sentence(question.config, question.topology, winner)
    lines = [line, *([changes] if changes else [])]
    return question.settled(winner, recorded.choice.get("layout")), lines


def still_answers(recorded: Recorded, budget_s: float) -> bool:
    """Whether a search with this budget would find nothing that the one on record did not."""
    before_s = float(recorded.choice.get("budget_s", 0.0))
    return recorded.fresh and (bool(recorded.choice["complete"]) or budget_s <= before_s)


def shape_text(candidate: Candidate) -> str:
    """num_env 512, 2 GMIs on each device, backend mps."""
    row = candidate.row
    gmis = f"{row.gmi_per_gpu} GMI{'' if row.gmi_per_gpu == 1 else 's'} on each device"
    parts = [f"num_env {candidate.num_env:,}", gmis]
    if row.backend != "cpu":
        parts.append(f"backend {row.backend}")
    if row.percents is not None:
        parts.append(f"{':'.join(map(str, row.percents))} % of the SMs")
    elif row.sm_overcommit != 1.0:
        parts.append(f"sm_overcommit {row.sm_overcommit:g}")
    return ", ".join(parts)
