"""Finds num_env and GMIs per GPU by measuring, and writes a config with them.

What was found once is on record, and answers: `launch` and `plan` take it for what a config says
`auto` of, and runs are held against what was promised. Nothing here imports torch.
"""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gmi_drl.launcher.paper_config import config as paper_config
from gmi_drl.launcher.plan.planning import faults_anywhere, importable
from gmi_drl.launcher.plan.user_code import class_faults
from gmi_drl.launcher.view.screen import ViewName
from gmi_drl.placement import Config, ConfigError, load_config
from gmi_drl.selector.errors import TuneError
from gmi_drl.selector.plots import tune_picture
from gmi_drl.selector.record.record import TuneRecord
from gmi_drl.selector.record.summary import sureness

from .candidate import Chosen, shape_text
from .request import TuneRequest, answered, still_answers
from .session import measure
from .tuned_file import TunedFile


@dataclass(frozen=True)
class Tuned:
    """What tuning found, and where it is written."""

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
        """Environments of each GMI that simulates."""
        return self.config.env.num_env

    @property
    def gmi_per_gpu(self) -> int:
        """GMIs on each device."""
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
    view: ViewName = "auto",
) -> Tuned:
    """Finds what `config` says `auto` of (num_env and gmi_per_gpu, if it says it of nothing).

    `budget`: seconds that it may take, or "5m", in place of tune.budget_s; `output`: the file to
    write, by default tuned.yaml beside the config; `again`: measure anew whatever is on record.
    Blocks for the budget and some seconds, longer if its last candidate is slow to start; before
    that for another tuner on this machine. One that was ended goes on where it was. Raises
    ConfigError with every fault, TuneError when nothing was found or can be written; leaves no
    process behind.
    """
    with terminate_as_interrupt():
        source = Path(config) if isinstance(config, (str, Path)) else None
        given = config.model_dump(mode="json", exclude_unset=True) if isinstance(
            config, Config
        ) else config  # fmt: skip
        words = paper_config.apply_to(overrides)
        if budget is not None:
            words = [*words, f"tune.budget_s={budget}"]
        resolved = load_config(given, words)
        file = TunedFile.of(source, None if output is None else Path(output))
        file.refuse(resolved)
        request = TuneRequest.of(resolved, source.parent if source is not None else None)
        recorded = None if again else request.fresh()
        if recorded is not None and not still_answers(recorded, resolved.tune.budget_s):
            recorded = None
        if recorded is not None:
            notes, text = [_recalled_note(recorded)], None
            if view != "none":
                print(notes[0], flush=True)
        else:
            _refuse(resolved, request.beside, source)
            try:
                session = measure(request, _title(source, resolved), view, again=again)
            except ConfigError as error:
                raise ConfigError(error.faults, error.source or _name(source)) from None
            recorded, text, notes = session.journal.record, session.journal.text, session.notes
        command = ["gmi-drl", "tune", *([str(source)] if source is not None else [])]
        command += [word for given in words for word in ("--set", given)]
        return _written(
            request, recorded, file, notes=notes, text=text, command=shlex.join(command)
        )


def resolve(
    config: Config, *, beside: Path | None = None, view: ViewName = "auto"
) -> tuple[Config, list[str]]:
    """`config` with what tuning found for `auto`, and lines that say so.

    Takes a fresh record, and measures first where there is none, or one that a shorter budget
    ended, as `tune` does.
    """
    request = TuneRequest.of(config, beside)
    recorded = request.fresh()
    if recorded is None or not still_answers(recorded, config.tune.budget_s):
        _refuse(config, request.beside, None)
        try:
            recorded = measure(request, _title(None, config), view, again=False).journal.record
        except TuneError as error:
            if recorded is None:
                raise
            resolved, notes = answered(request, recorded)
            return resolved, [*notes, f"it could not be tuned further: {error}"]
    return answered(request, recorded)


def recalled(config: Config, *, beside: Path | None = None) -> tuple[Config, list[str]] | None:
    """As `resolve`, by a fresh record alone: None where there is none, and nothing is measured."""
    request = TuneRequest.of(config, beside)
    recorded = request.fresh()
    return None if recorded is None else answered(request, recorded)


def record_of(config: Config, *, beside: Path | None = None) -> Path | None:
    """The record of tuning this config on this machine, fresh or not; None if there is none."""
    path = TuneRequest.of(config, beside).path
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # whoever reads it says why it cannot be
        pass
    return path


def record_elsewhere(config: Config, *, beside: Path | None = None) -> tuple[str, Path] | None:
    """Why tuning this config on another machine or version does not answer, and its record."""
    return TuneRequest.of(config, beside).elsewhere()


def output_of(config: Path, output: Path | None = None) -> Path:
    """The file that tuning this config writes."""
    return TunedFile.of(config, output).path


def _refuse(config: Config, beside: Path, source: Path | None) -> None:
    """ConfigError for what no candidate could mend, before anything is started."""
    with importable(beside):
        faults = [
            *faults_anywhere(config),
            *class_faults(config, beside),
        ]
    if faults:
        raise ConfigError(faults, _name(source))


def _written(
    request: TuneRequest,
    recorded: TuneRecord,
    file: TunedFile,
    *,
    notes: list[str],
    text: str | None,
    command: str,
) -> Tuned:
    """Everything that tuning leaves; `text` is the record's, None: what its file has."""
    chosen, promised = recorded.chosen, recorded.promised
    assert chosen is not None
    assert promised is not None
    config, _ = answered(request, recorded)
    file.write(config, recorded.choice.get("layout"), list(_head(recorded, command)))
    pictures: list[Path] = []
    record = file.report / "record.jsonl"
    try:
        file.report.mkdir(exist_ok=True)
        record.write_text(
            recorded.path.read_text(encoding="utf-8") if text is None else text, encoding="utf-8"
        )
        recorded = replace(recorded, path=record)
        pictures = tune_picture.draw(recorded, file.report)
    except OSError as error:  # the config is there, and it is what was asked for
        warnings.warn(f"{file.report}: no report ({error.strerror})", stacklevel=2)
    return Tuned(
        config=config,
        output=file.path,
        record=recorded.path,
        recorded=recorded,
        pictures=pictures,
        chosen=chosen,
        steps_per_s=promised,
        recalled=text is None,
        notes=notes,
    )


def _head(recorded: TuneRecord, command: str) -> Iterator[str]:
    """The comment at the top of the tuned config."""
    chosen, choice, header = recorded.chosen, recorded.choice, recorded.header
    assert chosen is not None
    assert chosen.winner is not None
    yield f"on {time.strftime('%Y-%m-%d %H:%M', time.localtime(float(choice['at'])))}"
    yield f"machine: {header.get('machine', '-')}"
    spread = float(choice.get("error", 0.0))
    speed = f"{recorded.promised:,.0f} steps/s (+- {spread:.1%})"
    yield f"promised: {speed} with {shape_text(chosen.winner)}"
    for other in recorded.results().all:
        if other.candidate == chosen.runner_up:
            speed = f"{other.measured.steps_per_s:,.0f} steps/s"
            yield f"runner-up: {speed} with {shape_text(other.candidate)}"
    yield sureness(recorded)
    for line in (choice.get("changes"), choice.get("left_out"), choice.get("load")):
        if line:
            yield str(line)
    yield f"made by: {command}"


def _recalled_note(recorded: TuneRecord) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(recorded.choice["at"])))
    return f"this was tuned {when}, and nothing is measured; --again measures anew"


def _name(source: Path | None) -> str | None:
    return None if source is None else str(source)


def _title(source: Path | None, config: Config) -> str:
    return f"gmi-drl tune {source if source is not None else config.env.id}"
