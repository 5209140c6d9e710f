"""Says what is to be tuned, where its record lies, and what that answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
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
from .keep import kept_sentence
from .noise import TunedNoise, noise_of_run
from .space import config_of


@dataclass(frozen=True)
class TuneRequest:
    """Holds a config to tune, on the devices it may use; `beside` is the folder of its modules."""

    config: Config
    topology: Topology
    beside: Path
    identity: dict[str, Any]
    path: Path  # of its record
    noise: TunedNoise | None = None  # of a run that is given

    @classmethod
    def of(cls, config: Config, beside: Path | None, run: Path | None = None) -> TuneRequest:
        """Makes one; DiscoveryError without the devices, NoiseSourceError for a wrong `run`."""
        folder = (beside or Path.cwd()).resolve()
        topology = find_devices(config)
        facts = identity.identity(config, topology, folder)
        noise = None if run is None else noise_of_run(run, config)
        path = record_path(identity.digest_of(facts))
        return cls(config, topology, folder, facts, path, noise)

    def record(self) -> TuneRecord | None:
        """Returns its record, if there is one that can be read."""
        with suppress(OSError, RecordError):
            return read(self.path)
        return None

    def fresh(self) -> TuneRecord | None:
        """Returns its record, if that has a choice, and no real run has refuted it."""
        record = self.record()
        return record if record is not None and record.fresh else None

    def stale(self) -> Iterator[str]:
        """Says why a record of this config cannot be used, if there is one."""
        record = self.record()
        if record is not None and record.drifts:
            yield f"{record.drifts[-1]['text']}: it is tuned anew"
        elif record is None and (other := self.elsewhere()) is not None:
            yield f"{other[0]}: tuned anew"

    def elsewhere(self) -> tuple[str, Path] | None:
        """Says that this was tuned on another machine or version, and the record; None if not."""
        for other in records():
            old_identity = other.header.get("identity") or {}
            if old_identity.get("problem") == self.identity["problem"]:
                what = identity.difference(old_identity, self.identity)
                return f"this config was tuned on another machine or version ({what})", other.path
        return None

    def resolved(
        self, candidate: Candidate, layout: str | None, steps_factor: float = 1.0
    ) -> Config:
        """Returns the config with a candidate's values; writes its layout file, if there is one.

        `steps_factor`: how many times the steps of the config as given a run needs.
        """
        if layout is None:
            return longer(config_of(self.config, candidate), steps_factor)
        file = self.path.with_suffix(".layout.yaml")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, layout)
        except OSError:
            file = runtime.run_directory() / "tuned.layout.yaml"
            replace_file(file, layout)
        return longer(config_of(self.config, candidate, file), steps_factor)


def longer(config: Config, factor: float) -> Config:
    """Returns the config with so many times the steps."""
    if factor == 1.0:
        return config
    run = config.run.model_copy(update={"total_steps": round(config.run.total_steps * factor)})
    return config.model_copy(update={"run": run})


def answered(request: TuneRequest, record: TuneRecord) -> tuple[Config, list[str]]:
    """Returns the resolved config that a fresh record means, and what to say of it."""
    assert record.chosen is not None
    winner = record.chosen.winner
    assert winner is not None, record.path
    line = f"{shape_text(winner)}: tuned {record.when}, {record.promised:,.0f} steps/s promised"
    factor = float(record.choice.get("steps_factor", 1.0))
    lines = [line, *changes_of(request, winner, factor)]
    return request.resolved(winner, record.choice.get("layout"), factor), lines


def changes_of(request: TuneRequest, winner: Candidate, steps_factor: float) -> list[str]:
    """Says what becomes of an update with the choice, and of how long a run is."""
    parts = [kept_sentence(request.config, request.topology, winner)]
    if steps_factor != 1.0:
        steps = request.config.run.total_steps
        parts.append(
            f"run.total_steps {round(steps * steps_factor):,} instead of {steps:,}, as such "
            f"updates are predicted to learn {1 / steps_factor:.2f} times as much of a step"
        )
    return [part for part in parts if part]


def still_answers(record: TuneRecord, budget_s: float) -> bool:
    """Tells whether a search with this budget would find no more than the one on record."""
    choice = record.choice
    searched_s = float(choice.get("budget_s", 0.0))
    is_complete = bool(choice.get("complete")) and not choice.get("raced")
    return record.fresh and (is_complete or budget_s <= searched_s)
