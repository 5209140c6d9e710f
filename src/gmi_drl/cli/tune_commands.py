"""Looks for better settings by running some: commands tune and search."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .app import Again, BadPath, ConfigFile, Overrides, Plain, Quiet, command, console_for, view_for

if TYPE_CHECKING:
    from rich.console import Console

    from gmi_drl.selector.record.record import TuneRecord

_RECORD: Final = ".jsonl"
_COPY: Final = "record.jsonl"  # of the record, in the folder of a report


_Objective = StrEnum("_Objective", "LEARNING STEPS")
_Algorithm = StrEnum("_Algorithm", "DEFAULT PAPER")


def budget_of(text: str) -> float:
    """Returns the seconds in "5m", "90s", "1h30m" or "300"; BadParameter when it is no time."""
    from gmi_drl.placement.config.section import TIMES, seconds_of

    try:
        seconds = seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}. {TIMES}.") from None
    if not seconds:
        raise typer.BadParameter(f"{text!r} is no time to measure in. Use for example 5m.")
    return seconds


@command
def tune(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG", help="A YAML file; with --show a record too, or none: the newest."
        ),
    ] = None,
    overrides: Overrides = None,
    budget: Annotated[
        float | None,
        typer.Option(
            parser=budget_of, metavar="TIME", help="About how long it may take: 5m, 90s, 1h."
        ),
    ] = None,
    objective: Annotated[
        _Objective | None,
        typer.Option(help="What is best: time to return, or environment steps a second."),
    ] = None,
    algorithm: Annotated[
        _Algorithm | None, typer.Option(help="How it searches; paper: GMI-DRL's Algorithm 2.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where the config goes.",
            show_default="tuned.yaml beside CONFIG",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Predict with the noise of gradients in a run of this config.",
        ),
    ] = None,
    again: Again = False,
    show: Annotated[
        bool, typer.Option("--show", help="Measure nothing; show and draw what is on record.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE",
            help="Measure nothing; search the model of machines that are not here: 4xdgx-h100.",
        ),
    ] = None,
    quiet: Quiet = False,
    plain: Plain = False,
) -> int:
    """Find the num_env and the GMIs per GPU that learn CONFIG soonest here, by measuring.

    Writes a config with them that launches as it is, and a report. One that was ended goes on where
    it was.
    """
    chosen = {"objective": objective, "algorithm": algorithm}
    words = [*(overrides or []), *(f"tune.{key}={v.value}" for key, v in chosen.items() if v)]
    if on is not None and (show or again or budget or run or output or algorithm):
        raise typer.BadParameter("--on measures and writes nothing; leave out the others")
    if show:
        return _show(config, words, output, plain)
    if config is None:
        raise typer.BadParameter("give a config, or --show for what was found before")
    if on is not None:
        return _tune_on(config, words, on, plain)
    from gmi_drl.selector.record import report
    from gmi_drl.selector.tune.tuning import tune as tune_config

    tuned = tune_config(
        config,
        overrides=words,
        budget=budget,
        output=output,
        again=again,
        run=run,
        view=view_for(quiet, plain),
    )
    if not quiet:
        console = console_for(plain)
        report.show(console, tuned.recorded)
        _say(console, "pictures", tuned.pictures)
        _say(console, "config", [tuned.output])
    return 0


@command
def search(
    config: ConfigFile,
    overrides: Overrides = None,
    again: Again = False,
    quiet: Quiet = False,
    plain: Plain = False,
) -> int:
    """Search hyper-parameters in the ranges that CONFIG declares, by trials side by side.

    One that was ended goes on where it was.
    """
    from gmi_drl.selector.search.search_view import print_search
    from gmi_drl.selector.search.searching import search as search_config

    view = view_for(quiet, plain)
    result = search_config(config, overrides=overrides or [], again=again, view=view)
    if not quiet:
        print_search(console_for(plain), result)
    return 0


def _tune_on(config: Path, words: list[str], on: str, plain: bool) -> int:
    """Searches on the model of machines that are not here."""
    from gmi_drl.placement import load_config
    from gmi_drl.report.forecast_tables import print_candidates
    from gmi_drl.selector.forecast.hardware import machine_of
    from gmi_drl.selector.forecast.search import best_candidates, objective_of

    loaded = load_config(config, words)
    hardware, hosts = machine_of(on)
    best = best_candidates(loaded, hardware, hosts)
    print_candidates(console_for(plain), hardware, hosts, best, objective_of(loaded))
    return 0


def _show(given: Path | None, overrides: list[str], output: Path | None, plain: bool) -> int:
    from gmi_drl.selector.plots import tune_picture
    from gmi_drl.selector.record import report

    recorded = _recorded(given, overrides)
    console = console_for(plain)
    report.show(console, recorded)
    folder, problem = _folder_of(given, output), ", it has another tune's"
    if not _is_other_record(folder, recorded):
        try:
            _say(console, "pictures", tune_picture.draw(recorded, folder))
            return 0
        except OSError as error:
            problem = f" ({error.strerror})"
    raise BadPath(f"{folder}: no pictures{problem}. Give another place: -o FILE.")


def _recorded(given: Path | None, overrides: list[str]) -> TuneRecord:
    """Finds the record that is meant; BadPath with the reason where there is none."""
    from gmi_drl.placement import load_config
    from gmi_drl.selector.record import record
    from gmi_drl.selector.tune.request import TuneRequest

    if given is None:
        if (newest := next(record.records(), None)) is None:
            raise BadPath("nothing is on record. Tune first: gmi-drl tune CONFIG.")
        return newest
    request, path = None, given
    if given.suffix != _RECORD:
        request = TuneRequest.of(load_config(given, overrides), given.resolve().parent)
        path = request.path
    try:
        return record.read(path)
    except OSError as error:
        if request is None or not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise BadPath(f"{path}: {error.strerror}. Give a config, or a record.") from None
    if (copy := _report_of(given) / _COPY).exists():  # of a config that tuning has written
        return record.read(copy)
    why, remedy = "", f"Tune first: gmi-drl tune {given}"
    if (other := request.elsewhere()) is not None:
        why, remedy = f": {other[0]}", f"{remedy}; or see that one: gmi-drl tune --show {other[1]}"
    raise BadPath(f"{given}: nothing is on record of it here{why}. {remedy}.")


def _folder_of(given: Path | None, output: Path | None) -> Path:
    """Returns where pictures go: where tuning drew them, or beside a record copied there."""
    from gmi_drl.launcher.colocated_runs import records_folder
    from gmi_drl.selector.tune.tuned_file import DEFAULT_NAME

    if output is None and given is not None and given.suffix == _RECORD:
        folder = given.absolute().parent
        return Path() if folder == records_folder() else folder
    if output is None and given is not None and (_report_of(given) / _COPY).exists():
        return _report_of(given)
    beside = given.parent if given is not None else Path()
    return _report_of(output or beside / DEFAULT_NAME)


def _report_of(config: Path) -> Path:
    """Returns where the report of a config lies that tuning has written."""
    from gmi_drl.selector.tune.tuned_file import TunedFile

    return TunedFile(config).report


def _is_other_record(folder: Path, recorded: TuneRecord) -> bool:
    """Tells whether the report that is there is one of another record."""
    from gmi_drl.selector.errors import RecordError
    from gmi_drl.selector.record import record

    try:
        present = record.read(folder / _COPY)
    except (OSError, RecordError):
        return False
    return present.header.get("key") != recorded.header.get("key")


def _say(console: Console, what: str, paths: Sequence[Path]) -> None:
    if paths:
        console.out(f"{what}: {', '.join(map(str, paths))}", highlight=False)
