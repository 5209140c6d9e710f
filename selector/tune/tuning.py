"""Finds num_env and GMIs per GPU by measuring, and writes them. Nothing here imports torch."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gmi_drl.launcher.paper_config import config as paper_config
from gmi_drl.launcher.plan.planning import faults_anywhere
from gmi_drl.launcher.plan.user_code import class_faults
from gmi_drl.launcher.view.view import ViewName
from gmi_drl.placement import Config, ConfigError, load_config
from gmi_drl.placement.checks.config import one_machine_faults
from gmi_drl.roles.loading import importable
from gmi_drl.selector.errors import TuneError
from gmi_drl.selector.plots import tune_picture
from gmi_drl.selector.record.record import TuneRecord
from gmi_drl.selector.record.report import learning, sureness

from .candidate import Chosen, shape_text
from .request import TuneRequest, answered, still_answers
from .session import measure
from .tuned_file import TunedFile


@dataclass(frozen=True)
class Tuned:
    """Holds what tuning found, and where it is written."""

    config: Config  # resolved
    output: Path  # the same as a file, which launches as it is
    record: Path  # all that was measured; in the folder of the report if that can be written
    recorded: TuneRecord  # what is in it
    pictures: list[Path]
    chosen: Chosen
    steps_per_s: float  # environment steps, of all GMIs: what is promised
    recalled: bool  # nothing was measured, the record had it
    notes: list[str]

    @property
    def num_env(self) -> int:
        """Returns the environments of each GMI that simulates."""
        return self.config.env.num_env

    @property
    def gmi_per_gpu(self) -> int:
        """Returns the GMIs on each device."""
        assert self.chosen.winner is not None
        return self.chosen.winner.row.gmi_per_gpu

    def __str__(self) -> str:
        assert self.chosen.winner is not None
        return f"{shape_text(self.chosen.winner)}: {self.steps_per_s:,.0f} steps/s ({self.output})"


def tune(
    config: Config | Path | str | Mapping[str, Any],
    *,
    overrides: Iterable[str] = (),
    budget: float | str | None = None,
    output: Path | str | None = None,
    again: bool = False,
    run: Path | str | None = None,
    view: ViewName = "auto",
) -> Tuned:
    """Finds what `config` says `auto` of (num_env and gmi_per_gpu, if it says it of nothing).

    `budget`: seconds that it may take, or "5m", in place of tune.budget_s; `output`: the file to
    write, by default tuned.yaml beside the config; `again`: measure anew whatever is on record;
    `run`: the folder of a run of this environment, whose gradient noise scale is predicted with.
    Blocks for the budget and some seconds, and before that for another tuner on this machine. An
    interrupted tune goes on where it was. Raises ConfigError with every fault, TuneError when
    nothing was found or can be written; leaves no process behind.
    """
    with terminate_as_interrupt():
        source = Path(config) if isinstance(config, (str, Path)) else None
        settings = config.model_dump(mode="json", exclude_unset=True) if isinstance(
            config, Config
        ) else config  # fmt: skip
        all_overrides = paper_config.apply_to(overrides)
        if budget is not None:
            all_overrides = [*all_overrides, f"tune.budget_s={budget}"]
        resolved = load_config(settings, all_overrides)
        file = TunedFile.of(source, None if output is None else Path(output))
        file.refuse(resolved)
        request = TuneRequest.of(
            resolved,
            source.parent if source is not None else None,
            None if run is None else Path(run),
        )
        recorded, text = None if again or run is not None else request.fresh(), None
        if recorded is not None and still_answers(recorded, resolved.tune.budget_s):
            notes = [f"this was tuned {recorded.when}, and nothing is measured; --again measures "
                     "anew"]  # fmt: skip
            if view != "none":
                print(notes[0], flush=True)
        else:
            name = None if source is None else str(source)
            _check(resolved, request.beside, name)
            try:
                title = f"gmi-drl tune {name or resolved.env.id}"
                journal, notes = measure(request, title, view, again=again)
            except ConfigError as error:
                raise ConfigError(error.faults, error.source or name) from None
            recorded, text = journal.record, journal.text
        command = ["gmi-drl", "tune", *([str(source)] if source is not None else [])]
        command += [word for override in all_overrides for word in ("--set", override)]
        return _write(request, recorded, file, notes, text, shlex.join(command))


def resolve(
    config: Config, *, beside: Path | None = None, view: ViewName = "auto"
) -> tuple[Config, list[str]]:
    """Returns `config` with what tuning found for `auto`, now or before, and lines that say so."""
    request = TuneRequest.of(config, beside)
    recorded = request.fresh()
    if recorded is None or not still_answers(recorded, config.tune.budget_s):
        _check(config, request.beside, None)
        try:
            journal, _ = measure(request, f"gmi-drl tune {config.env.id}", view, again=False)
        except TuneError as error:
            if recorded is None:
                raise
            resolved, notes = answered(request, recorded)
            return resolved, [*notes, f"it could not be tuned further: {error}"]
        recorded = journal.record
    return answered(request, recorded)


def recalled(config: Config, *, beside: Path | None = None) -> tuple[Config, list[str]] | None:
    """Resolves `config` by a fresh record alone, and measures nothing; None where there is none."""
    request = TuneRequest.of(config, beside)
    recorded = request.fresh()
    return None if recorded is None else answered(request, recorded)


def _check(config: Config, beside: Path, source: str | None) -> None:
    """Raises ConfigError for what no candidate could mend, before anything is started."""
    with importable(beside):
        faults = [*one_machine_faults(config, "gmi-drl tune"), *faults_anywhere(config)]
        faults += class_faults(config, beside)
    if faults:
        raise ConfigError(faults, source)


def _write(
    request: TuneRequest,
    recorded: TuneRecord,
    file: TunedFile,
    notes: list[str],
    text: str | None,
    command: str,
) -> Tuned:
    """Writes everything that tuning leaves; `text` is the record's, None: what its file has."""
    chosen, promised = recorded.chosen, recorded.promised
    assert chosen is not None
    assert promised is not None
    config, _ = answered(request, recorded)
    file.write(config, recorded.choice.get("layout"), list(_comment_lines(recorded, command)))
    pictures: list[Path] = []
    record = file.report / "record.jsonl"
    try:
        file.report.mkdir(exist_ok=True)
        record_text = recorded.path.read_text(encoding="utf-8") if text is None else text
        record.write_text(record_text, encoding="utf-8")
        recorded = replace(recorded, path=record)
        pictures = tune_picture.draw(recorded, file.report)
    except OSError as error:  # the config is there, and it is what was asked for
        warnings.warn(f"{file.report}: no report ({error.strerror})", stacklevel=2)
    return Tuned(
        config=config, output=file.path, record=recorded.path, recorded=recorded,
        pictures=pictures, chosen=chosen, steps_per_s=promised, recalled=text is None, notes=notes,
    )  # fmt: skip


def _comment_lines(recorded: TuneRecord, command: str) -> Iterator[str]:
    """Yields the comment at the top of the tuned config."""
    chosen, choice, header = recorded.chosen, recorded.choice, recorded.header
    assert chosen is not None
    assert chosen.winner is not None
    changes = choice.get("changes")
    if changes and (header.get("config") or {}).get("tune", {}).get("objective") == "steps":
        yield f"it may learn slower: the most steps/s were asked for, and {changes}"
    yield f"on {recorded.when}"
    yield f"machine: {header.get('machine', '-')}"
    spread = float(choice.get("error", 0.0))
    speed = f"{recorded.promised:,.0f} steps/s (+- {spread:.1%})"
    yield f"promised: {speed} with {shape_text(chosen.winner)}"
    for other in recorded.results().all:
        if other.candidate == chosen.runner_up:
            speed = f"{other.measured.steps_per_s:,.0f} steps/s"
            yield f"runner-up: {speed} with {shape_text(other.candidate)}"
    yield sureness(recorded)
    yield from filter(None, map(choice.get, ("changes", "left_out", "load")))
    yield from learning(recorded)
    yield f"made by: {command}"
