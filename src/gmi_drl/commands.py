"""What `gmi-drl` can do: launch, check, plan, doctor, runs, state, timeline, lineage.

Exit codes: 0 done; 1 a run that failed, or a check that found faults; 2 a bad config or bad
arguments; 130 ended by Ctrl-C. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from gmi_drl import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from gmi_drl.comm.plan import Measure
    from gmi_drl.placement import Config

_FAILED, _BAD_INPUT, _INTERRUPTED = 1, 2, 130

app = typer.Typer(
    help="Deep-RL training on GPU multiplexing instances (GMIs).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"gmi-drl {__version__}")
        raise typer.Exit


_ConfigFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML file; see docs/configuration.md.")
]
_Measured: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--measure/--no-measure",
        help="Measure all links anew, or none; else those that are not known.",
        show_default=False,
    ),
]
_AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
_Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key; may be repeated."),
]


@app.callback()
def front(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None: ...


@app.command()
def launch(
    config: Annotated[
        Path | None, typer.Argument(help="A YAML file; not needed with --resume.")
    ] = None,
    overrides: _Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with the run in this folder.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines, in a terminal too.")] = False,
) -> None:
    """Train what CONFIG says, or go on with an earlier run."""
    if (config is None) == (resume is None):
        raise typer.BadParameter("give a config, or --resume and the folder of a run")
    raise typer.Exit(_guarded(lambda: _launch(config, overrides or [], resume, quiet, plain)))


@app.command()
def check(config: _ConfigFile, overrides: _Overrides = None) -> None:
    """List every fault of CONFIG on this machine."""
    raise typer.Exit(_guarded(lambda: _check(config, overrides or [])))


@app.command()
def plan(
    config: _ConfigFile,
    overrides: _Overrides = None,
    measure: _Measured = None,
    as_json: _AsJson = False,
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
    raise typer.Exit(
        _guarded(lambda: _plan(config, overrides or [], measure, as_json, layout, svg))
    )


@app.command()
def doctor(
    measure: _Measured = None,
    as_json: _AsJson = False,
) -> None:
    """Show what of this machine works for GMIs, why not otherwise, and what to do about it.

    Exit code 0: all works that is here; 1: something is broken.
    """
    raise typer.Exit(_guarded(lambda: _doctor(measure, as_json)))


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds runs.")] = Path("runs"),
) -> None:
    """List the runs in FOLDER."""
    raise typer.Exit(_guarded(lambda: _runs(folder)))


_Run: TypeAlias = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN]", help="A run's folder, or its gcs.sqlite; else the newest."),
]


@app.command()
def state(
    run: _Run = None,
    as_json: _AsJson = False,
) -> None:
    """Show the tasks, actors, objects and last events of a run."""
    raise typer.Exit(_guarded(lambda: _state(run, as_json)))


@app.command()
def timeline(
    run: _Run = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the trace goes.")
    ] = Path("timeline.json"),
    last: Annotated[int, typer.Option(min=1, help="So many tasks, the last ones.")] = 200_000,
) -> None:
    """Write a run as a Chrome trace, which https://ui.perfetto.dev shows."""
    raise typer.Exit(_guarded(lambda: _timeline(run, output, last)))


@app.command()
def lineage(
    id: Annotated[str, typer.Argument(metavar="ID", help="First digits of an id.")],
    run: _Run = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz.")] = False,
    depth: Annotated[int, typer.Option(min=0, help="How many steps back.")] = 8,
) -> None:
    """Show what a task, object or actor was computed from."""
    raise typer.Exit(_guarded(lambda: _lineage(id, run, dot, depth)))


def _launch(
    config: Path | None, overrides: list[str], resume: Path | None, quiet: bool, plain: bool
) -> int:
    from gmi_drl.launcher import launch

    result = launch(
        config,
        overrides=overrides,
        resume=resume,
        view="none" if quiet else "plain" if plain else "auto",
        keep_gcs=True,  # the runtime was started for this run alone
    )
    if not quiet:
        from .tables import print_result

        print_result(_console(plain), result)
    return 0 if result.state == "finished" else _INTERRUPTED


def _check(path: Path, overrides: list[str]) -> int:
    from gmi_drl.placement import ConfigError, load_config

    from .planning import faults_of
    from .role_check import role_faults

    faults: list[object] = []
    try:
        config: Config | None = load_config(path, overrides)
    except ConfigError as error:
        faults, config = list(error.faults), error.partial
    if config is not None:
        faults += [*faults_of(config), *role_faults(config, path.resolve().parent)]
    if faults:
        print(f"{path}: {len(faults)} {'fault' if len(faults) == 1 else 'faults'}", file=sys.stderr)
        for fault in faults:
            print(f"  {fault}", file=sys.stderr)
        return _FAILED
    print(f"{path}: no faults")
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

    from gmi_drl.placement import load_config
    from gmi_drl.placement.layout_yaml import to_yaml

    from .layout_picture import draw_layout
    from .plan_tables import print_layout, print_reduction, print_templates
    from .planning import backend_reason, planned
    from .reduction import reduction_of
    from .tables import print_plan
    from .template_choice import compare_templates

    for option, file in (("--layout", layout_file), ("--svg", svg)):
        if file is not None and not _is_for_a_file(option, file):
            return _BAD_INPUT
    for option, file in (("--layout", layout_file), ("--svg", svg)):
        if file is not None and file.resolve() == path.resolve():
            print(f"{option} {file}: the plan is made from it. Give another.", file=sys.stderr)
            return _BAD_INPUT
    config = load_config(path, overrides)
    layout = planned(config, str(path))
    console, reason = _console(), backend_reason(config, layout)
    if not as_json:
        print_plan(console, config, layout)
    wants: Measure = "missing" if measure is None else "anew" if measure else "no"
    reduction = reduction_of(config, layout, wants, ask_size=True)
    rows = compare_templates(config, layout)
    if layout_file is not None and not _write("--layout", layout_file, to_yaml(layout)):
        return _BAD_INPUT
    if svg is not None and not _write("--svg", svg, draw_layout(layout, reduction)):
        return _BAD_INPUT
    if as_json:
        found = {
            "layout": json.loads(layout.to_json()),
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


def _doctor(measure: bool | None, as_json: bool) -> int:
    import json

    from .doctor import diagnose
    from .doctor_table import print_diagnosis

    console = _console()
    wants: Measure = "missing" if measure is None else "anew" if measure else "no"
    if as_json:
        found = diagnose(wants)
        print(json.dumps(found.as_json(), indent=1))
    else:
        with console.status("looking at the driver") as status:
            found = diagnose(wants, status.update)
        print_diagnosis(console, found)
    return 0 if found.works else _FAILED


def _runs(folder: Path) -> int:
    from .run_list import list_runs
    from .tables import print_runs

    if not folder.is_dir() and folder != Path("runs"):  # which is there from the first run on
        print(f"{folder}: no such folder. Give the one that holds runs.", file=sys.stderr)
        return _BAD_INPUT
    found = list_runs(folder)
    if found:
        print_runs(_console(), found)
    else:
        print(f"{folder}: no runs. `gmi-drl launch CONFIG` makes one.")
    return 0


def _state(run: Path | None, as_json: bool) -> int:
    import json

    from . import inspect_run

    found = inspect_run.read_state(inspect_run.store_of(run))
    if as_json:
        print(json.dumps(inspect_run.as_json(found), indent=1))
    else:
        inspect_run.print_state(_console(), found)
    return 0


def _timeline(run: Path | None, output: Path, last: int) -> int:
    from .inspect_run import store_of
    from .timeline import Timeline

    if not _is_for_a_file("-o", output):
        return _BAD_INPUT
    trace = Timeline.read(store_of(run), last)
    trace.write(output)
    cut = f"; {trace.cut:,} earlier ones are left out (--last)" if trace.cut else ""
    print(f"{output}: {trace.num_tasks:,} tasks{cut}. Open it at https://ui.perfetto.dev.")
    return 0


def _lineage(id: str, run: Path | None, dot: bool, depth: int) -> int:
    from .inspect_run import opened, store_of
    from .lineage import Lineage, as_dot, as_text

    with opened(store_of(run)) as store:
        store.execute("BEGIN")
        lineages = Lineage(store)
        tree = lineages.tree(lineages.resolve(id), depth)
    print("\n".join(as_dot(tree) if dot else as_text(tree)))
    return 0


def _is_for_a_file(option: str, file: Path) -> bool:
    """Whether a file can be there, as far as can be seen before there is anything to write."""
    why = ""
    if not file.absolute().parent.is_dir():
        why = "its folder is not there. Make it, or give another"
    elif file.is_dir():
        why = "it is a folder. Give the path of a file"
    if why:
        print(f"{option} {file}: {why}.", file=sys.stderr)
    return not why


def _write(option: str, file: Path, text: str) -> bool:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{option} {file}: {error.strerror}. Give another path.", file=sys.stderr)
        return False
    return True


def _console(plain: bool = False) -> Console:
    from rich.console import Console

    return Console(force_terminal=False if plain else None)


def _guarded(command: Callable[[], int]) -> int:
    """The command's exit code; our own errors are told without a traceback."""
    try:
        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # `gmi-drl runs | head`
        sys.stderr.close()
        return _FAILED
    except Exception as error:
        if not type(error).__module__.startswith("gmi_drl."):
            raise  # a fault of this program: show where
        print(error, file=sys.stderr)
        return _BAD_INPUT if isinstance(error, _bad_input_errors()) else _FAILED


def _bad_input_errors() -> tuple[type[Exception], ...]:
    from gmi_drl.gmi import DiscoveryError
    from gmi_drl.placement import ConfigError, LayoutError
    from gmi_drl.runtime.database import GcsError

    from .run_folder import RunFolderError

    return ConfigError, DiscoveryError, GcsError, LayoutError, RunFolderError
