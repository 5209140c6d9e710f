"""What `gmi-drl` can do: launch, check, plan, runs.

Exit codes: 0 done; 1 a run that failed, or a check that found faults; 2 a bad config or bad
arguments; 130 ended by Ctrl-C. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from gmi_drl import __version__

if TYPE_CHECKING:
    from rich.console import Console

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
def plan(config: _ConfigFile, overrides: _Overrides = None) -> None:
    """Show the devices, GMIs and reduction of CONFIG."""
    raise typer.Exit(_guarded(lambda: _plan(config, overrides or [])))


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds runs.")] = Path("runs"),
) -> None:
    """List the runs in FOLDER."""
    raise typer.Exit(_guarded(lambda: _runs(folder)))


def _launch(
    config: Path | None, overrides: list[str], resume: Path | None, quiet: bool, plain: bool
) -> int:
    from gmi_drl.launcher import launch

    result = launch(
        config,
        overrides=overrides,
        resume=resume,
        view="none" if quiet else "plain" if plain else "auto",
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


def _plan(path: Path, overrides: list[str]) -> int:
    from gmi_drl.placement import load_config

    from .planning import planned
    from .tables import print_plan

    config = load_config(path, overrides)
    print_plan(_console(), config, planned(config, str(path)))
    return 0


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

    from .run_folder import RunFolderError

    return ConfigError, DiscoveryError, LayoutError, RunFolderError
