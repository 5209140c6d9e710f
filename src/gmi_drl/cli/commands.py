"""The commands that run a config, or look at it and the machine: launch, check, plan, doctor."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from gmi_drl.launcher.view.printable import printable_lines

from .app import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    AsJson,
    ConfigFile,
    Overrides,
    Plain,
    Quiet,
    app,
    console_for,
    guarded,
    is_for_a_file,
    view_for,
    write_file,
)

if TYPE_CHECKING:
    from gmi_drl.comm.plan.plan import Measure
    from gmi_drl.placement import Config

_Measured: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--measure/--no-measure",
        help="Measure all links anew, or none; else those that are not known.",
        show_default=False,
    ),
]


@app.command()
def launch(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A YAML file; or, with --set mode=serving, the folder of a run whose policy is "
            "served. Not needed with --resume."
        ),
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with the run in this folder.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Record a trace of each GMI: run.profile=true.")
    ] = False,
    quiet: Quiet = False,
    plain: Plain = False,
) -> None:
    """Train what CONFIG says, or go on with an earlier run."""
    if (config is None) == (resume is None):
        raise typer.BadParameter("give a config, or --resume and the folder of a run")
    given = [*(overrides or []), *(["run.profile=true"] if profile else [])]
    raise typer.Exit(guarded(lambda: _launch(config, given, resume, quiet, plain)))


@app.command()
def check(config: ConfigFile, overrides: Overrides = None) -> None:
    """List every fault of CONFIG on this machine."""
    raise typer.Exit(guarded(lambda: _check(config, overrides or [])))


@app.command()
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    measure: _Measured = None,
    as_json: AsJson = False,
    layout: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the layout as YAML, to edit and name in a config."
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of the layout.")
    ] = None,
) -> None:
    """Show the devices, GMIs and reduction of CONFIG, and what the templates promise.

    What a reduction takes is measured in a few seconds, once per machine, and kept.
    """
    raise typer.Exit(guarded(lambda: _plan(config, overrides or [], measure, as_json, layout, svg)))


@app.command()
def doctor(
    measure: _Measured = None,
    as_json: AsJson = False,
) -> None:
    """Show what of this machine works for GMIs, why not otherwise, and what to do about it.

    Exit code 0: all works that is here; 1: something is broken.
    """
    raise typer.Exit(guarded(lambda: _doctor(measure, as_json)))


def _launch(
    config: Path | None, overrides: list[str], resume: Path | None, quiet: bool, plain: bool
) -> int:
    from gmi_drl.launching import launch

    result = launch(
        config,
        overrides=overrides,
        resume=resume,
        view=view_for(quiet, plain),
        keep_gcs=True,  # the runtime was started for this run alone
    )
    if not quiet:
        from gmi_drl.report.tables import print_result

        print_result(console_for(plain), result)
    return 0 if result.state == "finished" else INTERRUPTED


def _check(path: Path, overrides: list[str]) -> int:
    from gmi_drl.launcher.plan.env_check import try_env
    from gmi_drl.launcher.plan.planning import faults_of
    from gmi_drl.placement import ConfigError, load_config
    from gmi_drl.selector.search.faults import section_faults
    from gmi_drl.selector.tune.space import auto_faults

    notes: list[str] = []
    faults: list[object] = []
    try:
        config: Config | None = load_config(path, overrides)
    except ConfigError as error:
        faults, config = list(error.faults), error.partial
    if config is not None:
        tried = try_env(config, path.resolve().parent)
        faults += [*faults_of(config, tried, auto_faults), *section_faults(config)]
        notes = tried.notes
    if faults:
        print(f"{path}: {len(faults)} {'fault' if len(faults) == 1 else 'faults'}", file=sys.stderr)
        for fault in faults:
            print(f"  {printable_lines(fault)}", file=sys.stderr)
        return FAILED
    print("\n".join([f"{path}: no faults", *(f"  {note}" for note in notes)]))
    return 0


def _plan(
    path: Path,
    overrides: list[str],
    measure: bool | None,
    as_json: bool,
    layout_file: Path | None,
    svg: Path | None,
) -> int:
    import json

    from gmi_drl.launcher.plan.import_path import importable
    from gmi_drl.launcher.plan.planning import backend_reason, planned
    from gmi_drl.launcher.plan.reduction import reduction_of
    from gmi_drl.launcher.plan.template_choice import compare_templates
    from gmi_drl.placement import load_config
    from gmi_drl.placement.layout_yaml import to_yaml
    from gmi_drl.report.layout_picture import draw_layout
    from gmi_drl.report.plan_tables import print_layout, print_reduction, print_templates
    from gmi_drl.report.tables import print_plan
    from gmi_drl.selector.tune.space import auto_faults

    for option, file in (("--layout", layout_file), ("--svg", svg)):
        if file is not None and not is_for_a_file(option, file):
            return BAD_INPUT
    for option, file in (("--layout", layout_file), ("--svg", svg)):
        if file is not None and file.resolve() == path.resolve():
            print(f"{option} {file}: the plan is made from it. Give another.", file=sys.stderr)
            return BAD_INPUT
    folder = path.resolve().parent
    config, notes = _resolved(load_config(path, overrides), folder)
    with importable(folder):
        layout = planned(config, str(path), auto_faults)
    console, reason = console_for(), backend_reason(config, layout)
    if not as_json:
        print_plan(console, config, layout)
        for line in notes:
            console.out(line, highlight=False)
    wants: Measure = "missing" if measure is None else "anew" if measure else "no"
    with importable(folder):
        reduction = reduction_of(config, layout, wants, ask_size=True)
    rows = compare_templates(config, layout)
    if layout_file is not None and not write_file("--layout", layout_file, to_yaml(layout)):
        return BAD_INPUT
    if svg is not None and not write_file("--svg", svg, draw_layout(layout, reduction)):
        return BAD_INPUT
    if as_json:
        found = {
            "layout": json.loads(layout.to_json()),
            "tuned": notes,
            "backend": reason,
            "templates": [dataclasses.asdict(row) for row in rows],
            "reduction": reduction.as_json(),
        }
        print(json.dumps(found, indent=1))
        return 0
    print_templates(console, config.mode, rows)
    print_reduction(console, reduction, layout)
    print_layout(console, layout, reduction, reason)
    for what, file in (("layout", layout_file), ("picture", svg)):
        if file is not None:
            console.out(f"{what}: {file}", highlight=False)
    return 0


def _resolved(config: Config, import_path: Path) -> tuple[Config, list[str]]:
    """The config with what tuning has found for `auto`, if it has, and notes of it."""
    if config.is_settled:
        return config, []
    from gmi_drl.selector.tune.tuning import recalled

    return recalled(config, beside=import_path) or (config, [])


def _doctor(measure: bool | None, as_json: bool) -> int:
    import json

    from .doctor import diagnose
    from .doctor_table import print_diagnosis

    console = console_for()
    wants: Measure = "missing" if measure is None else "anew" if measure else "no"
    if as_json:
        found = diagnose(wants)
        print(json.dumps(found.as_json(), indent=1))
    else:
        with console.status("looking at the driver") as status:
            found = diagnose(wants, status.update)
        print_diagnosis(console, found)
    return 0 if found.works else FAILED
